"""The server of one job: it owns parameters, optimizer, policy and the state of the engine.

One thread reads one frame at a time to its end, asks the coordinator, and carries out the commands.
A rank that is silent inside a frame, or whose heartbeat stops, is lost after the stall limit, and
the others go on; a rank that is slow is not lost.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch

from simstrag import policies
from simstrag.ddp import policy_support
from simstrag.ddp.failures.diagnosis import call_worker
from simstrag.ddp.failures.rank_failure import server_continues
from simstrag.ddp.failures.slow_ranks import SlowRankDetector
from simstrag.ddp.journal.journal import Journal, facts_from_json, facts_to_json
from simstrag.ddp.pickled_policy import pack_policy, unpack_policy
from simstrag.ddp.plain_data import dump, load
from simstrag.ddp.server import messages
from simstrag.ddp.server.coordinator import Coordinator
from simstrag.ddp.server.listener import ABORT, GONE, REDUCE, Listener, Peer
from simstrag.ddp.server.parameter_store import ParameterStore
from simstrag.ddp.server.shared_buffer import allocate_private, as_bytes, map_shared
from simstrag.ddp.server.wire import encode
from simstrag.ddp.server.worker_state import is_fixed
from simstrag.engine.live import Live
from simstrag.errors import InputError
from simstrag.learning.update_rule import UpdateRule

START = 120.0
"""Seconds in which all ranks must begin after the first: imports may take longer than a stall."""

LOOK = 0.2
"""Seconds between two looks at which ranks have ended, before a job."""


class EventLog(Protocol):
    """The journal of the server, to which the engine also writes."""

    def note(self, kind: str, *values: Any) -> None:
        """Write an event: `push` and a row; `applied`, version, gradients and missing ranks, as in
        `messages.Apply`; `lost`, time, rank and reason; `end`, time and the policy's counts.

        A row describes a finished step: rank, when the server had its report (at), step, version,
        seconds, samples, loss, and begun, ended (monotonic clock of the rank), first, received,
        applied, replied (monotonic clock of the server), NaN where that did not happen.
        """


class Server:
    """Serves one job after the other to the ranks of one world, until all of them have left.

    world_size: number of ranks.
    host: address at which the server listens.
    stall_limit: seconds of silence after which a rank is lost.
    journal: where events are written; None for none, unless a job brings one.
    start_limit: seconds in which all ranks must begin after the first.
    say: is called with sentences for the user.
    ended: returns the ranks whose processes have ended, as the launcher knows; it is called until
        the first job begins.
    address: host, port and secret, for `Client`.
    losses: the ranks that were lost.
    store: the parameters, once all ranks have begun.
    """

    def __init__(
        self,
        world_size: int,
        host: str = "127.0.0.1",
        stall_limit: float = 60.0,
        journal: EventLog | None = None,
        start_limit: float = START,
        say: Callable[[str], None] = lambda sentence: None,
        ended: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        self.world_size, self.stall_limit, self.journal = world_size, stall_limit, journal
        self.start_limit, self._say, self._ended = start_limit, say, ended
        self._worker = "rank"
        self._slow = SlowRankDetector(self._warn)
        self.losses: list[messages.LostRank] = []
        self.store: ParameterStore | None = None
        self._listener = Listener(world_size, host, stall_limit)
        self.address = self._listener.address
        self._commands: deque[messages.Command] = deque()
        self._coordinator: Coordinator | None = None
        self._live: Live | None = None  # of the last job, until the ranks are handed over
        self._job: messages.JobSpec | None = None  # until all ranks have begun
        self._asked = -1  # the rank that was asked for the job
        self._refusal = ""
        self._waiting_since = math.inf
        self._zero = 0.0

    @property
    def is_used(self) -> bool:
        """Whether a rank is connected."""
        return bool(self._listener.peers)

    # -- the loop ----------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve until all ranks have left; an error here is sent to all of them, and raised."""
        try:
            while len(self._listener.gone) < self.world_size:
                self._turn()
            if (live := self._live) is not None:
                self._note("end", self._now(), policies.counts(live.policy, live.name, taken=()))
        except Exception as error:
            fault = messages.Fault(isinstance(error, InputError), f"{error}")
            for peer in self._listener.peers.values():
                with contextlib.suppress(OSError):
                    peer.wire.send(fault)
            raise
        finally:
            self._listener.close()

    def _turn(self) -> None:
        """Read at most one frame, then act on time limits that have passed."""
        window = math.inf if self._coordinator is None else self._coordinator.expiry - self._now()
        patience = min(window, self.stall_limit / 8, LOOK if self.store is None else 1.0)
        event = self._listener.next_peer(max(0.0, patience))
        if self.store is None:
            self._miss_ended_ranks()
        self._check_silence()  # before a frame that may stall
        for rank, closing, failed in self._listener.ends():
            self._end_reduction(rank, closing, failed)
        if event is not None and event[0].rank in self._listener.peers:
            self._read(*event)
        if self._refusal and self._live is not None and self._live.wanted_reduced:
            self._say(policy_support.full_precision_notice(self._live.name, self._refusal))
            self._refusal = ""
        if self._coordinator is not None and self._now() >= self._coordinator.expiry:
            self._carry_out(self._coordinator.on_time(self._now()))

    def _now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._zero

    def _note(self, kind: str, *values: Any) -> None:
        if self.journal is not None:
            self.journal.note(kind, *values)

    def state(self) -> messages.ServerState:
        """The server's part of a checkpoint."""
        store = self.store
        assert store is not None, "no job has begun"
        bulk = dump({
            "optimizer": store.optimizer.state_dict(), "parameters": store.flat,
            "outer": store.outer_state(), "corrected": store.correction_state(),
        })  # fmt: skip
        if self._coordinator is None:
            return messages.ServerState(None, b"", bulk=bulk)
        live = self._coordinator.live
        return messages.ServerState(
            facts_to_json(live.facts()), pack_policy(live.policy), bulk=bulk
        )

    # -- ranks that are lost -----------------------------------------------------------------

    def _check_silence(self) -> None:
        """Lose the ranks whose heartbeats have stopped; give up a job that does not begin."""
        for peer in self._listener.silent():
            self._lose(peer, f"was silent for {self.stall_limit:g} s")
        if time.monotonic() - self._waiting_since > self.start_limit:
            here = {rank for rank, peer in self._listener.peers.items() if peer.begun}
            absent = sorted(set(range(self.world_size)) - here - self._listener.gone)
            raise ConnectionError(f"ranks {absent} did not begin within {self.start_limit:g} s")

    def _miss_ended_ranks(self) -> None:
        """Begin without ranks that ended before they came."""
        for rank in sorted(set(self._ended()) - self._listener.gone - set(self._listener.peers)):
            self._listener.gone.add(rank)
            sentence = f"rank {rank} is dead: the process ended while setting up"
            self._report_loss(rank, sentence)
            self._begin()

    def _lose(self, peer: Peer, reason: str, detail: str = "") -> None:
        """A rank has left, or is lost if there is a reason."""
        if self._listener.peers.get(peer.rank) is not peer:
            return
        self._listener.remove(peer)
        self._slow.remove(peer.rank)
        for other in self._listener.peers.values():
            other.signal(GONE, peer.rank)
        if reason:
            self._report_loss(peer.rank, f"rank {peer.rank} {reason} while {peer.phase}{detail}")
        if self._coordinator is not None:
            self._carry_out(self._coordinator.on_loss(peer.rank, self._now()))
        else:
            self._begin()
        if not self._listener.peers:
            self._waiting_since = min(self._waiting_since, time.monotonic())

    def _report_loss(self, rank: int, sentence: str) -> None:
        self.losses.append(messages.LostRank(rank, self._now(), sentence))
        self._note("lost", self._now(), rank, sentence)
        if self._listener.peers:
            ending = "; the server goes on without it" if server_continues() else ""
            self._warn(sentence + ending)

    def _warn(self, sentence: str) -> None:
        """Warn of a worker, which a sentence calls a rank at its beginning."""
        self._say(call_worker(sentence, self._worker))

    # -- messages ----------------------------------------------------------------------------

    def _read(self, peer: Peer, first: float) -> None:
        """Read one frame; after a fault of the connection that rank alone is lost."""
        try:
            into = None if peer.buffers is None else as_bytes(peer.buffers.gradient)
            message = peer.wire.receive(into)
            if message is None:
                self._lose(peer, "closed its connection")
            elif isinstance(message, messages.Leave):
                why = message.reason
                self._lose(peer, "left" if why else "", f": {why}")
            else:
                self._handle(peer, message, first)
        except ConnectionError as error:
            self._lose(peer, str(error).removeprefix(f"rank {peer.rank} "))

    def _handle(self, peer: Peer, message: Any, first: float) -> None:
        rank, at, coordinator = peer.rank, self._now(), self._coordinator
        if isinstance(message, (messages.JobSpec, messages.Begin)):
            asked = isinstance(message, messages.JobSpec) and rank == self._asked
            if coordinator is not None or (peer.begun and not asked):
                raise ConnectionError(f"rank {rank} begins while a job is under way")
            if isinstance(message, messages.JobSpec):
                self._take(message)
            else:
                self._admit(peer, message)
            self._begin()
            return
        if isinstance(message, messages.StateRequest):
            peer.wire.send(self.state())
            return
        if coordinator is None:
            if self.store is not None:  # it crossed with the end of the last job
                return
            kind = type(message).__name__
            raise ConnectionError(f"rank {rank} sends {kind} before a job has begun")
        if isinstance(message, messages.StepReport):
            self._record(peer, message, first, at)
        peer.phase = "waiting"
        match message:
            case messages.StepReport(step=step, members=dict(members)):
                commands = coordinator.on_group(rank, step, at, members)
            case messages.StepReport(route=route, step=step, seconds=seconds, finite=finite):
                here, norm = route is messages.GradientRoute.PUSH, message.squared_norm
                commands = coordinator.on_step(
                    rank, step, at, seconds, here=here, finite=finite, squared_norm=norm
                )
            case messages.GradientDelivery(closing):
                commands = coordinator.on_delivery(rank, at, closing)
            case messages.Withdrawal(step):
                commands = coordinator.on_withdrawal(rank, step, at)
            case messages.ReductionEnd(closing):
                commands = coordinator.on_reduction(rank, closing, at)
            case messages.CollectiveFailure(closing):
                commands = coordinator.on_failure(rank, at, closing)
            case _:
                raise ConnectionError(f"rank {rank} sends {type(message).__name__} out of turn")
        self._carry_out(commands)

    def _end_reduction(self, rank: int, closing: int, failed: bool) -> None:
        """An all-reduce has ended or failed beside the steps of a rank."""
        coordinator = self._coordinator
        if coordinator is None or rank not in self._listener.peers:
            return
        if failed:
            self._carry_out(coordinator.on_failure(rank, self._now(), closing))
        else:
            self._carry_out(coordinator.on_reduction(rank, closing, self._now()))

    def _record(self, peer: Peer, report: messages.StepReport, first: float, at: float) -> None:
        if report.settings:
            peer.changed = load(report.settings, "the optimizer's settings")
        members = report.members or {peer.rank: (report.seconds, report.finite, math.nan)}
        for rank, (seconds, *_) in members.items():
            self._slow.add(rank, report.step, seconds)
        peer.row = {
            "rank": peer.rank, "at": at, "step": report.step, "version": report.version,
            "seconds": report.seconds, "samples": report.samples, "loss": report.loss,
            "begun": report.begun, "ended": report.ended, "first": first,
            "received": time.monotonic(), "applied": math.nan, "replied": math.nan,
        }  # fmt: skip

    def _take(self, job: messages.JobSpec) -> None:
        """Take the job that a rank brings, and begin its journal if there is none."""
        self._job, self._worker = job, job.worker
        if job.journal and self.journal is None:
            self.journal = Journal(job.journal)

    def _admit(self, peer: Peer, begin: messages.Begin) -> None:
        """Let a rank take part that is ready to train."""
        count, dtype, memory = begin.count, getattr(torch, begin.dtype, None), begin.memory
        if not isinstance(dtype, torch.dtype):
            raise ConnectionError(f"rank {peer.rank} trains parameters of '{begin.dtype}'")
        mapped = None if memory is None else map_shared(memory, count, dtype)
        peer.buffers = mapped or allocate_private(count, dtype)
        peer.begun, peer.phase, peer.changed = True, "waiting for the others to begin", None
        self._waiting_since = min(self._waiting_since, time.monotonic())
        peer.wire.send(messages.Welcome(peer.buffers.shared))

    def _begin(self) -> None:
        """Begin the job if all ranks that have not left are ready."""
        gone, peers, job = self._listener.gone, self._listener.peers, self._job
        ready = [rank for rank, peer in peers.items() if peer.begun]
        if not ready or len(ready) + len(gone) < self.world_size:
            return
        if job is None:
            self._ask_for_job(peers[min(ready)])
            return
        facts = None if job.facts is None else facts_from_json(job.facts)
        live = Live(
            unpack_policy(job.policy), self.world_size, job.batch, job.hints, name=job.name,
            facts=facts, note=self._note, fixed=is_fixed, reduced=not job.refusal,
        )  # fmt: skip
        version = 0 if facts is None else facts.version
        rule = UpdateRule.of(live.plan)
        self.store = ParameterStore(job.bulk, version, rule, job.validation)
        for rank in ready:
            buffers = peers[rank].buffers
            assert buffers is not None
            self.store.admit(rank, buffers)
        self._live, self._refusal = live, job.refusal
        hand_over, world_size = job.hand_over, self.world_size
        self._coordinator = Coordinator(
            live, world_size, job.batch,
            lambda plan: hand_over and policy_support.is_synchronous(plan, world_size),
        )  # fmt: skip
        self._job, self._asked, self._waiting_since = None, -1, math.inf
        self._zero = time.monotonic() - live.now
        self._carry_out(self._coordinator.begin())
        for rank in sorted(gone):
            self._carry_out(self._coordinator.on_loss(rank, self._now()))

    def _ask_for_job(self, peer: Peer) -> None:
        """Let a rank bring the job, since the one that would have done so has ended."""
        if self._asked != peer.rank:
            self._asked = peer.rank
            try:
                peer.wire.send(messages.JobRequest())
            except ConnectionError as error:
                self._lose(peer, str(error).removeprefix(f"rank {peer.rank} "))

    # -- commands ----------------------------------------------------------------------------

    def _carry_out(self, commands: list[messages.Command]) -> None:
        """Carry out commands in order; a rank that cannot be reached is lost."""
        first = not self._commands
        self._commands += commands
        if any(isinstance(command, messages.Handover) for command in commands):
            self._live = None
        coordinator = self._coordinator
        while first and self._commands:
            command = self._commands[0]
            rank = -1 if isinstance(command, messages.Apply) else command.rank
            peer = self._listener.peers.get(rank)
            assert coordinator is not None
            self._check_plan(coordinator.live)
            try:
                self._execute(command, peer)
            except ConnectionError as error:
                if peer is not None:
                    self._lose(peer, str(error).removeprefix(f"rank {peer.rank} "))
            self._commands.popleft()
        if first and coordinator is not None and coordinator.over:
            self._coordinator = None

    def _check_plan(self, live: Live) -> None:
        """Raise `InputError` for a plan that cannot be carried out, alone or after the first."""
        policy_support.check_plan(live.plan, live.name)
        assert self.store is not None
        plan, had = live.plan, self.store.rule
        if (plan.compensation, plan.screen) != (had.compensation, had.screen):
            raise InputError(
                f"policy {live.name}: a plan that changes compensation or screen in mid-run is "
                "refused: what they need of gradients under way may not be kept"
            )

    def _execute(self, command: messages.Command, peer: Peer | None) -> None:
        """Carry out one command; `peer` is the rank that it is for, None where that has left."""
        assert self.store is not None
        match command:
            case messages.Apply():
                self._apply(command)
            case messages.Keep():
                self.store.keep(command.rank)
            case messages.Abort() if peer is not None:
                peer.phase = f"giving up step {command.step}"
                peer.signal(ABORT, command.step)
            case messages.Compute():
                command = self.store.route(command)
                parameters = self.store.pull(command)
                if peer is not None:
                    peer.phase = f"computing step {command.step}"
                    self._tell(peer, command, parameters)
                    self._finish_row(peer)
            case messages.Reduce(beside=True) if peer is not None:
                content = encode(command)
                peer.signal(REDUCE, len(content), content)
            case messages.Reduce(rank, _, members) if peer is not None:
                peer.phase = f"in an all-reduce with ranks {[k for k in members if k != rank]}"
                self._tell(peer, command)
            case messages.Deliver() | messages.Finish() if peer is not None:
                delivers = isinstance(command, messages.Deliver)
                peer.phase = "sending its gradient" if delivers else "finishing"
                self._tell(peer, command)
            case messages.Handover() if peer is not None:
                peer.begun, peer.phase = False, "training without the server"
                if command.apart:
                    self._tell(peer, command)
                else:
                    optimizer = dump(self.store.optimizer.state_dict())
                    self._tell(peer, command, self.store.flat, optimizer)
                self._finish_row(peer)

    def _apply(self, apply: messages.Apply) -> None:
        assert self.store is not None
        assert self._coordinator is not None
        ranks, peers = [rank for rank, *_ in apply.gradients], self._listener.peers
        here = [peers[rank] for rank in ranks if rank in peers]
        changed = [peer.changed for peer in here if peer.changed is not None]
        pair = self.store.apply(apply, changed)
        at = time.monotonic()
        for peer in here:
            peer.changed, peer.row["applied"] = None, at
        self._note("applied", apply.version, apply.gradients, apply.missing)
        if pair is not None and not self._coordinator.over:  # a handover has its facts already
            self._coordinator.live.measure(pair)

    def _tell(
        self,
        peer: Peer,
        command: messages.RankCommand,
        parameters: torch.Tensor | None = None,
        bulk: bytes = b"",
    ) -> None:
        """Send a command, the losses since the last one, and what comes along."""
        assert peer.buffers is not None
        lost, peer.losses = self.losses[peer.losses :], len(self.losses)
        if parameters is not None and peer.buffers.shared:
            peer.buffers.parameters.copy_(parameters)
            parameters = None
        peer.row["replied"] = time.monotonic()  # before sending, which takes part of the pull
        buffer = None if parameters is None else as_bytes(parameters)
        peer.wire.send(messages.CommandMessage(command, lost, bulk=bulk), buffer)

    def _finish_row(self, peer: Peer) -> None:
        """Note the row of a rank's step, which ends with the next command."""
        row, peer.row = peer.row, {}
        if "step" in row:
            self._note("push", row)
