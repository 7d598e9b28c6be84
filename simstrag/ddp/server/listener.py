"""Who is connected to the server, and whose turn it is to be heard.

Frames are read in the order in which their first bytes were seen; heartbeats have connections of
their own and do not wait.  Nobody is heard who does not know the word of the job.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import secrets
import selectors
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from simstrag.ddp.server.heartbeat import BEAT, STOP, WORD
from simstrag.ddp.server.shared_buffer import Payload
from simstrag.ddp.server.wire import Frame, Kind, Wire

__all__ = ["Door", "Peer", "knock"]

STRANGER = 5.0
"""Seconds of silence inside a frame that are borne of somebody who has not said who it is."""


@dataclass(eq=False)
class Peer:
    """One rank, as far as it is connected.

    beats: the other connection.  heard: when its heart last beat.  changed: settings of its
    optimizer that have not been taken over yet.  row: stamps of its present step.
    """

    rank: int
    wire: Wire
    beats: socket.socket | None = None
    heard: float = math.inf
    begun: bool = False
    payload: Payload | None = None
    phase: str = "setting up"
    changed: bytes = b""
    row: dict[str, Any] = field(default_factory=dict)
    losses: int = 0
    """Of how many losses it knows."""

    def call_off(self, step: int) -> None:
        """Let it know at once that a step is aborted; if that cannot be sent, it is lost anyway."""
        if self.beats is not None:
            with contextlib.suppress(OSError):
                self.beats.send(WORD.pack(STOP, step))


class Door:
    """Lets ranks in, one main connection and one for heartbeats each.

    address: what a rank needs to connect: host, port and a word that proves it belongs here.
    peers: who is here, by rank.  gone: who was, and cannot come again.
    """

    def __init__(self, world_size: int, host: str, stall_limit: float) -> None:
        self.world_size, self.stall_limit = world_size, stall_limit
        self.peers: dict[int, Peer] = {}
        self.gone: set[int] = set()
        self._listener = listening(host)
        self._word = secrets.token_hex(8)
        self.address = f"{host}:{self._listener.getsockname()[1]}:{self._word}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._greet)
        self._queue: deque[tuple[Wire, float]] = deque()

    def next(self, patience: float) -> tuple[Peer, float] | None:
        """Who speaks next and when its first byte was seen, if somebody does within `patience`.

        Strangers are dealt with here.
        """
        for key, _ in self._selector.select(0.0 if self._queue else patience):
            key.data(key.fileobj)
        if not self._queue:
            return None
        wire, first = self._queue.popleft()
        for peer in self.peers.values():
            if peer.wire is wire:
                return peer, first
        self._selector.unregister(wire)
        try:
            self._introduce(wire)
        except (ConnectionError, ValueError, KeyError, TypeError):
            wire.close()
        return None

    def silent(self) -> list[Peer]:
        """Whose heart has stopped, as far as all that has come by the last `next` tells."""
        last = time.monotonic() - self.stall_limit
        return [peer for peer in self.peers.values() if peer.beats and peer.heard < last]

    def part(self, peer: Peer) -> None:
        """Its connections end, and it cannot come again."""
        del self.peers[peer.rank]
        self.gone.add(peer.rank)
        self._selector.unregister(peer.wire)
        peer.wire.close()
        if peer.beats is not None:
            self._selector.unregister(peer.beats)
            peer.beats.close()
        self._queue = deque(each for each in self._queue if each[0] is not peer.wire)

    def close(self) -> None:
        """All connections end."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, (Wire, socket.socket)):
                key.fileobj.close()
        self._selector.close()

    def _greet(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        wire = Wire(connection, min(STRANGER, self.stall_limit), "a stranger")
        wire.longest = 1 << 10
        self._selector.register(wire, selectors.EVENT_READ, self._queue_up)

    def _queue_up(self, wire: Wire) -> None:
        if all(wire is not other for other, _ in self._queue):
            self._queue.append((wire, time.monotonic()))

    def _introduce(self, wire: Wire) -> None:
        """A stranger says who it is; whoever does not know the word of this job is let go."""
        frame = wire.receive()
        if frame is None or frame.kind is not Kind.HELLO:
            raise ConnectionError("a stranger did not say who it is")
        said = json.loads(frame.body)
        if not hmac.compare_digest(str(said["word"]), self._word):
            raise ConnectionError("a stranger does not belong to this job")
        rank, known = frame.rank, self.peers.get(frame.rank)
        if not 0 <= rank < self.world_size or rank in self.gone:
            raise ConnectionError(f"rank {rank} is not, or no longer, of this job")
        wire.peer, wire.stall_limit = f"rank {rank}", self.stall_limit
        wire.longest = sys.maxsize
        wire.connection.settimeout(self.stall_limit)
        if said["beats"]:
            if known is None or known.beats is not None:
                raise ConnectionError(f"rank {rank} beats before it is here, or twice")
            known.beats, known.heard = wire.connection, time.monotonic()
            known.beats.setblocking(False)
            self._selector.register(
                known.beats, selectors.EVENT_READ, lambda beats: self._beat(known, beats)
            )
            return
        if known is not None:
            raise ConnectionError(f"rank {rank} is here already")
        self.peers[rank] = Peer(rank, wire)
        self._selector.register(wire, selectors.EVENT_READ, self._queue_up)
        wire.send(Frame(Kind.WELCOME, rank, seconds=self.stall_limit))

    def _beat(self, peer: Peer, beats: socket.socket) -> None:
        """Any byte is a heartbeat, and is answered; the end of the frames says more than this."""
        try:
            alive = beats.recv(1 << 10)
            if alive:
                peer.heard = time.monotonic()
                beats.send(WORD.pack(BEAT, -1))
                return
        except OSError:
            pass
        self._selector.unregister(beats)
        beats.close()
        peer.beats = None


def listening(host: str) -> socket.socket:
    """A socket that listens on a free port of an address of this host, by IPv4 or IPv6."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family)


def knock(
    address: str, rank: int, stall_limit: float, name: str, beats: bool = False
) -> tuple[Wire, float]:
    """Come to a door: a connection for frames, or for heartbeats, and the silence borne there.

    name: whose door it is, in messages.  Raises `ConnectionError` where nobody lets this rank in.
    """
    host, port, word = address.rsplit(":", 2)
    try:
        connection = socket.create_connection((host, int(port)), timeout=stall_limit)
    except OSError as error:
        raise ConnectionError(f"{name} does not answer rank {rank}: {error}") from None
    wire = Wire(connection, stall_limit, name)
    said = json.dumps({"word": word, "beats": beats}).encode()
    wire.send(Frame(Kind.HELLO, rank, body=said))
    if beats:
        return wire, stall_limit
    welcome = wire.receive()
    if welcome is None:
        connection.close()
        raise ConnectionError(f"{name} does not take rank {rank} in")
    return wire, welcome.seconds
