"""The plain engine: drives `simstrag.engine.rules` in simulated time, in Python alone.

It computes by `Timing` when each thing will end, and tells the rules then.  Its results are those
of the native engine, to the last bit.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Array, Floats, Ints
from simstrag.contract import Hints, Plan, View
from simstrag.engine.agenda import Agenda
from simstrag.engine.bookkeeping import Accounts
from simstrag.engine.kernel import Stop, Truth
from simstrag.engine.messages import (
    Ask,
    CallOff,
    CollectiveEnded,
    Decision,
    Fact,
    Finished,
    JobEnded,
    Lost,
    Push,
    PushEnded,
    PushSum,
    Reduction,
    Save,
    Serve,
    Start,
    StepEnded,
    SumArrived,
    Update,
    Wake,
)  # fmt: skip
from simstrag.engine.recorder import Recorder
from simstrag.engine.rule_state import Limits
from simstrag.engine.rules import Rules
from simstrag.learning.noise_scale import NoiseScale
from simstrag.timing.timing import Timing

__all__ = ["Plain"]


class _Saved(NamedTuple):
    """A checkpoint: what the ranks go on from, what views show, and which limits were reached."""

    plan: Plan
    version: int
    reviewed: tuple[int, int, float]
    learner: NoiseScale
    windows: dict[str, Array]
    reached: dict[str, float]


class Plain:
    """The state of one job, with the interface of `kernel.Kernel`."""

    def __init__(
        self,
        world_size: int,
        timing: Timing,
        plan: Plan,
        learner: NoiseScale,
        limits: Limits,
        recorder: Recorder,
        straggler_ratio: float,
    ) -> None:
        self.timing, self.recorder = timing, recorder
        self.rules = Rules(world_size, plan, learner, limits)
        self._agenda = Agenda(self.rules)
        self._accounts = Accounts(self.rules, recorder, timing.server.job, timing.beyond)
        self._straggler_ratio = straggler_ratio
        self._stop: Stop | None = None
        self._begun = False
        recorder.planned(plan, 0, 0.0)

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.rules.now

    @property
    def version(self) -> int:
        """Updates so far."""
        return self.rules.version

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self.rules.plan

    @property
    def holding(self) -> list[int]:
        """The ranks that hold a gradient, finished or not."""
        return [rank for rank, g in enumerate(self.rules.gradients) if g is not None]

    # -- the driver's side -------------------------------------------------------------------

    def advance(self, until: float = math.inf) -> Stop:
        """Go on to the next moment at which the driver must act; events at `until` included."""
        if not self._begun:
            self._begun = True
            self._carry_out(self.rules.begin())
        while self._stop is None:
            decisions = self._agenda.tell(until)
            if decisions is None:
                return Stop.STALLED if self._agenda.next == math.inf else Stop.HORIZON
            if decisions:
                self._carry_out(decisions)
        stop, self._stop = self._stop, None
        return stop

    def replan(self, plan: Plan) -> None:
        """Answer a review with a resolved plan; releases and starts follow within the action."""
        if plan is not self.plan:
            self.recorder.planned(plan, self.version, self.now)
        self._carry_out(self.rules.replan(plan))

    def view(self, hints: Hints, truth: Truth | None = None, refused: bool = False) -> View:
        """The facts that a policy may use now."""
        return self._accounts.view(hints, truth, refused)

    def pause(self, at: float) -> None:
        """Do nothing: the state is complete whenever `advance` returns."""

    def change_pause(self, plan: Plan) -> None:
        """Adopt the plan in force with another pause, between reviews."""
        self.recorder.planned(plan, self.version, self.now)
        self._carry_out(self.rules.change(plan))

    # -- failures and checkpoints (rules 19a to 19c) ------------------------------------------

    def fail(self, at: float, rank: int) -> None:
        """From `at` on no step and no push of a rank ends."""
        if self.rules.is_computing(rank):
            self._accounts.step(rank).finish = math.inf
        self.rules.failed.add(rank)

    def regroup(
        self, at: float, plan: Plan, lost: Sequence[int], back: Sequence[int], cost: float
    ) -> None:
        """From `at` on a plan without lost ranks, and with those that are back.

        cost: seconds that ranks which start now pause more.
        """
        if plan is not self.plan:
            self.recorder.planned(plan, self.version, at)
        self._carry_out(self.rules.regroup(at, plan, lost, back, cost))

    def halt(self, at: float) -> None:
        """All ranks stop, and lose what is under way."""
        self._agenda.clear()
        self._carry_out(self.rules.halt(at))

    def save(self) -> object:
        """A checkpoint of the present state, for `restart`."""
        rules, accounts = self.rules, self._accounts
        return _Saved(
            rules.plan, rules.version, rules.reviewed, copy.copy(rules.learner), accounts.windows,
            accounts.reached,
        )  # fmt: skip

    def mark(self, version: float, time: float) -> None:
        """The next checkpoint is due at the first update at or past a version or a time."""
        self.rules.marks = version, time

    def saved(self, cost: float) -> None:
        """Go on after `Stop.CHECKPOINT`; what the update lets go starts so much later."""
        self._carry_out(self.rules.saved(cost))

    def restart(self, at: float, saved: object) -> None:
        """All ranks start anew from a checkpoint at `at`, after `halt`."""
        assert isinstance(saved, _Saved)
        vars(self.rules.learner).update(vars(saved.learner) | {"lost": self.rules.learner.lost})
        self._accounts.restore(saved.windows, saved.reached)
        if saved.plan is not self.plan:
            self.recorder.planned(saved.plan, saved.version, at)
        self._carry_out(self.rules.restart(at, saved.plan, saved.version, saved.reviewed))

    def retime(self, at: float, timing: Timing) -> None:
        """From `at` on, another timing with other constant slowdowns (rule 8a)."""
        old, self.timing = self.timing, timing
        self._accounts.job_seconds = timing.server.job
        self._agenda.move(lambda fact, end: self._retimed(fact, end, at, old))

    def _retimed(self, fact: Fact, end: float, at: float, old: Timing) -> float:
        """When a fact comes that was to come at `end`."""
        new, accounts = self.timing, self._accounts

        def net(*ranks: int) -> float:
            return new.slowest_net(ranks, False).values[0] / old.slowest_net(ranks, False).values[0]

        def moved(end: float, ratio: float) -> float:
            return end if ratio == 1.0 or end <= at else at + (end - at) * ratio

        def stream(end: float, begins: float, was: float, ratio: float) -> float:
            if end <= was or (begins == was and ratio == 1.0):
                return end
            return begins + (end - was) * ratio

        match fact:
            case StepEnded(rank):
                step = accounts.step(rank)
                got, was = step.got, max(step.begun, at)
                amp, puller, relay = step.start.amp, step.start.puller, step.start.relay
                ratio = new.stretch(rank, amp).values[0] / old.stretch(rank, amp).values[0]
                if step.relayed > at and puller is not None and relay is not None:
                    relayed, own = moved(step.relayed, net(relay)), net(puller)
                    if relayed != step.relayed or own != 1.0:
                        step.got = relayed + (got - step.relayed) * own
                    step.relayed = relayed
                elif got > at and puller is not None:
                    step.got = moved(got, net(puller))
                if step.got != got:
                    step.begun = step.got + (step.begun - got)
                begins = max(step.begun, at)
                if step.streams is not None and end < math.inf:
                    host = new.launching(rank, amp).values[0] / old.launching(rank, amp).values[0]
                    ends = zip(step.streams, (host, ratio), strict=True)
                    launched, computed = (stream(e, begins, was, by) for e, by in ends)
                    step.streams = launched, computed
                    step.finish = max(step.streams)
                elif end > at and (step.got != got or ratio != 1.0):
                    step.finish = begins + (end - was) * ratio
                return step.finish
            case PushEnded(rank):
                step = accounts.step(rank)
                later = moved(end, net(rank))
                if later != end:
                    step.pushed = later - step.sent
                return later
            case CollectiveEnded(number):
                later = moved(end, net(*self.rules.members(number)))
                accounts.busy[number] += later - end
                return later
            case SumArrived(leader, closing):
                later = moved(end, net(leader))
                accounts.busy[closing] += later - end
                return later
            case JobEnded():
                service = old.server.job
                later = moved(end, new.server.job / service if service else 1.0)
                for number in self.rules.in_service:
                    accounts.busy[number] += later - end
                return later
        return end

    def usage(self, at: float) -> tuple[Floats, ...]:
        """Usage of each rank; see `kernel.Kernel.usage`."""
        return self._accounts.usage(at, self._agenda.collectives)

    @property
    def applied(self) -> tuple[int, float]:
        """Samples and progress so far; 0 where progress is unknown."""
        learner = self.rules.learner
        return learner.samples, learner.progress or 0.0

    @property
    def started_by_rank(self) -> Ints:
        """Steps that each rank has started so far."""
        return np.array(self.rules.steps)

    @property
    def applied_by_rank(self) -> Ints:
        """Gradients of each rank so far."""
        return self._accounts.applied

    @property
    def next_event(self) -> float:
        """Instant of the next event; infinity without one."""
        return self._agenda.next

    def truth(self) -> Floats:
        """Seconds of each rank's noise-free full-precision step started now."""
        steps = enumerate(self.rules.steps)
        return np.array([self.timing.noise_free(rank, k, self.now) for rank, k in steps])

    def end(self) -> None:
        """The run is over: account for what is in flight, and hand all totals over."""
        self._accounts.end()

    # -- decisions and when they end ---------------------------------------------------------

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        accounts, timing, now, later = self._accounts, self.timing, self.now, self._agenda.add
        loaded = self.rules.uses_server
        for decision in decisions:
            match decision:
                case Start():
                    self._start(decision, loaded)
                case Wake(time, fact):
                    later(time, fact)
                case Push(rank):
                    end, step = timing.push(rank, now, loaded), accounts.step(rank)
                    step.sent, step.pushed = now, end - now
                    later(end, PushEnded(*decision))
                case CallOff(rank):
                    accounts.call_off(rank)
                case Reduction(number, among=among, fragments=fragments):
                    end = timing.reduce(among, now, loaded, fragments)
                    accounts.busy[number] = end - now
                    later(end, CollectiveEnded(number))
                case PushSum(leader, closing):
                    end = timing.push(leader, now, loaded)
                    accounts.busy[closing] += end - now
                    later(end, SumArrived(leader, closing))
                case Serve(job, closings, union):
                    end = timing.serve(now, union, loaded)
                    for closing in closings:
                        accounts.busy[closing] += end - now
                    later(end, JobEnded(job))
                case Lost():
                    accounts.lose(decision)
                case Update():
                    accounts.update(decision)
                    self._judge()
                case Save():
                    self._stop = Stop.CHECKPOINT
                case Ask():
                    self._stop = Stop.REVIEW
                case Finished():
                    self._stop = Stop.DONE

    def _start(self, start: Start, loaded: bool) -> None:
        rank, timing, now, deadline = start.rank, self.timing, self.now, self.plan.deadline
        relayed = now if start.relay is None else timing.pull(start.relay, now, loaded)
        got = now if start.puller is None else timing.pull(start.puller, relayed, loaded)
        begin = got + timing.step.amp_switch if start.switches else got
        pause = begin + start.pause - begin
        begin += start.pause
        share, samples, part = start.samples / self.rules.learner.batch, start.samples, 1.0
        if deadline is None:
            finish = timing.compute(rank, start.step, begin, start.amp, share, loaded)
        else:
            finish, done = timing.cut(rank, start.step, begin, start.amp, share, deadline, loaded)
            part = done / timing.step.microbatches
            if done < timing.step.microbatches:
                samples = max(samples * done // timing.step.microbatches, 1)  # rule 6a
        if rank in self.rules.failed:
            finish = math.inf
        step = self._accounts.begin(start, samples, got, begin, finish, pause, relayed)
        if timing.step.overlaps and rank not in timing.contention.durations:
            step.streams = timing.streams(rank, start.step, begin, start.amp, share, loaded, part)
        self._agenda.add(finish, StepEnded(rank, start.step, samples))

    def _judge(self) -> None:
        """Suspects against truth (rule 27)."""
        if not self.plan.judges:
            return
        suspects, counts = set(self.plan.suspected.tolist()), self._accounts.counts
        clean = {
            rank: self.timing.noise_free(
                rank, held[-1].start.step, self.now if self.rules.is_out(rank) else held[-1].begun
            )
            for rank, held in enumerate(self._accounts.held)
            if held
        }
        limit = self._straggler_ratio * statistics.median(clean.values())
        stragglers = {rank for rank, seconds in clean.items() if seconds > limit}
        counts["hits"] += len(suspects & stragglers)
        counts["false_alarms"] += len(suspects - stragglers)
        counts["misses"] += len(stragglers - suspects)
