"""What the server process does: it owns parameters, optimizer, policy and books of one job.

One thread reads one frame at a time to its end, in the order in which their first bytes were seen,
and does what the desk answers.  Who is silent inside a frame, or whose heartbeat stops, is
forgotten after the stall limit, and the others go on; who is merely slow is not.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from simstrag import policies
from simstrag.ddp import support
from simstrag.ddp.failures.membership import server_goes_on
from simstrag.ddp.failures.slow_ranks import Slow
from simstrag.ddp.server.coordinator import Desk
from simstrag.ddp.server.delivery import Delivery
from simstrag.ddp.server.listener import Door, Peer
from simstrag.ddp.server.messages import Apply, Handover, Job, Loss, Order
from simstrag.ddp.server.parameter_store import Store
from simstrag.ddp.server.shared_buffer import Offer, Payload, accept, apart, octets
from simstrag.ddp.server.wire import SHARED, Frame, Kind
from simstrag.ddp.server.worker_state import is_fixed
from simstrag.engine.live import Live
from simstrag.errors import InputError
from simstrag.plan import Plan

__all__ = ["Journal", "Server"]

START = 120.0
"""Seconds in which all ranks must begin after the first: importing may take longer than a stall."""


class Journal(Protocol):
    """Where the server writes what has happened, beside what `Live` notes there itself."""

    def note(self, kind: str, *values: Any) -> None:
        """`push` and a row of stamps; `applied`, version, gradients and ranks whose gradients are
        not in it, as `orders.Apply` has them; `lost`, at, rank, why.

        A row is of a finished step: rank, when the run heard of it (at), step, version, seconds,
        samples, loss, and begun, ended (monotonic clock of the rank), first, received, applied,
        replied (monotonic clock of the server), NaN where that did not happen.
        """


class Server:
    """Serves one job after the other to the ranks of one world, until all of them have left.

    address: what a rank needs to connect: host, port and a word that proves it belongs here.
    losses: who was lost, and why; `say` is told in a sentence.  store: the parameters, once all
    have begun.
    """

    def __init__(
        self,
        world_size: int,
        host: str = "127.0.0.1",
        stall_limit: float = 60.0,
        journal: Journal | None = None,
        start_limit: float = START,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.world_size, self.stall_limit, self.journal = world_size, stall_limit, journal
        self.start_limit, self._say = start_limit, say or (lambda sentence: None)
        self._slow = Slow(self._say)
        self.losses: list[Loss] = []
        self.store: Store | None = None
        self._door = Door(world_size, host, stall_limit)
        self.address = self._door.address
        self._orders: deque[Order] = deque()
        self._desk: Desk | None = None
        self._live: Live | None = None  # that of the last desk, until ranks go on by themselves
        self._delivery: Delivery | None = None
        self._job: Job | None = None
        self._refusal = ""
        self._waiting_since = math.inf
        self._zero = 0.0

    # -- the loop ----------------------------------------------------------------------------

    def serve(self) -> None:
        """Until all ranks have left.  What goes wrong here is told to all of them, and raised."""
        try:
            while len(self._door.gone) < self.world_size:
                self._turn()
            self._note_end()
        except Exception as error:
            self._fault(error)
            raise
        finally:
            self.close()

    def _note_end(self) -> None:
        """What the policy has counted, where it has decided to the end."""
        if (live := self._live) is not None:
            self._note("end", self._now(), policies.counts(live.policy, live.name, taken=()))

    def close(self) -> None:
        """All connections end."""
        self._door.close()

    def _turn(self) -> None:
        """What has come since; then one frame, or nothing and the time."""
        speaks = self._door.next(self._patience())
        self._watch()  # a frame that stalls may hold up the next look at the others' hearts
        if speaks is not None and speaks[0].rank in self._door.peers:
            self._read(*speaks)
        if self._refusal and self._live is not None and self._live.wanted_reduced:
            self._say(support.stays_full(self._live.name, self._refusal))
            self._refusal = ""
        if self._desk is not None and self._now() >= self._desk.expiry:
            self._do(self._desk.time(self._now()))

    def _patience(self) -> float:
        """Seconds until something must be looked at though nothing comes."""
        window = math.inf if self._desk is None else self._desk.expiry - self._now()
        return max(0.0, min(window, self.stall_limit / 8, 1.0))

    def _now(self) -> float:
        return time.monotonic() - self._zero

    # -- who is there ------------------------------------------------------------------------

    def _watch(self) -> None:
        """Forget those whose hearts have stopped; give up a job that does not come together."""
        for peer in self._door.silent():
            self._forget(peer, f"was silent for {self.stall_limit:g} s")
        if time.monotonic() - self._waiting_since > self.start_limit:
            here = {rank for rank, peer in self._door.peers.items() if peer.begun}
            absent = sorted(set(range(self.world_size)) - here - self._door.gone)
            raise ConnectionError(f"ranks {absent} did not begin within {self.start_limit:g} s")

    def _forget(self, peer: Peer, reason: str, more: str = "") -> None:
        """A rank has left or is lost; more: of the reason, after where it was."""
        if self._door.peers.get(peer.rank) is not peer:
            return
        self._door.part(peer)
        self._slow.left(peer.rank)
        if reason:
            said = f"rank {peer.rank} {reason} while {peer.phase}{more}"
            self.losses.append(Loss(peer.rank, self._now(), said))
            self._note("lost", self._now(), peer.rank, said)
            if self._door.peers:
                self._say(f"{said}; the server goes on without it" if server_goes_on() else said)
        if self._desk is not None:
            self._do(self._desk.lost(peer.rank, self._now()))
        else:
            self._begin()
        if not self._door.peers:
            self._waiting_since = min(self._waiting_since, time.monotonic())

    # -- what they say -----------------------------------------------------------------------

    def _read(self, peer: Peer, first: float) -> None:
        """One frame to its end; a fault of the connection costs that rank its place only."""
        try:
            into = None if peer.payload is None else octets(peer.payload.gradient)
            frame = peer.wire.receive(into)
            if frame is None:
                self._forget(peer, "closed its connection")
            elif frame.kind is Kind.LEAVE:
                why = frame.body.decode()
                self._forget(peer, why and "left", why and f": {why}")
            else:
                self._hear(peer, frame, first)
        except ConnectionError as error:
            self._forget(peer, str(error).removeprefix(f"rank {peer.rank} "))

    def _hear(self, peer: Peer, frame: Frame, first: float) -> None:
        rank, at, desk = peer.rank, self._now(), self._desk
        if frame.kind is Kind.BEGIN:
            self._admit(peer, frame)
            return
        if frame.kind is Kind.STATE:
            peer.wire.send(Frame(Kind.STATE, rank, body=pickle.dumps(self.state())))
            return
        if desk is None:
            if self._delivery is not None:  # what the last job has no use for any more
                return
            raise ConnectionError(f"rank {rank} says {frame.kind.name} before a job has begun")
        if frame.kind in {Kind.GRADIENT, Kind.READY, Kind.GROUP}:
            self._stamp(peer, frame, first, at)
        peer.phase = "waiting"
        match frame.kind:
            case Kind.DELIVERED:
                orders = desk.delivered(rank, at)
            case Kind.GRADIENT | Kind.READY:
                here = frame.kind is Kind.GRADIENT
                self._slow.heard(rank, frame.step, frame.seconds)
                peer.changed = frame.body or peer.changed
                orders = desk.done(
                    rank, frame.step, at, frame.seconds, here=here, finite=frame.finite
                )
            case Kind.GROUP:
                members, changed = pickle.loads(frame.body)
                peer.changed = changed or peer.changed
                for member, (seconds, _) in members.items():
                    self._slow.heard(member, frame.step, seconds)
                orders = desk.grouped(rank, frame.step, at, members)
            case Kind.WITHDRAWN:
                orders = desk.withdrawn(rank, frame.step, at)
            case Kind.REDUCED:
                orders = desk.reduced(rank, frame.closing, at)
            case Kind.FAILED:
                closing = None if frame.closing < 0 else frame.closing
                orders = desk.failed(rank, at, closing)
            case _:
                raise ConnectionError(f"rank {rank} says {frame.kind.name}, which nobody asked")
        self._do(orders)

    def _stamp(self, peer: Peer, frame: Frame, first: float, at: float) -> None:
        peer.row = {
            "rank": peer.rank, "at": at, "step": frame.step, "version": frame.version,
            "seconds": frame.seconds, "samples": frame.samples, "loss": frame.loss,
            "begun": frame.begun, "ended": frame.ended, "first": first,
            "received": time.monotonic(), "applied": math.nan, "replied": math.nan,
        }  # fmt: skip

    def _admit(self, peer: Peer, frame: Frame) -> None:
        """A rank is ready to begin, and says where its memory is."""
        count, dtype, offered, job = pickle.loads(frame.body)
        if self._desk is not None or peer.begun:
            raise ConnectionError(f"rank {peer.rank} begins while a job is under way")
        peer.payload = self._mapped(offered, count, dtype)
        peer.begun, peer.phase, peer.changed = True, "waiting for the others to begin", b""
        self._job = job or self._job
        if job is not None and job.journal is not None and self.journal is None:
            self.journal = job.journal()
        self._waiting_since = min(self._waiting_since, time.monotonic())
        peer.wire.send(Frame(Kind.WELCOME, peer.rank, body=SHARED if peer.payload.shared else b""))
        self._begin()

    @staticmethod
    def _mapped(offered: Offer | None, count: int, dtype: torch.dtype) -> Payload:
        found = None if offered is None else accept(offered, count, dtype)
        return found or apart(count, dtype)

    def _begin(self) -> None:
        """As soon as all are ready who have not left."""
        job, here = self._job, [rank for rank, peer in self._door.peers.items() if peer.begun]
        if job is None or not here or len(here) + len(self._door.gone) < self.world_size:
            return
        version = 0 if job.facts is None else job.facts.version
        self.store = Store(job.packed, version)
        for rank in here:
            peer = self._door.peers[rank]
            assert peer.payload is not None
            self.store.admit(rank, peer.payload)
        live = Live(
            job.policy, self.world_size, job.batch, job.hints, name=job.name, facts=job.facts,
            note=self._note, fixed=is_fixed, reduced=not job.refusal,
        )  # fmt: skip
        self._delivery = Delivery(self._door.peers, self.store, live, self.losses, self._note)
        self._live, self._refusal = live, job.refusal
        self._desk = Desk(live, self.world_size, job.batch, self._need_no_server(job))
        self._job, self._waiting_since = None, math.inf
        self._zero = time.monotonic() - live.now
        self._do(self._desk.begin())
        for rank in sorted(self._door.gone):
            self._do(self._desk.lost(rank, self._now()))

    def _need_no_server(self, job: Job) -> Callable[[Plan], bool]:
        return lambda plan: job.hand_over and support.synchronous(plan, self.world_size)

    # -- what the desk orders ----------------------------------------------------------------

    def _do(self, orders: list[Order]) -> None:
        """All of it in order; a rank that cannot be told is lost, of which more may follow."""
        idle = not self._orders
        self._orders += orders
        if any(isinstance(order, Handover) for order in orders):
            self._live = None
        while idle and self._orders:
            order = self._orders[0]
            peer = None if isinstance(order, Apply) else self._door.peers.get(order.rank)
            lost = ""
            assert self._delivery is not None
            try:
                self._delivery.carry_out(order, peer)
            except ConnectionError as error:
                lost = str(error)
            if lost and peer is not None:
                self._forget(peer, lost.removeprefix(f"rank {peer.rank} "))
            self._orders.popleft()
        if idle and self._desk is not None and self._desk.over:
            self._desk = None

    def _note(self, kind: str, *values: Any) -> None:
        if self.journal is not None:
            self.journal.note(kind, *values)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs: optimizer, parameters (flat), facts, policy."""
        assert self.store is not None, "no job has begun"
        live = None if self._desk is None else self._desk.live
        return {
            **self.store.state(),
            "facts": None if live is None else live.facts(),
            "policy": None if live is None else live.policy,
        }

    def _fault(self, error: Exception) -> None:
        """Tell all ranks why the job is over."""
        body = pickle.dumps((isinstance(error, InputError), f"{error}"))
        for peer in self._door.peers.values():
            with contextlib.suppress(OSError):
                peer.wire.send(Frame(Kind.FAULT, peer.rank, body=body))
