"""Connections to the server: how a rank joins, and which rank is heard next.

A connection is a stranger until it has proved that it knows the secret of the job: each side sends
a random challenge, and answers the other's with an HMAC under the secret, which is never sent.
Strangers are served without blocking. Frames of ranks are read in the order in which their first
bytes were seen.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simstrag.ddp.job_store import listen
from simstrag.ddp.secret import known_secret, new_secret
from simstrag.ddp.server.messages import FromRank
from simstrag.ddp.server.shared_buffer import ExchangeBuffers
from simstrag.ddp.server.wire import Wire

MAGIC, PROTOCOL = b"sdst", 7

CHALLENGE = struct.Struct("!4sB32s")
"""Server to a stranger: magic, protocol, random bytes."""

RESPONSE = struct.Struct("!i?32s32s")
"""Rank to the server: rank, whether the connection is for heartbeats, random bytes, proof."""

WELCOME = struct.Struct("!32sd")
"""Server to the rank: proof, seconds after which it gives up a silent rank."""

SIGNAL = struct.Struct("!cq")
"""On a rank's connection for heartbeats, both ways: `BEAT`, or what has happened, and a number.

The server sends `ABORT` and the number of the step, `GONE` and a rank that has left or is lost, or
`REDUCE`, the number of bytes that follow, and a `Reduce` beside steps as msgpack; the rank sends
`ENDED` or `FAILED` and the number of that.
"""

BEAT, ABORT, GONE, REDUCE, ENDED, FAILED = b".", b"x", b"g", b"r", b"+", b"-"

HANDSHAKE = 10.0
"""Seconds in which a stranger has to prove that it knows the secret."""

STRANGERS = 64
"""Most strangers at a time; beyond that the oldest is dropped."""


@dataclass(eq=False)
class Peer:
    """A rank that is connected.

    beats: its connection for heartbeats.
    last_beat: when its last heartbeat came.
    signals: its signals whose rest has not come yet.
    begun: whether it is ready to train.
    phase: its present activity, for messages.
    changed: settings of its optimizer that the server has not taken over yet.
    row: times of its present step.
    losses: number of losses already reported to it.
    """

    rank: int
    wire: Wire
    beats: socket.socket | None = None
    last_beat: float = math.inf
    signals: bytes = b""
    begun: bool = False
    buffers: ExchangeBuffers | None = None
    phase: str = "setting up"
    changed: list[dict[str, Any]] | None = None
    row: dict[str, Any] = field(default_factory=dict)
    losses: int = 0

    def signal(self, signal: bytes, number: int, content: bytes = b"") -> None:
        """Tell it at once, while it computes; if that cannot be sent, the rank is lost."""
        if self.beats is not None and not _sent(self.beats, SIGNAL.pack(signal, number) + content):
            with contextlib.suppress(OSError):  # half a signal may be under way
                self.beats.shutdown(socket.SHUT_WR)


@dataclass(eq=False)
class _Stranger:
    """A connection that has not proved yet that it belongs to the job."""

    connection: socket.socket
    challenge: bytes
    deadline: float
    received: bytes = b""


class Listener:
    """Accepts the ranks of a job, each with a connection for frames and one for heartbeats.

    address: host, port and secret of the job, for `connect_to`.
    peers: the ranks that are connected.
    gone: the ranks that were connected once, and cannot come again.
    """

    def __init__(self, world_size: int, host: str, stall_limit: float) -> None:
        self.world_size, self.stall_limit = world_size, stall_limit
        self.peers: dict[int, Peer] = {}
        self.gone: set[int] = set()
        self._socket = listen(host)
        self._socket.setblocking(False)
        self._secret = known_secret() or new_secret()
        self.address = f"{host}:{self._socket.getsockname()[1]}:{self._secret}"
        self._selector = selectors.DefaultSelector()
        self._register(self._socket, self._accept)
        self._strangers: deque[_Stranger] = deque()  # the oldest first
        self._queue: deque[tuple[Peer, float]] = deque()
        self._ends: list[tuple[int, int, bool]] = []

    def next_peer(self, timeout: float) -> tuple[Peer, float] | None:
        """The rank to hear next, and when its first byte was seen; None without one."""
        for key, _ in self._selector.select(0.0 if self._queue else timeout):
            key.data()
        while self._strangers and self._strangers[0].deadline < time.monotonic():
            self._drop(self._strangers[0])
        return self._queue.popleft() if self._queue else None

    def ends(self) -> list[tuple[int, int, bool]]:
        """The all-reduces beside steps that have ended since the last call.

        Each is a rank, the number of the all-reduce, and whether it failed there.
        """
        ends, self._ends = self._ends, []
        return ends

    def silent(self) -> list[Peer]:
        """The ranks whose heartbeats have stopped, as of the last `next_peer`."""
        limit = time.monotonic() - self.stall_limit
        return [peer for peer in self.peers.values() if peer.beats and peer.last_beat < limit]

    def remove(self, peer: Peer) -> None:
        """Close the connections of a rank; it cannot come again."""
        del self.peers[peer.rank]
        self.gone.add(peer.rank)
        self._selector.unregister(peer.wire)
        peer.wire.close()
        if peer.beats is not None:
            self._selector.unregister(peer.beats)
            peer.beats.close()
        self._queue = deque(each for each in self._queue if each[0] is not peer)

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, (Wire, socket.socket)):
                key.fileobj.close()
        self._selector.close()

    # -- strangers ---------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # it has gone again
            return
        challenge = CHALLENGE.pack(MAGIC, PROTOCOL, secrets.token_bytes(32))
        stranger = _Stranger(connection, challenge, time.monotonic() + HANDSHAKE)
        connection.setblocking(False)
        self._register(connection, partial(self._respond, stranger))
        self._strangers.append(stranger)
        if len(self._strangers) > STRANGERS:
            self._drop(self._strangers[0])
        if not _sent(connection, challenge):
            self._drop(stranger)

    def _respond(self, stranger: _Stranger) -> None:
        """Read what a stranger has sent, and let it in when its proof is complete and right."""
        connection, received = stranger.connection, b""
        if connection.fileno() < 0:  # dropped in this very round
            return
        with contextlib.suppress(OSError):
            received = connection.recv(RESPONSE.size - len(stranger.received))
        stranger.received += received
        if received and len(stranger.received) < RESPONSE.size:
            return
        welcome = self._admit(stranger) if received else None
        self._drop(stranger, close=welcome is None)
        if welcome is None:
            return
        rank, beats, *_ = RESPONSE.unpack(stranger.received)
        if beats:
            self.peers[rank].beats, self.peers[rank].last_beat = connection, time.monotonic()
            self._register(connection, partial(self._beat, self.peers[rank], connection))
        else:
            peer = Peer(rank, Wire(connection, self.stall_limit, f"rank {rank}", FromRank))
            self.peers[rank] = peer
            self._register(peer.wire, partial(self._enqueue, peer))
        _sent(connection, welcome)  # a connection that does not take it has ended

    def _admit(self, stranger: _Stranger) -> bytes | None:
        """The welcome for a rank that belongs to this job and is not here yet; None for others."""
        rank, beats, nonce, proof = RESPONSE.unpack(stranger.received)
        place = stranger.connection.getsockname()
        expected = _proof(self._secret, place, b"rank", stranger.challenge, rank, beats, nonce)
        if not hmac.compare_digest(proof, expected):
            return None
        if not 0 <= rank < self.world_size or rank in self.gone:
            return None
        peer = self.peers.get(rank)
        if (peer is None or peer.beats is not None) if beats else peer is not None:
            return None
        answer = _proof(self._secret, place, b"server", stranger.challenge, rank, beats, nonce)
        return WELCOME.pack(answer, self.stall_limit)

    def _drop(self, stranger: _Stranger, close: bool = True) -> None:
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.connection)
        if close:
            stranger.connection.close()

    # -- ranks -------------------------------------------------------------------------------

    def _register(self, source: Any, act: Any) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _enqueue(self, peer: Peer) -> None:
        if all(peer is not other for other, _ in self._queue):
            self._queue.append((peer, time.monotonic()))

    def _beat(self, peer: Peer, beats: socket.socket) -> None:
        """Any byte is a heartbeat, and is answered."""
        if peer.beats is not beats:
            return
        try:
            if received := beats.recv(1 << 10):
                peer.last_beat = time.monotonic()
                self._read_signals(peer, received)
                if _sent(beats, SIGNAL.pack(BEAT, -1)):
                    return
        except OSError:
            pass
        self._selector.unregister(beats)  # the end of the other connection says more
        beats.close()
        peer.beats = None

    def _read_signals(self, peer: Peer, received: bytes) -> None:
        peer.signals += received
        complete = len(peer.signals) // SIGNAL.size * SIGNAL.size
        for signal, number in SIGNAL.iter_unpack(peer.signals[:complete]):
            if signal in (ENDED, FAILED):
                self._ends.append((peer.rank, number, signal == FAILED))
        peer.signals = peer.signals[complete:]


def connect_to(
    address: str, rank: int, stall_limit: float, name: str, beats: bool = False
) -> tuple[socket.socket, float]:
    """Join a job: an authenticated connection, and the stall limit of the server.

    address: `Listener.address`.
    name: the server's name, for messages.
    beats: whether the connection is for heartbeats.
    Raises `ConnectionError` where the server cannot be reached, does not let this rank in, or does
    not know the secret itself.
    """
    host, port, secret = address.rsplit(":", 2)
    try:
        connection = socket.create_connection((host, int(port)), timeout=stall_limit)
    except OSError as error:
        raise ConnectionError(f"{name} does not answer rank {rank}: {error}") from None
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = _receive(connection, CHALLENGE.size, name, rank)
        magic, protocol, _ = CHALLENGE.unpack(challenge)
        if magic != MAGIC:
            raise ConnectionError(f"{name} does not speak the protocol of simstrag.ddp")
        if protocol != PROTOCOL:
            raise ConnectionError(
                f"{name} speaks protocol {protocol} and this side {PROTOCOL}: "
                "install one version of simstrag on all hosts"
            )
        nonce = secrets.token_bytes(32)
        place = connection.getpeername()
        proof = _proof(secret, place, b"rank", challenge, rank, beats, nonce)
        connection.sendall(RESPONSE.pack(rank, beats, nonce, proof))
        answer, limit = WELCOME.unpack(_receive(connection, WELCOME.size, name, rank))
        if not hmac.compare_digest(
            answer, _proof(secret, place, b"server", challenge, rank, beats, nonce)
        ):
            raise ConnectionError(f"{name} does not know the secret of this job")
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError) or (isinstance(error, OSError) and error.errno):
            raise ConnectionError(f"{name} does not answer rank {rank}: {error}") from None
        raise
    return connection, limit


def _receive(connection: socket.socket, size: int, name: str, rank: int) -> bytes:
    received = b""
    while len(received) < size:
        with contextlib.suppress(ConnectionResetError):
            if part := connection.recv(size - len(received)):
                received += part
                continue
        raise ConnectionError(f"{name} does not take rank {rank} in")
    return received


def _proof(
    secret: str, place: Any, side: bytes, challenge: bytes, rank: int, beats: bool, nonce: bytes
) -> bytes:
    """HMAC-SHA256 of the whole handshake, by a rank or by the server.

    place: the server's end of the connection, so that no stranger between can pass proofs on.
    """
    said = side + challenge + RESPONSE.pack(rank, beats, nonce, b"")
    claim = f"{place[0]} {place[1]} ".encode() + said
    return hmac.digest(secret.encode(), claim, "sha256")


def _sent(connection: socket.socket, content: bytes) -> bool:
    """Whether a few bytes went out at once, as they do unless the connection has ended."""
    try:
        return connection.send(content) == len(content)
    except OSError:
        return False
