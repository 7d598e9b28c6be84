"""The heartbeat of a rank: a second connection to the server, and a thread that keeps it going.

A rank that computes slowly beats on; one that is stopped does not.  The same connection brings the
word that a step is aborted, so that it need not wait until the rank asks.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time

__all__ = ["BEAT", "PATIENCE", "STOP", "WORD", "Pulse", "look"]

WORD = struct.Struct("!cq")
"""What the server says here: `BEAT`, or `STOP` and the step that is aborted."""

BEAT, STOP = b".", b"x"

BEATS = 8
"""Heartbeats in one stall limit, at least."""

PATIENCE = 2
"""Stall limits of silence that are borne of a server: for one it may wait for another rank."""


def look(stall_limit: float) -> float:
    """Seconds between two looks whether a silence has lasted too long."""
    return min(1.0, stall_limit / 4)


class Pulse:
    """Beats until closed.

    heard: when the server last answered, on this process's monotonic clock.  aborted: the last
    step that it called off.
    """

    def __init__(self, connection: socket.socket, stall_limit: float) -> None:
        self.heard, self.aborted = time.monotonic(), -1
        self._interval = min(1.0, stall_limit / BEATS)
        self._connection = connection
        self._ours, self._theirs = socket.socketpair()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self._thread = threading.Thread(target=self._beat, name="simstrag-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The thread ends, and so does the connection."""
        with contextlib.suppress(OSError):
            self._ours.send(BEAT)
        self._thread.join()
        for each in (self._ours, self._theirs, self._connection):
            each.close()

    def _beat(self) -> None:
        said, due = b"", time.monotonic()
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._theirs, selectors.EVENT_READ)
            while True:
                if time.monotonic() >= due:
                    with contextlib.suppress(BlockingIOError):
                        self._connection.send(BEAT)
                    due = time.monotonic() + self._interval
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if key.fileobj is self._theirs:
                        return
                    came = self._connection.recv(1 << 12)
                    if not came:
                        return
                    said = self._take_in(said + came)

    def _take_in(self, said: bytes) -> bytes:
        """Whole words; returns what is left of the last."""
        self.heard = time.monotonic()
        whole = len(said) // WORD.size * WORD.size
        for word, step in WORD.iter_unpack(said[:whole]):
            if word == STOP:
                self.aborted = step
        return said[whole:]
