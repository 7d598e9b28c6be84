"""A rank's side of the shards: it sends each its slice of a gradient, and pulls slices."""

from __future__ import annotations

import pickle
import select
import time
from collections.abc import Callable, Sequence

from simstrag.ddp.server.heartbeat import look
from simstrag.ddp.server.listener import knock
from simstrag.ddp.server.shared_buffer import Offer, Payload, octets
from simstrag.ddp.server.wire import SHARED, Frame, Kind, Wire

__all__ = ["Place", "Slices"]

Place = tuple[str, int, int]
"""Where a shard listens, and which elements it owns: the first, and the one after the last."""


class Slices:
    """All slices but the server's own, whose memory the rank offers to shards as to the server.

    versions: of which each was when it was pulled last.  The server's wire is listened to while a
    shard is waited for: it knows first why a shard does not answer.  patience: how long it is
    waited for, which may change meanwhile.  Raises `ConnectionError`.
    """

    def __init__(
        self,
        places: Sequence[Place],
        rank: int,
        memory: Payload,
        offered: Offer | None,
        server: Wire,
        stall_limit: float,
        patience: Callable[[], float],
    ) -> None:
        self._server, self._rank = server, rank
        self._look, self._patience = look(stall_limit), patience
        self.versions = [0] * len(places)
        self._shards = [_Slice(k, *place) for k, place in enumerate(places, start=1)]
        whole = memory.gradient
        said = pickle.dumps((whole.numel(), whole.dtype, offered if memory.shared else None))
        for shard in self._shards:
            shard.join(rank, said, memory, stall_limit)

    def push(self, step: int) -> None:
        """Send the gradient that lies in the memory, before the server hears of it."""
        for shard in self._shards:
            frame = Frame(Kind.GRADIENT, self._rank, step)
            shard.wire.send(frame, None if shard.shared else octets(shard.memory.gradient))

    def pull(self, version: int) -> None:
        """Have parameters in the memory: of this version or of a later one."""
        for shard in self._shards:
            shard.wire.send(Frame(Kind.PULL, self._rank, version=version))
        for number, shard in enumerate(self._shards):
            if shard.wire not in self._speaking(shard):
                raise ConnectionError(f"{shard.wire.peer} does not answer")
            frame = shard.wire.receive(octets(shard.memory.parameters))
            if frame is None:
                raise ConnectionError(f"{shard.wire.peer} has closed the connection")
            self.versions[number] = frame.version

    def _speaking(self, shard: _Slice) -> list[Wire]:
        """Who of the shard and the server says something first; nobody in time."""
        begun = time.monotonic()
        while time.monotonic() - begun < self._patience():
            if found := select.select([shard.wire, self._server], [], [], self._look)[0]:
                return found
        return []

    def close(self) -> None:
        """The shards see that this rank leaves."""
        for shard in self._shards:
            shard.wire.close()


class _Slice:
    """One of them: the connection, and the memory as far as it is of this slice."""

    wire: Wire
    memory: Payload
    shared: bool

    def __init__(self, number: int, address: str, first: int, last: int) -> None:
        self._number, self._address, self._span = number, address, slice(first, last)

    def join(self, rank: int, said: bytes, memory: Payload, stall_limit: float) -> None:
        host, port, _ = self._address.rsplit(":", 2)
        name = f"shard {self._number} at {host}:{port}"
        self.wire, _ = knock(self._address, rank, stall_limit, name)
        self.wire.send(Frame(Kind.BEGIN, rank, body=said))
        welcome = self.wire.receive()
        if welcome is None:
            raise ConnectionError(f"{name} has closed the connection")
        self.shared, self.memory = welcome.body == SHARED, memory.part(self._span)
