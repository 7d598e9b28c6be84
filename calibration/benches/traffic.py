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

from simstrag.calibration.benches.crew import STALL, STOP, Crew, Under, toil

__all__ = ["PERIOD", "Stream", "Traffic"]

PERIOD = 0.02
"""Seconds of one round of sending and pausing of a pair with a share below 1."""

CHUNK = 1 << 18
"""Bytes handed to the kernel at once."""

LOOK = 0.05
"""Seconds between two looks for an order where nothing comes in."""


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
        self._crew = Crew(_end, 2 * pairs, fresh=self._listening, name="end")

    def __enter__(self) -> Traffic:
        self._crew.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._crew.dismiss()

    @contextlib.contextmanager
    def streaming(self, level: float) -> Iterator[Stream]:
        """This much traffic while the context is open: streams times their share of the time.

        Raises `ValueError` for more than there are pairs, `Skipped` where one of them failed or has
        ended; the next traffic is of new ones then.
        """
        if not 0 < level <= self.pairs:
            raise ValueError(f"level {level:g} of traffic must be in (0, {self.pairs}]")
        count = math.ceil(level)
        sources, sinks = range(0, 2 * count, 2), range(1, 2 * count, 2)
        stream = Stream()
        try:
            self._crew.ask(dict.fromkeys(sinks, 1.0))
            begun = time.monotonic()
            self._crew.ask(dict.fromkeys(sources, level / count))
            yield stream
            self._crew.ask(dict.fromkeys(sources, STOP))
            seconds = time.monotonic() - begun
            sent = sum(self._crew.ask(dict.fromkeys(sinks, STOP)))
        except BaseException:
            self._crew.dismiss()
            raise
        stream.report = {"bytes_per_second": round(sent / seconds)}

    @contextlib.contextmanager
    def _listening(self) -> Iterator[list[socket.socket]]:
        """Where the sinks wait for their sources."""
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                for _ in range(self.pairs)
            ]


def _end(pipe: Connection, rank: int, listeners: list[socket.socket]) -> None:
    """One end of a stream: even ranks send, and the next one takes in what they send."""
    listener = listeners[rank // 2]
    listener.settimeout(STALL)
    if rank % 2:
        connection, _ = listener.accept()
    else:
        connection = socket.create_connection(listener.getsockname(), timeout=STALL)
    for each in listeners:
        each.close()
    with connection:
        toil(pipe, lambda share: _sink(connection) if rank % 2 else _source(connection, share))


def _source(connection: socket.socket, share: float) -> Under:
    """Sends for a share of every period."""
    data = bytes(CHUNK)

    def piece() -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < share * PERIOD:
            connection.sendall(data)
        if share < 1:
            time.sleep(max(0.0, begun + PERIOD - time.monotonic()))

    return piece, lambda: None


def _sink(connection: socket.socket) -> Under:
    """Takes in what comes and counts it."""
    room, count = bytearray(CHUNK), 0
    connection.settimeout(LOOK)

    def piece() -> None:
        nonlocal count
        with contextlib.suppress(TimeoutError, BlockingIOError):
            got = connection.recv_into(room)
            if not got:
                raise ConnectionError("the other end has closed the stream")
            count += got

    def report() -> int:
        connection.settimeout(0)
        before = -1
        while before < count:  # what has arrived and was not taken in yet
            before = count
            piece()
        return count

    return piece, report
