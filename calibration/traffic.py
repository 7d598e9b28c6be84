"""Real traffic on the link that all-reduces use: pairs of processes that stream over TCP.

On one machine the link is the loopback, and moving bytes over it takes processor time on both
sides; what slows down beside it suffers from both, as it does beside a neighbour's transfer.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from simstrag.calibration.cells import Skipped
from simstrag.calibration.processes import STALL, child, receive

__all__ = ["PERIOD", "Stream", "Traffic"]

PERIOD = 0.02
"""Seconds of one round of sending and pausing of a pair with a share below 1."""

CHUNK = 1 << 18
"""Bytes handed to the kernel at once."""


@dataclass(slots=True)
class Stream:
    """Traffic that goes on. report: once it has ended, the bytes per second that went over."""

    report: dict[str, float] = field(default_factory=dict)


class Traffic:
    """Pairs of processes, asleep except while a context of `streaming` is open.

    pairs: as many as the highest level needs.  They die with their parent.
    """

    def __init__(self, pairs: int = 1) -> None:
        self.pairs = pairs
        self._stack = contextlib.ExitStack()
        self._senders: list[Connection] = []
        self._receivers: list[Connection] = []

    def __enter__(self) -> Traffic:
        for pair in range(self.pairs):
            sink = self._stack.enter_context(child(_sink, 2 * pair + 1))
            port = receive(sink)
            self._receivers.append(sink)
            self._senders.append(self._stack.enter_context(child(_source, 2 * pair, port)))
        for sender in self._senders:
            receive(sender)
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()
        self._senders.clear()
        self._receivers.clear()

    @contextlib.contextmanager
    def streaming(self, level: float) -> Iterator[Stream]:
        """This much traffic while the context is open: streams times their share of the time.

        Raises `ValueError` for more than there are pairs, `Skipped` where one of them has ended.
        """
        if not 0 < level <= self.pairs:
            raise ValueError(f"level {level:g} of traffic must be in (0, {self.pairs}]")
        count = math.ceil(level)
        stream, begun = Stream(), time.monotonic()
        sources, sinks = self._senders[:count], self._receivers[:count]
        self._tell(sinks, "count")
        self._tell(sources, level / count)
        try:
            yield stream
        finally:
            self._tell(sources, "pause")
            for source in sources:
                self._hear(source)
            self._tell(sinks, "report")
            sent = sum(self._hear(sink) for sink in sinks)
            stream.report = {"bytes_per_second": round(sent / (time.monotonic() - begun))}

    def _tell(self, pipes: list[Connection], order: object) -> None:
        for pipe in pipes:
            try:
                pipe.send(order)
            except OSError:
                raise Skipped("a process of the traffic ended early") from None

    def _hear(self, pipe: Connection) -> int:
        """What one answers: bytes, or 0 that it sleeps."""
        try:
            if not pipe.poll(STALL):
                raise Skipped(f"a process of the traffic did not answer for {STALL:g} s")
            return int(pipe.recv())
        except (EOFError, OSError):
            raise Skipped("a process of the traffic ended early") from None


def _source(pipe: Connection, _rank: int, port: int) -> None:
    """Streams for a share of every period from when it is told the share until "pause"."""
    data = bytes(CHUNK)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        pipe.send("ready")
        while (share := pipe.recv()) != "leave":
            while not pipe.poll():
                begun = time.monotonic()
                while time.monotonic() - begun < share * PERIOD:
                    connection.sendall(data)
                if share < 1:
                    time.sleep(max(0.0, begun + PERIOD - time.monotonic()))
            pipe.recv()
            pipe.send(0)


def _sink(pipe: Connection, _rank: int) -> None:
    """Takes in what comes, and says how much since it was told to count."""
    room, count = bytearray(CHUNK), 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        listener.settimeout(STALL)
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(0.05)
        while True:
            order: Any = pipe.recv() if pipe.poll() else None
            if order == "leave":
                return
            if order == "report":
                pipe.send(count)
            elif order == "count":
                count = 0
            with contextlib.suppress(TimeoutError):
                count += connection.recv_into(room)
