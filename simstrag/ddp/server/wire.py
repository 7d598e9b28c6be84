"""One frame between a rank and the server: a header of fixed size, a short body, one buffer.

The buffer is all gradients or all parameters, contiguous, and is received straight into the memory
of a tensor.  The end of a connection between two frames is a leave; inside a frame it is a fault.
"""

from __future__ import annotations

import enum
import math
import socket
import struct
import sys
from dataclasses import dataclass

__all__ = ["HEADER", "SHARED", "Frame", "Kind", "Wire"]

MAGIC = b"sdst"
PROTOCOL = 2

SHARED = b"shared"
"""Body of a welcome: the memory that the rank offered can be seen."""

HEADER = struct.Struct("!4sBBB?iqqqqddddQQ")
"""magic, protocol, kind, (unused), finite, rank, step, version, closing, samples,
seconds, begun, ended, loss, bytes of the body, bytes of the buffer."""


class Kind(enum.IntEnum):
    """What a frame says."""

    HELLO = 1
    """Rank: who I am, and what I know of this job."""
    BEGIN = 2
    """Rank: what I train; of one rank, also the job."""
    WELCOME = 3
    """Server: accepted; to HELLO, `seconds` is after how long a silent rank is lost."""
    GRADIENT = 4
    """Rank: the step is over; the gradient is in the buffer, or in the memory that we share."""
    READY = 5
    """Rank: the step is over, and the gradient stays here."""
    GROUP = 6
    """Rank: the steps of my group are over; the sum of their gradients is in the buffer."""
    WITHDRAWN = 7
    """Rank: the step was given up, as told."""
    REDUCED = 8
    """Rank: the all-reduce has ended here."""
    FAILED = 9
    """Rank: the all-reduce has failed here."""
    ORDER = 10
    """Server: what to do next; parameters are in the buffer or in the memory that we share."""
    STATE = 11
    """Rank: give me all that a checkpoint needs.  Server: here it is."""
    FAULT = 12
    """Server: the job is over, and why."""
    DELIVERED = 13
    """Rank: the gradient of which I said that it stays here."""
    LEAVE = 14
    """Rank: I have finished; with a body: I have failed, and that is why."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What travels beside the buffer.

    seconds: of computing, as a policy sees it.  begun, ended: when it began and ended, on the
    monotonic clock of the rank.  samples: of the gradient.  closing: the number of an all-reduce.
    nbytes: of the buffer that follows; 0 where there is none or the memory is shared.
    """

    kind: Kind
    rank: int = -1
    step: int = -1
    version: int = -1
    closing: int = -1
    samples: int = 0
    seconds: float = math.nan
    begun: float = math.nan
    ended: float = math.nan
    loss: float = math.nan
    finite: bool = True
    body: bytes = b""
    nbytes: int = 0

    def packed(self, nbytes: int) -> bytes:
        """Header and body of this frame before a buffer of so many bytes."""
        header = HEADER.pack(
            MAGIC, PROTOCOL, self.kind, 0, self.finite, self.rank, self.step, self.version,
            self.closing, self.samples, self.seconds, self.begun, self.ended, self.loss,
            len(self.body), nbytes,
        )  # fmt: skip
        return header + self.body


class Wire:
    """A connection that carries frames.

    peer: who is on the other side, for messages.  stall_limit: seconds of silence inside a frame
    after which the other side is given up.  longest: bytes of a body that are taken in.  Every
    fault raises `ConnectionError`.
    """

    def __init__(self, connection: socket.socket, stall_limit: float, peer: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(stall_limit)
        self.connection, self.stall_limit, self.peer = connection, stall_limit, peer
        self.longest = sys.maxsize

    def fileno(self) -> int:
        """So that a selector can wait for it."""
        return self.connection.fileno()

    def send(self, frame: Frame, buffer: memoryview | None = None) -> None:
        """A frame and its buffer."""
        try:
            self.connection.sendall(frame.packed(0 if buffer is None else buffer.nbytes))
            if buffer is not None:
                self.connection.sendall(buffer)
        except TimeoutError:
            raise self._silent("took nothing in") from None
        except OSError as error:
            raise ConnectionError(f"{self.peer} cannot be reached any more: {error}") from None

    def receive(self, into: memoryview | None = None) -> Frame | None:
        """The next frame, its buffer received into `into`; None if the other side has left.

        The limit runs from the call: call it when the first byte is there, or when it must come.
        Raises `ConnectionError` at the end of the connection inside a frame, after a silence of
        `stall_limit`, and for what is no frame of this protocol.
        """
        header = bytearray(HEADER.size)
        if not self._fill(memoryview(header), whole=False):
            return None
        (
            magic, protocol, kind, _, finite, rank, step, version, closing, samples,
            seconds, begun, ended, loss, body, nbytes,
        ) = HEADER.unpack(header)  # fmt: skip
        if magic != MAGIC or kind not in KINDS:
            raise ConnectionError(f"{self.peer} does not speak the protocol of simstrag.ddp")
        if protocol != PROTOCOL:
            raise ConnectionError(
                f"{self.peer} speaks protocol {protocol} and this side {PROTOCOL}: "
                "install one version of simstrag on all hosts"
            )
        room = 0 if into is None else into.nbytes
        if nbytes not in {0, room}:
            raise ConnectionError(f"{self.peer} sends {nbytes} bytes where {room} are expected")
        if body > self.longest:
            raise ConnectionError(f"{self.peer} sends {body} bytes where {self.longest} will do")
        said = bytearray(body)
        self._fill(memoryview(said))
        if nbytes and into is not None:
            self._fill(into)
        return Frame(
            Kind(kind), rank, step, version, closing, samples,
            seconds, begun, ended, loss, finite, bytes(said), nbytes,
        )  # fmt: skip

    def close(self) -> None:
        """The other side sees that this one has left."""
        self.connection.close()

    def _fill(self, into: memoryview, whole: bool = True) -> bool:
        """Whether all of it came; without `whole`, nothing at all may come."""
        done = 0
        while done < into.nbytes:
            try:
                got = self.connection.recv_into(into[done:])
            except TimeoutError:
                raise self._silent("was silent") from None
            except OSError as error:
                raise ConnectionError(f"{self.peer} broke the connection: {error}") from None
            if got == 0:
                if not whole and done == 0:
                    return False
                raise ConnectionError(f"{self.peer} closed the connection inside a frame")
            done += got
        return True

    def _silent(self, what: str) -> ConnectionError:
        return ConnectionError(f"{self.peer} {what} for {self.stall_limit:g} s inside a frame")


KINDS = frozenset(map(int, Kind))
