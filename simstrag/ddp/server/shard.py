"""A shard: a process that owns a slice of the parameters, beside the server, which decides.

Ranks send their slices of a gradient here before they tell the server, which then says whose
gradients make a version.  What comes late here only waits: every shard makes the same versions of
the same gradients.  A rank that pulls gets the version it was ordered to compute from, or a later
one, for shards wait for each other no more than ranks do.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import NamedTuple

import torch

from simstrag.ddp.parameters import Parameters
from simstrag.ddp.server.listener import Door, Peer
from simstrag.ddp.server.shared_buffer import Payload, accept, apart, octets
from simstrag.ddp.server.subprocesses import told
from simstrag.ddp.server.wire import SHARED, Frame, Kind
from simstrag.processes.affinity import keep_memory

__all__ = ["Recipe", "Shard", "main"]


class Recipe(NamedTuple):
    """What makes a version: rank, step and weight of each gradient, in order of rank.

    changed: settings that the optimizer takes over before, as `parameters.settings` packed them.
    """

    version: int
    parts: tuple[tuple[int, int, float], ...]
    changed: tuple[bytes, ...]


class Shard:
    """Serves one slice to the ranks of one job, until their server leaves.

    address: as that of a server; the server itself comes there as rank `world_size`.
    """

    def __init__(self, world_size: int, host: str, stall_limit: float) -> None:
        self._server = world_size
        self._door = Door(world_size + 1, host, stall_limit)
        self.address = self._door.address
        self.version = 0
        self._parameters: Parameters | None = None
        self._memory: dict[int, Payload] = {}
        self._steps: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        self._recipes: deque[Recipe] = deque()
        self._asked = False

    def serve(self) -> None:
        """Until the server has left."""
        while self._server not in self._door.gone:
            speaks = self._door.next(1.0)
            if speaks is not None:
                self._read(speaks[0])
        self._door.close()

    def _read(self, peer: Peer) -> None:
        try:
            into = None if peer.payload is None else octets(peer.payload.gradient)
            frame = peer.wire.receive(into)
            if frame is None or frame.kind is Kind.LEAVE:
                self._door.part(peer)
            else:
                self._hear(peer, frame)
        except ConnectionError:  # the server will hear of it by itself
            self._door.part(peer)
        self._go_on()

    def _hear(self, peer: Peer, frame: Frame) -> None:
        match frame.kind:
            case Kind.BEGIN if peer.rank == self._server:
                packed, shard, shards, self.version = pickle.loads(frame.body)
                self._parameters = Parameters(packed, shard, shards)
                peer.wire.send(Frame(Kind.WELCOME, peer.rank))
            case Kind.BEGIN:
                self._admit(peer, frame)
            case Kind.GRADIENT:
                self._steps[peer.rank] = frame.step
            case Kind.PULL:
                self._wanted[peer.rank] = frame.version
            case Kind.ORDER if peer.rank == self._server:
                self._recipes.append(pickle.loads(frame.body))
            case Kind.STATE if peer.rank == self._server:
                self._asked = True
            case _:
                raise ConnectionError(f"rank {peer.rank} says {frame.kind.name} to a shard")

    def _admit(self, peer: Peer, frame: Frame) -> None:
        assert self._parameters is not None, "the server comes first"
        count, dtype, offered = pickle.loads(frame.body)
        found = None if offered is None else accept(offered, count, dtype)
        whole = found or apart(count, dtype)
        peer.payload = self._memory[peer.rank] = whole.part(self._parameters.span)
        peer.wire.send(Frame(Kind.WELCOME, peer.rank, body=SHARED if whole.shared else b""))

    def _go_on(self) -> None:
        """All versions whose gradients are here; then answers to those who wait for them."""
        while self._recipes and self._complete(self._recipes[0]):
            self._make(self._recipes.popleft())
        for rank, version in list(self._wanted.items()):
            if version <= self.version:
                del self._wanted[rank]
                self._give(rank)
        if self._asked and not self._recipes:
            self._asked = False
            self._tell_state()

    def _complete(self, recipe: Recipe) -> bool:
        """Whether its gradients are here; that of a rank that has gone without it is given up."""
        here, peers = self._steps, self._door.peers
        return all(here.get(rank) == step or rank not in peers for rank, step, _ in recipe.parts)

    def _make(self, recipe: Recipe) -> None:
        assert self._parameters is not None
        for each in recipe.changed:
            self._parameters.set(each)
        here = [each for each in recipe.parts if self._steps.get(each[0]) == each[1]]
        self._parameters.apply([(self._memory[rank].gradient, weight) for rank, _, weight in here])
        self.version = recipe.version

    def _give(self, rank: int) -> None:
        peer = self._door.peers.get(rank)
        if peer is None:
            return
        assert self._parameters is not None
        assert peer.payload is not None
        flat, frame = self._parameters.flat, Frame(Kind.PARAMETERS, rank, version=self.version)
        try:
            if peer.payload.shared:
                peer.payload.parameters.copy_(flat)
                peer.wire.send(frame)
            else:
                peer.wire.send(frame, octets(flat))
        except ConnectionError:
            self._door.part(peer)

    def _tell_state(self) -> None:
        assert self._parameters is not None
        body = pickle.dumps((self._parameters.state(), self._parameters.flat))
        self._door.peers[self._server].wire.send(Frame(Kind.STATE, self._server, body=body))


def main() -> None:
    """The program of a shard."""
    torch.set_num_threads(1)
    keep_memory()
    shard = Shard(*told())
    one = torch.zeros(1, requires_grad=True)  # what a first step imports is no part of an update
    one.grad = torch.zeros(1)
    torch.optim.SGD([one], lr=1.0).step()
    print(shard.address, flush=True)
    shard.serve()


if __name__ == "__main__":
    from simstrag.ddp.server.shard import (
        main as program,  # what is pickled must not be of `__main__`
    )

    program()
