"""The contract of a placer: free nodes and a job in, a placement out.

A placer has no clock and no random numbers but its own stream, and does no I/O.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from simstrag.cluster import placers
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

__all__ = ["NodeView", "Placement", "Placer", "Request", "load_placer", "names"]


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


def names() -> tuple[str, ...]:
    """The shipped placers.

    >>> names()
    ('packed', 'random', 'rotate', 'spread', 'star')
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(placers.__path__)))


def load_placer(name: str, seed: int) -> Placer:
    """A new placer.  Raises `InputError` for an unknown name."""
    if name not in names():
        known = ", ".join(names())
        raise InputError(f"there is no placer '{name}'; known: {known}{nearest(name, names())}")
    module = importlib.import_module(f"{placers.__name__}.{name}")
    placer: Placer = module.make(seed)
    return placer


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
