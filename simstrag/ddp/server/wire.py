"""Frames over a socket between a rank and the server.

A frame is a pickled message and at most one buffer: all gradients or all parameters. The buffer is
received straight into the memory of a tensor: `multiprocessing.connection` copies it twice, and
took 93 ms for 20 MiB over the loopback where this takes 20 ms.

Both sides have proved that they know the job's secret before there is a `Wire` (see `listener`):
what it receives is unpickled.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

HEADER = struct.Struct("!QQ")
"""Bytes of the pickled message, bytes of the buffer."""


class Wire:
    """A connection that carries frames.

    connection: to the other side, which is authenticated.
    stall_limit: seconds of silence inside a frame after which the other side is given up.
    peer: name of the other side, for error messages.
    Every fault of the connection raises `ConnectionError`.
    """

    def __init__(self, connection: socket.socket, stall_limit: float, peer: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(stall_limit)
        self.connection, self.stall_limit, self.peer = connection, stall_limit, peer

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self.connection.fileno()

    def send(self, message: Any, buffer: memoryview | None = None) -> None:
        """Send a message and its buffer."""
        body = pickle.dumps(message)
        try:
            size = 0 if buffer is None else buffer.nbytes
            self.connection.sendall(HEADER.pack(len(body), size) + body)
            if buffer is not None:
                self.connection.sendall(buffer)
        except TimeoutError:
            raise self._stalled("took nothing in") from None
        except OSError as error:
            raise ConnectionError(f"{self.peer} cannot be reached any more: {error}") from None

    def receive(self, into: memoryview | None = None) -> Any:
        """The next message, with its buffer in `into`; None if the other side has closed.

        The stall limit runs from the call: call it when the first byte is there, or must come.
        Raises `ConnectionError` at the end of the connection inside a frame, after `stall_limit`
        seconds of silence, and for a buffer of another size.
        """
        header = bytearray(HEADER.size)
        if not self._fill(memoryview(header), may_end=True):
            return None
        length, size = HEADER.unpack(header)
        room = 0 if into is None else into.nbytes
        if size not in {0, room}:
            raise ConnectionError(f"{self.peer} sends {size} bytes where {room} are expected")
        body = bytearray(length)
        self._fill(memoryview(body))
        if size and into is not None:
            self._fill(into)
        return pickle.loads(body)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _fill(self, into: memoryview, may_end: bool = False) -> bool:
        """Receive as many bytes as `into` has; false if the connection ended before the first."""
        count = 0
        while count < into.nbytes:
            try:
                size = self.connection.recv_into(into[count:])
            except TimeoutError:
                raise self._stalled("was silent") from None
            except OSError as error:
                raise ConnectionError(f"{self.peer} broke the connection: {error}") from None
            if size == 0:
                if may_end and count == 0:
                    return False
                raise ConnectionError(f"{self.peer} closed the connection inside a frame")
            count += size
        return True

    def _stalled(self, what: str) -> ConnectionError:
        return ConnectionError(f"{self.peer} {what} for {self.stall_limit:g} s inside a frame")
