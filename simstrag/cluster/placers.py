"""Placers: free nodes and a job in, a placement out.

A placer has no clock and no random numbers but its own stream, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from simstrag.documents.suggestions import choices
from simstrag.errors import InputError
from simstrag.timing.noise import stream

EACH = 2
"""Workers on a node, before the rotation comes back to it."""
STREAM = 2**64 - 3
"""Less the job's number: the stream of random numbers that places it; no rank has it."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as a placer sees it.

    free: workers that its devices can still take.
    cores: of its processors.  nic_in, nic_out: bytes/s of its network card.
    servers, high_load: server shards on it, and how many of them are of high-load workloads.
    cores_asked, nic_asked: what they use of processors, and of the card in one direction.
    """

    node: int
    free: int
    gpus: int
    cores: float
    nic_in: float
    nic_out: float
    servers: int = 0
    high_load: int = 0
    cores_asked: float = 0.0
    nic_asked: float = 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """A job that is to be placed.

    number: of its arrival.
    shards: how many server shards it has.
    server_cores, server_bytes: what one shard uses of a processor, and bytes/s in one direction.
    is_high_load: whether its servers use more than those of the median workload.
    """

    number: int
    workers: int
    shards: int
    server_cores: float
    server_bytes: float
    is_high_load: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """The node of each worker, and of each server shard."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]


@runtime_checkable
class Placer(Protocol):
    """Chooses nodes.  The workers of a job must fit on the free devices; servers need none."""

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """Where the job goes; it fits, as there are devices enough."""
        ...


def fill_in_order(nodes: Sequence[NodeView], workers: int) -> tuple[int, ...]:
    """The node of each worker: as many as fit on the first node, then the next.

    >>> nodes = [NodeView(k, free, 2, 1.0, 1.0, 1.0) for k, free in enumerate((1, 2))]
    >>> fill_in_order(nodes, 2)
    (0, 1)
    """
    chosen: list[int] = []
    for node in nodes:
        chosen += [node.node] * min(node.free, workers - len(chosen))
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class FixedPlacer:
    """Places every job on the same nodes."""

    placement: Placement

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """The given placement, for every request."""
        return self.placement


class PackedPlacer:
    """As few nodes as possible; servers on the node of the first worker.

    The tightest node on which the whole job fits, else the nodes with the most free devices first.
    """

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """The lowest of several such nodes."""
        whole = [node for node in nodes if node.free >= request.workers]
        if whole:
            tightest = min(whole, key=lambda node: (node.free, node.node))
            workers = (tightest.node,) * request.workers
        else:
            emptiest = sorted(nodes, key=lambda node: (-node.free, node.node))
            workers = fill_in_order(emptiest, request.workers)
        return Placement(workers, (workers[0],) * request.shards)


class RandomPlacer:
    """A free device for each worker and a node for each server, drawn by seed and job's number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """A uniform draw of free devices, without replacement."""
        draws = stream(self.seed, STREAM - request.number)
        free = np.repeat([node.node for node in nodes], [node.free for node in nodes])
        workers = sorted(draws.choice(free, request.workers, replace=False).tolist())
        servers = draws.integers(len(nodes), size=request.shards).tolist()
        return Placement(tuple(workers), tuple(nodes[k].node for k in servers))


class RotatingPlacer:
    """A turn of the cluster: job k has its server on node k, and two workers on each that follows.

    That is how the launchers released with STAR place jobs by hand: eight workers on the four nodes
    after the server's.  Zhang and Shen, "STAR", arXiv 2512.09685, github.com/pcl-projects/
    Training-Sync-Mode at 6c596a7.  Ours: a node without room is passed over, and the server's own
    node is the last; further shards of a server go to the nodes that follow.
    """

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """Turns are repeated until all workers have a device."""
        n, first = len(nodes), request.number % len(nodes)
        turn = [nodes[(first + k) % n] for k in range(1, n + 1)]
        free, workers = [node.free for node in turn], list[int]()
        while len(workers) < request.workers:
            for k, node in enumerate(turn):
                taken = min(EACH, free[k], request.workers - len(workers))
                free[k] -= taken
                workers += [node.node] * taken
        servers = tuple(nodes[(first + k) % n].node for k in range(request.shards))
        return Placement(tuple(workers), servers)


class SpreadPlacer:
    """As many nodes as possible: each worker, then each server, goes where most is free."""

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """Workers by free devices, servers by the number of servers; ties by the lowest node."""
        free = {node.node: node.free for node in nodes}
        workers = []
        for _ in range(request.workers):
            node = min(free, key=lambda k: (-free[k], k))
            free[node] -= 1
            workers.append(node)
        held = {node.node: node.servers for node in nodes}
        servers = []
        for _ in range(request.shards):
            node = min(held, key=lambda k: (held[k], k))
            held[node] += 1
            servers.append(node)
        return Placement(tuple(sorted(workers)), tuple(servers))


class StarPlacer:
    """Keeps busy servers apart (our reading of STAR's prevention; its release has no placer).

    A server goes, among the nodes where its demand fits, to those with the fewest high-load servers
    if it is one itself; ties by the largest residual share of processor and card, whichever is
    smaller, then by the lowest node.  Where it fits nowhere, the largest residual decides.  Workers
    fill the nodes with the most free devices first, the server's nodes last.

    Zhang and Shen, "STAR", arXiv 2512.09685: its abstract says that it prevents stragglers by not
    overloading processors and bandwidth when it allocates parameter servers.
    """

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """Servers first, each beside those placed before it."""
        left, servers = list(nodes), []
        for _ in range(request.shards):
            node = self._node_of_server(left, request)
            servers.append(node.node)
            with_it = replace(
                node,
                cores_asked=node.cores_asked + request.server_cores,
                nic_asked=node.nic_asked + request.server_bytes,
                high_load=node.high_load + request.is_high_load,
            )
            left = [with_it if other is node else other for other in left]
        own = set(servers)
        order = sorted(left, key=lambda node: (node.node in own, -node.free, node.node))
        return Placement(fill_in_order(order, request.workers), tuple(servers))

    @staticmethod
    def _node_of_server(nodes: Sequence[NodeView], request: Request) -> NodeView:
        fitting = [node for node in nodes if _residual(node, request) >= 0]

        def rank(node: NodeView) -> tuple[float, float, int]:
            busy = node.high_load if request.is_high_load else 0
            return busy, -_residual(node, request), node.node

        if fitting:
            return min(fitting, key=rank)
        return min(nodes, key=lambda node: (-_residual(node, request), node.node))


def _residual(node: NodeView, request: Request) -> float:
    """The smaller share of processor or card that is left beside one more shard."""
    cores = 1 - (node.cores_asked + request.server_cores) / node.cores
    card = 1 - (node.nic_asked + request.server_bytes) / min(node.nic_in, node.nic_out)
    return min(cores, card)


PLACERS: dict[str, Callable[[int], Placer]] = {
    "packed": lambda seed: PackedPlacer(), "random": RandomPlacer,
    "rotate": lambda seed: RotatingPlacer(), "spread": lambda seed: SpreadPlacer(),
    "star": lambda seed: StarPlacer(),
}  # fmt: skip
"""The shipped placers by name, made for a seed."""


def load_placer(name: str, seed: int) -> Placer:
    """A new placer.  Raises `InputError` for an unknown name."""
    if name not in PLACERS:
        raise InputError(f"there is no placer '{name}'; {choices(name, PLACERS)}")
    return PLACERS[name](seed)
