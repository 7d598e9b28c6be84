"""Frames over a socket between a rank and the server.

A frame is a message, its bulk, and at most one buffer: all gradients or all parameters. The buffer
is received straight into the memory of a tensor: `multiprocessing.connection` copies it twice, and
took 93 ms for 20 MiB over the loopback where this takes 20 ms.

Both sides have proved that they know the job's secret before there is a `Wire` (see `listener`).
Even so nothing is unpickled: a message is msgpack of one of the types that its direction has, and
bulk is plain data.
"""

from __future__ import annotations

import io
import socket
import struct
from typing import Any

import msgspec
import numpy as np

from simstrag.ddp.server.messages import BulkMessage, Message
from simstrag.errors import InputError

HEADER = struct.Struct("!QQQ")
"""Bytes of the message, of its bulk and of the buffer."""

LIMIT = 1 << 26
"""Most bytes of a message: a policy may bring some that it has learnt."""

PIECE = 1 << 20
"""Bytes of bulk for which there is memory before they have come."""


def _number(value: Any) -> Any:
    """A number of numpy's, as policies compute with, as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not travel in a message")


ENCODER = msgspec.msgpack.Encoder(enc_hook=_number)


def encode(message: Message) -> bytes:
    """A message as msgpack."""
    return ENCODER.encode(message)


def decode(content: bytes | bytearray, decoder: msgspec.msgpack.Decoder[Any], peer: str) -> Any:
    """The message that `encode` made; `ConnectionError` for what its decoder does not take."""
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConnectionError(f"{peer} sends what is no message to this side: {error}") from None


class Wire:
    """A connection that carries frames.

    connection: to the other side, which is authenticated.
    stall_limit: seconds of silence inside a frame after which the other side is given up.
    peer: name of the other side, for error messages.
    takes: the types of its messages, a union; anything else is refused.
    Every fault of the connection raises `ConnectionError`.
    """

    def __init__(
        self, connection: socket.socket, stall_limit: float, peer: str, takes: Any
    ) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(stall_limit)
        self.connection, self.stall_limit, self.peer = connection, stall_limit, peer
        self._decoder = msgspec.msgpack.Decoder(takes)

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self.connection.fileno()

    def send(self, message: Message, buffer: memoryview | None = None) -> None:
        """Send a message and its buffer; `InputError` for a message above `LIMIT`."""
        bulk = message.bulk if isinstance(message, BulkMessage) else b""
        body = encode(msgspec.structs.replace(message, bulk=b"") if bulk else message)
        if len(body) > LIMIT:
            kind = type(message).__name__
            raise InputError(
                f"{kind} for {self.peer}: {len(body)} bytes, above {LIMIT}; "
                "does the policy hold large data?"
            )
        try:
            size = 0 if buffer is None else buffer.nbytes
            self.connection.sendall(HEADER.pack(len(body), len(bulk), size) + body)
            if bulk:
                self.connection.sendall(bulk)
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
        seconds of silence, for a buffer of another size, and for what is no message of this
        direction.
        """
        header = bytearray(HEADER.size)
        if not self._fill(memoryview(header), may_end=True):
            return None
        length, bulk, size = HEADER.unpack(header)
        room = 0 if into is None else into.nbytes
        if size not in {0, room}:
            raise ConnectionError(f"{self.peer} sends {size} bytes where {room} are expected")
        if length > LIMIT:
            raise ConnectionError(f"{self.peer} sends a message of {length} bytes, above {LIMIT}")
        body = bytearray(length)
        self._fill(memoryview(body))
        message = decode(body, self._decoder, self.peer)
        if bulk and not isinstance(message, BulkMessage):
            kind = type(message).__name__
            raise ConnectionError(f"{self.peer} sends {bulk} bytes of bulk with a {kind}")
        if bulk:
            message = msgspec.structs.replace(message, bulk=self._read(bulk))
        if size and into is not None:
            self._fill(into)
        return message

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _read(self, size: int) -> bytes:
        """Receive as many bytes, into memory that grows as they come."""
        content = io.BytesIO()
        while missing := size - content.tell():
            piece = memoryview(bytearray(min(missing, PIECE)))
            self._fill(piece)
            content.write(piece)
        return content.getvalue()

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
