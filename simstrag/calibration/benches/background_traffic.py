"""Real traffic on the link of all-reduces: pairs of processes that stream over TCP.

On one machine the link is the loopback, and moving bytes over it takes processor time on both
sides; an all-reduce beside it suffers from both, as it does beside a neighbour's transfer.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from simstrag.calibration.benches.workers import (
    STALL,
    STOP,
    ContinuousWork,
    WorkerGroup,
    serve_continuous,
)

PERIOD = 0.02
"""Seconds of one round of sending and pausing of a pair with a share below 1."""

CHUNK = 1 << 18
"""Bytes handed to the kernel at once."""

POLL = 0.05
"""Seconds between two looks for a request where no bytes arrive."""


class Traffic(WorkerGroup):
    """Pairs of processes, asleep except in a context of `streaming`; they die with their parent.

    pairs: number of pairs, as the highest level needs.
    """

    def __init__(self, pairs: int = 1) -> None:
        self.pairs = pairs
        super().__init__(_end, 2 * pairs, fresh=self._listen, name="end")

    @contextlib.contextmanager
    def streaming(self, level: float) -> Iterator[dict[str, Any]]:
        """Traffic while the context is open.

        At its end the yielded dict has `bytes_per_second`, as received.

        level: number of streams times their share of the time.

        Raises `ValueError` if there are too few pairs, and `Skipped` if a process failed or
        ended; the next traffic then starts new processes.
        """
        if not 0 < level <= self.pairs:
            raise ValueError(f"level {level:g} of traffic must be in (0, {self.pairs}]")
        count = math.ceil(level)
        sources, sinks = range(0, 2 * count, 2), range(1, 2 * count, 2)
        report: dict[str, Any] = {}
        try:
            self.request(dict.fromkeys(sinks, 1.0))
            start = time.monotonic()
            self.request(dict.fromkeys(sources, level / count))
            yield report
            self.request(dict.fromkeys(sources, STOP))
            seconds = time.monotonic() - start
            received = sum(self.request(dict.fromkeys(sinks, STOP)))
        except BaseException:
            self.shut_down()
            raise
        report["bytes_per_second"] = round(received / seconds)

    @contextlib.contextmanager
    def _listen(self) -> Iterator[list[socket.socket]]:
        """The sockets at which the sinks wait for their sources."""
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                for _ in range(self.pairs)
            ]


def _end(pipe: Connection, rank: int, listeners: list[socket.socket]) -> None:
    """Run one end of a stream: an even rank sends to the next rank."""
    listener = listeners[rank // 2]
    listener.settimeout(STALL)
    if rank % 2:
        connection, _ = listener.accept()
    else:
        connection = socket.create_connection(listener.getsockname(), timeout=STALL)
    for each in listeners:
        each.close()
    with connection:
        serve_continuous(
            pipe, lambda share: _sink(connection) if rank % 2 else _source(connection, share)
        )


def _source(connection: socket.socket, share: float) -> ContinuousWork:
    data = bytes(CHUNK)

    def send() -> None:
        start = time.monotonic()
        while time.monotonic() - start < share * PERIOD:
            connection.sendall(data)
        if share < 1:
            time.sleep(max(0.0, start + PERIOD - time.monotonic()))

    return send, lambda: None


def _sink(connection: socket.socket) -> ContinuousWork:
    room, count = bytearray(CHUNK), 0
    connection.settimeout(POLL)

    def receive() -> None:
        nonlocal count
        with contextlib.suppress(TimeoutError, BlockingIOError):
            size = connection.recv_into(room)
            if not size:
                raise ConnectionError("the other end has closed the stream")
            count += size

    def drain() -> int:
        connection.settimeout(0)
        before = -1
        while before < count:
            before = count
            receive()
        return count

    return receive, drain
