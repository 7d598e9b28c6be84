"""Heartbeat of a rank: a second connection to the server, and a thread that keeps it going.

A rank that computes slowly goes on beating; a rank that is stopped does not. On the same
connection the server tells a rank at once that its step is aborted.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time

SIGNAL = struct.Struct("!cq")
"""What the server sends here: `BEAT`, or `ABORT` and the number of the step."""

BEAT, ABORT = b".", b"x"

BEATS = 8
"""Heartbeats in one stall limit, at least."""


class Heartbeat:
    """Beats in a thread of its own until it is closed.

    connection: to the server, for heartbeats alone.
    stall_limit: seconds of silence after which the server gives up a rank.
    last_answer: when the server answered last, on this process's monotonic clock.
    aborted: number of the last step that the server aborted, -1 before the first.
    """

    def __init__(self, connection: socket.socket, stall_limit: float) -> None:
        self.last_answer, self.aborted = time.monotonic(), -1
        self._interval = min(1.0, stall_limit / BEATS)
        self._connection = connection
        self._stop, self._stopped = socket.socketpair()
        connection.setblocking(False)
        self._thread = threading.Thread(target=self._beat, name="simstrag-heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and the connection."""
        with contextlib.suppress(OSError):
            self._stop.send(BEAT)
        self._thread.join()
        for each in (self._stop, self._stopped, self._connection):
            each.close()

    def _beat(self) -> None:
        received, due = b"", time.monotonic()
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while True:
                if time.monotonic() >= due:
                    with contextlib.suppress(BlockingIOError):
                        self._connection.send(BEAT)
                    due = time.monotonic() + self._interval
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if key.fileobj is self._stopped:
                        return
                    answer = self._connection.recv(1 << 12)
                    if not answer:
                        return
                    received = self._read(received + answer)

    def _read(self, received: bytes) -> bytes:
        """Read all complete signals; the bytes of an incomplete one are returned."""
        self.last_answer = time.monotonic()
        complete = len(received) // SIGNAL.size * SIGNAL.size
        for signal, step in SIGNAL.iter_unpack(received[:complete]):
            if signal == ABORT:
                self.aborted = step
        return received[complete:]
