"""The shards of a job as its server sees them: started, told what makes a version, and watched."""

from __future__ import annotations

import contextlib
import pickle
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import torch

from simstrag.ddp.server.heartbeat import PATIENCE, Pulse
from simstrag.ddp.server.listener import knock
from simstrag.ddp.server.messages import Apply
from simstrag.ddp.server.shard import Recipe
from simstrag.ddp.server.slices import Place
from simstrag.ddp.server.subprocesses import address_of, begun
from simstrag.ddp.server.wire import Frame, Kind, Wire

__all__ = ["Shards"]

GRACE = 0.5
"""Seconds in which a shard whose connection has ended may end, so that one can say how."""


class Shards:
    """Processes that own all slices of the parameters but the first, which is the server's.

    count: of slices, with the first.  places: of the others, once all have been joined.
    A shard that is lost takes its slice with it: then every method raises `RuntimeError`, which
    names it.
    """

    def __init__(self, count: int, world_size: int, host: str, stall_limit: float) -> None:
        self.count, self.places = count, tuple[Place, ...]()
        self._shards = [_Shard(k, world_size, host, stall_limit) for k in range(1, count)]

    def listen(self) -> bool:
        """Whether all of them do, so that `join` need not wait for one that is being started."""
        pipes = [shard.process.stdout for shard in self._shards if shard.process.stdout]
        return len(select.select(pipes, [], [], 0)[0]) == len(pipes)

    def join(self, packed: bytes, version: int, spans: Sequence[slice]) -> None:
        """Hand out parameters and optimizer, as `parameters.packed` made them.

        spans: the elements of each shard, the server's first.
        """
        found = []
        for shard, span in zip(self._shards, spans[1:], strict=True):
            found.append((shard.join(), span.start, span.stop))
            shard.ask(Kind.BEGIN, pickle.dumps((packed, shard.number, self.count, version)))
        self.places = tuple(found)

    def apply(self, order: Apply, changed: Sequence[bytes]) -> None:
        """Have a version made that is made here, too."""
        steps = {rank: step for rank, step, *_ in order.gradients}
        parts = tuple((rank, steps[rank], weight) for rank, weight in order.parts)
        body = pickle.dumps(Recipe(order.version, parts, tuple(changed)))
        for shard in self._shards:
            shard.say(Kind.ORDER, body)

    def states(self) -> list[tuple[dict[str, Any], torch.Tensor]]:
        """Optimizer and parameters of each, of the version that was ordered last."""
        return [pickle.loads(shard.ask(Kind.STATE)) for shard in self._shards]

    def watch(self) -> None:
        """See that they live."""
        for shard in self._shards:
            shard.watch()

    def close(self) -> None:
        """They end."""
        for shard in self._shards:
            shard.close()


class _Shard:
    """One of them; to its door the server comes as rank `world_size`."""

    def __init__(self, number: int, world_size: int, host: str, stall_limit: float) -> None:
        self.number, self._name = number, f"shard {number}"
        self._us, self._stall_limit = world_size, stall_limit
        self.process = begun("simstrag.ddp.server.shard", world_size, host, stall_limit)
        self._wire: Wire | None = None
        self._pulse: Pulse | None = None

    def join(self) -> str:
        """Connect, once it listens; where that is."""
        address = address_of(self.process, self._name)
        try:
            self._wire, borne = knock(address, self._us, self._stall_limit, self._name)
            beats, _ = knock(address, self._us, self._stall_limit, self._name, beats=True)
        except ConnectionError as error:
            raise self._lost(f"{error}") from None
        self._pulse = Pulse(beats.connection, borne)
        return address

    def say(self, kind: Kind, body: bytes = b"") -> None:
        assert self._wire is not None
        try:
            self._wire.send(Frame(kind, self._us, body=body))
        except ConnectionError as error:
            raise self._lost(f"{error}") from None

    def ask(self, kind: Kind, body: bytes = b"") -> bytes:
        """Say it, and wait for the answer."""
        self.say(kind, body)
        assert self._wire is not None
        try:
            answer = self._wire.receive()
        except ConnectionError as error:
            raise self._lost(f"{error}") from None
        if answer is None:
            raise self._lost(f"{self._name} has closed its connection")
        return answer.body

    def watch(self) -> None:
        if self.process.poll() is not None:
            raise self._lost("")
        silence = 0.0 if self._pulse is None else time.monotonic() - self._pulse.heard
        if silence > PATIENCE * self._stall_limit:
            raise self._lost(f"{self._name} was silent for {silence:.3g} s")

    def _lost(self, reason: str) -> RuntimeError:
        with contextlib.suppress(subprocess.TimeoutExpired):  # its connections end before it does
            reason = f"{self._name} ended with code {self.process.wait(GRACE)}"
        return RuntimeError(
            f"{reason} (process {self.process.pid}), and a part of the parameters with it; "
            "go on from a checkpoint"
        )

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.close()
        if self._wire is not None:
            self._wire.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
