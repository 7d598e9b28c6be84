"""The plain engine: drives `simstrag.engine.rules` in simulated time, in Python alone.

It works out by `Timing` when each thing will end, and tells the rules then.  Its results are those
of the native engine, to the last bit.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from simstrag.engine.accounts import Accounts, StepAccount
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
    Serve,
    Start,
    StepEnded,
    SumArrived,
    Update,
    Wake,
)  # fmt: skip
from simstrag.engine.recorder import Recorder
from simstrag.engine.rules import Limits, Rules
from simstrag.learning.noise_scale import NoiseScale
from simstrag.plan import Plan
from simstrag.quorum import Via
from simstrag.timing.timing import Timing
from simstrag.view import Hints, View

__all__ = ["Agenda", "Plain"]


class Agenda:
    """The facts that are still to be told, by (time, order); those of equal order as they came."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._heap: list[tuple[float, tuple[int, int], int, Fact]] = []
        self._count = itertools.count()

    def add(self, time: float, fact: Fact) -> None:
        """A fact is to be told at a time."""
        heapq.heappush(self._heap, (time, fact.order, next(self._count), fact))

    @property
    def next(self) -> tuple[float, Fact] | None:
        """The next fact that still matters, and its time; None where nothing can happen."""
        while self._heap:
            time, _, _, fact = self._heap[0]
            if self._rules.expects(fact, time):
                return time, fact
            heapq.heappop(self._heap)
        return None

    def pop(self) -> None:
        """The next fact is told."""
        heapq.heappop(self._heap)


class Plain:
    """The state of one job between two decisions of the outer world, as `kernel.Kernel`."""

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
        self._accounts = Accounts(self.rules, recorder, timing.server.job)
        self._straggler_ratio = straggler_ratio
        self._stop: Stop | None = None
        self._round: int | None = None  # the closing whose collective has just ended
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
        return [rank for rank, gradient in enumerate(self.rules.work) if gradient is not None]

    # -- the driver's side -------------------------------------------------------------------

    def advance(self, until: float = math.inf) -> Stop:
        """Go on to the next moment at which the driver must act; events at `until` included."""
        if not self._begun:
            self._begun = True
            self._carry_out(self.rules.begin())
        while self._stop is None:
            coming = self._agenda.next
            if coming is None:
                return Stop.STALLED
            time, fact = coming
            if time > until:
                return Stop.HORIZON
            self._agenda.pop()
            decisions = self.rules.receive(fact, time)
            if isinstance(fact, PushEnded):
                self._accounts.end_push(fact.rank)
            self._round = fact.closing if isinstance(fact, CollectiveEnded) else None
            self._carry_out(decisions)
        stop, self._stop = self._stop, None
        return stop

    def replan(self, plan: Plan) -> None:
        """Answer a review with a resolved plan; releases and starts follow within the action."""
        if plan is not self.plan:
            self.recorder.planned(plan, self.version, self.now)
        self._carry_out(self.rules.replan(plan))

    def view(self, hints: Hints, truth: Truth | None = None) -> View:
        """The facts that a policy may use now."""
        return self._accounts.view(hints, truth)

    def truth(self) -> npt.NDArray[np.float64]:
        """Seconds of each rank's noise-free full-precision step started now."""
        steps = enumerate(self.rules.steps)
        return np.array([self.timing.noise_free(rank, k, self.now) for rank, k in steps])

    def end(self) -> None:
        """The run is over: account for what is in flight, and hand all totals over."""
        for rank in range(self.rules.workers):
            self._close(rank)
        self._accounts.end()

    # -- decisions and when they end ---------------------------------------------------------

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        accounts, timing, now, later = self._accounts, self.timing, self.now, self._agenda.add
        loaded = any(quorum.via is not Via.ALLREDUCE for quorum in self.plan.quorums)
        for decision in decisions:
            match decision:
                case Start():
                    self._start(decision, loaded)
                case Push(rank, step):
                    accounts.step(rank).is_pushing = True
                    later(timing.push(rank, now, loaded), PushEnded(rank, step))
                case CallOff(rank):
                    accounts.end_push(rank)
                case Reduction(number, members):
                    end = timing.reduce(members, now, loaded)
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
                case Wake(time, fact):
                    later(time, fact)
                case Lost():
                    accounts.lose(decision)
                case Update():
                    accounts.update(decision)
                    self._judge()
                case Ask():
                    self._stop = Stop.REVIEW
                case Finished():
                    self._stop = Stop.DONE

    def _start(self, start: Start, loaded: bool) -> None:
        rank, timing, now, deadline = start.rank, self.timing, self.now, self.plan.deadline
        if start.private and self._round is not None:  # its group goes on with its own model
            self._accounts.step(rank).busy = self._accounts.busy[self._round]
        self._close(rank)
        got = now if start.puller is None else timing.pull(start.puller, now, loaded)
        begin = got + timing.step.amp_switch if start.switches else got
        learner, parts = self.rules.learner, timing.step.microbatches
        share, done = start.samples / learner.batch, parts
        if deadline is None:
            finish = timing.compute(rank, start.step, begin, start.amp, share, loaded)
        else:
            finish, done = timing.cut(rank, start.step, begin, start.amp, share, deadline, loaded)
        samples = start.samples if done == parts else max(start.samples * done // parts, 1)
        step = StepAccount(
            start.step, start.version, learner.samples, start.amp, start.samples, samples, now, got,
            begin, finish, finish,
        )  # fmt: skip
        self._accounts.begin(start, step)
        self._agenda.add(finish, StepEnded(rank, start.step, samples))

    def _close(self, rank: int) -> None:
        """Account for a rank's time since its last pull, and for the trace's end (rule 8)."""
        if self._accounts.close(rank):
            s = self._accounts.step(rank)
            ended = min(s.ended, self.now)
            self._accounts.beyond += self.timing.beyond(rank, s.step, s.start, ended)

    def _judge(self) -> None:
        """Suspects against truth (rule 27)."""
        suspects, counts = self.plan.suspects, self._accounts.counts
        if suspects is None:
            return
        clean = {
            rank: self.timing.noise_free(rank, step.step, step.start)
            for rank, step in enumerate(self._accounts.steps)
            if step is not None
        }
        limit = self._straggler_ratio * statistics.median(clean.values())
        stragglers = {rank for rank, seconds in clean.items() if seconds > limit}
        counts["hits"] += len(suspects & stragglers)
        counts["false_alarms"] += len(suspects - stragglers)
        counts["misses"] += len(stragglers - suspects)
