"""The driver of the rules for real training: told what has happened instead of computing it.

`simstrag.engine.rules` decides what makes an update, how stale and how heavy its gradients are, who
starts next and when the policy is asked.  Nothing here does I/O or reads a clock, so a recorded run
can be told again, and the reference engine can judge it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag import policies
from simstrag.engine.accounts import Accounts
from simstrag.engine.messages import (
    Ask,
    CallOff,
    CollectiveEnded,
    Decision,
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
from simstrag.engine.plain import Agenda
from simstrag.engine.recorder import Recorder
from simstrag.engine.rules import Limits, Rules, State
from simstrag.errors import NobodyLeft, PlanError
from simstrag.learning.noise_scale import NoiseScale
from simstrag.plan import Plan, Precision, Review
from simstrag.policy import Hints, Policy, View
from simstrag.quorum import Quorum

__all__ = ["Facts", "Live", "Lost", "Reduction", "Start", "Update"]

Floats = npt.NDArray[np.float64]

NEVER_OVER = Limits(updates=1 << 62)
"""A real run ends when its training loop does."""

News = Start | Update | Lost | Reduction


@dataclass(frozen=True)
class Facts:
    """From where another `Live` can go on: the plan in force, counts and windows of the views.

    What ranks are at when it is made is not in it: those whom the plan names begin anew.
    """

    plan: Plan
    version: int
    samples: int
    now: float
    reviewed: tuple[int, int, float]
    asked: int
    started: npt.NDArray[np.int64]
    lost: frozenset[int]
    windows: dict[str, npt.NDArray[Any]]


class Live:
    """One policy and the bookkeeping of one job.

    batch: samples of a gradient at a share of 1.  name: of the policy, in messages.  facts: where
    to go on from; the policy is not asked first then.  recorder: is handed the rows of the run.
    note: is called with what it is told (a word, then values) and with plans, for a record from
    which all can be told again.  fixed: whether those who compute for a quorum cannot be filed in
    another one any more, their gradients being summed up on the way: then ranks that are back wait
    until all such steps are, and the new plan begins with all of them.  reduced: whether there is
    reduced precision; without it plans are carried out in full, and `wanted_reduced` says whether
    one asked for it.  Seconds on one clock that never goes back.  Raises `PlanError` for a plan
    that cannot be.

    >>> live = Live(policies.load("asgd"), world_size=2, batch=32)
    >>> [start.rank for start in live.news()]
    [0, 1]
    >>> live.done(rank=1, at=0.5, seconds=0.4)
    >>> update, start = live.news()
    >>> update.gradients[0].rank, start.version
    (1, 1)
    """

    def __init__(
        self,
        policy: Policy,
        world_size: int,
        batch: int,
        hints: Hints | None = None,
        *,
        name: str = "",
        facts: Facts | None = None,
        recorder: Recorder | None = None,
        note: Callable[..., None] | None = None,
        fixed: Callable[[Quorum], bool] | None = None,
        reduced: bool = True,
    ) -> None:
        self.policy, self.name = policy, name or type(policy).__name__.lower()
        self.hints = hints or Hints(batch=batch)
        self.asked = 0 if facts is None else facts.asked
        self._note = note or (lambda *_: None)
        self._fixed = fixed or (lambda _: False)
        self._reduced, self.wanted_reduced = reduced, False
        self._next: Plan | None = None
        self.lost: frozenset[int] = frozenset() if facts is None else facts.lost
        self._batch, self._workers = batch, world_size
        self._answer: Plan | None = None
        noise_scale = self.hints.noise_scale
        self.learner = NoiseScale(batch, noise_scale or 1.0)
        if noise_scale is None:
            self.learner.lost = "nobody knows the noise scale of this model"
        if facts is None:
            plan = self._ask(View(world_size, hints=self.hints, noise_scale=noise_scale))
        else:
            plan = facts.plan
        self.plan = plan
        self._recorder = recorder
        self._rules = Rules(world_size, self._masked(plan), self.learner, NEVER_OVER)
        self._accounts = Accounts(self._rules, recorder)
        self._agenda = Agenda(self._rules)
        self._open: dict[int, tuple[int, float]] = {}  # closing and beginning of each reduction
        self._asks = False
        self._news: list[News] = []
        self._record_plan()
        if facts is not None:
            self._resume(facts)
        self._carry_out(self._rules.begin())
        self._go(self.now)

    @property
    def now(self) -> float:
        """The time of what was told last."""
        return self._rules.now

    @property
    def version(self) -> int:
        """Updates so far."""
        return self._rules.version

    @property
    def samples(self) -> int:
        """Samples applied so far."""
        return self.learner.samples

    @property
    def expiry(self) -> float:
        """When the next window is over, unless something happens before; infinity without one."""
        return self._agenda.next

    # -- what has happened -------------------------------------------------------------------

    def done(self, rank: int, at: float, seconds: float) -> None:
        """The gradient of a rank is here; computing it took so long."""
        at = max(at, self.now)
        self._note("done", at, rank, seconds)
        self._end_step(rank, at - seconds, at)
        self._go(at)

    def reduced(self, number: int, at: float) -> None:
        """The collective of a `Reduction` has ended."""
        at = max(at, self.now)
        self._note("reduced", at, number)
        self._end_reduction(number, at)

    def wait(self, at: float) -> None:
        """Nothing has happened until then, but windows may be over."""
        self._note("wait", max(at, self.now))
        self._go(max(at, self.now))

    def gone(self, rank: int, at: float) -> None:
        """A rank will never be heard of again: whoever waits for it waits for the others only.

        Raises `NobodyLeft` where it is the last of the plan.
        """
        self._note("gone", max(at, self.now), rank)
        self._go(max(at, self.now))
        self.lost |= {rank}
        self._carry_out(self._rules.change(self._masked(self.plan)))
        self._record_plan()
        self._go(self.now)

    def lockstep(self, start: float, seconds: Floats, end: float | None = None) -> None:
        """One step of a plan in which everybody waits for everybody: begun together at `start`.

        It is no news to anybody.  seconds: shape (N,), of each rank's computing.  end: when its
        update was over; without it, when the last gradient was there.
        """
        news, self._news = self._news, []
        begun = max(start, self.now)
        until = begun + float(seconds.max())
        for rank, own in enumerate(seconds.tolist()):
            self._end_step(rank, begun, begun + own)
        self._go(until)
        (number,) = self._open
        self._end_reduction(number, max(end or until, until))
        self._news = news

    def news(self) -> list[News]:
        """What has become of it since last asked; updates in order of version, each before the
        starts from its parameters."""
        news, self._news = self._news, []
        return news

    def facts(self) -> Facts:
        """What another `Live` needs to go on from here."""
        started = np.array(self._rules.steps)
        started[list(self._computing())] -= 1  # nothing will come of these
        return Facts(
            self.plan, self.version, self.samples, self.now, self._rules.reviewed, self.asked,
            started, self.lost, self._accounts.windows,
        )  # fmt: skip

    def end(self) -> None:
        """The run is over: the recorder gets what is left, and the totals."""
        self._accounts.end()

    # -- the rules ---------------------------------------------------------------------------

    def _resume(self, facts: Facts) -> None:
        steps = facts.started.tolist()
        self._rules.resume(facts.version, facts.now, facts.reviewed, steps)
        self.learner.samples = facts.samples
        self._accounts.windows = facts.windows

    def _end_step(self, rank: int, begun: float, end: float) -> None:
        """A step computed from `begun` on, if not from its pull on, and ends then."""
        step = self._accounts.step(rank)
        step.got = step.begun = max(begun, step.pulled)
        step.finish = end
        self._agenda.add(end, StepEnded(rank, step.start.step, step.samples))

    def _end_reduction(self, number: int, at: float) -> None:
        closing, begun = self._open.pop(number)
        self._accounts.busy[closing] = at - begun
        self._agenda.add(at, CollectiveEnded(closing))
        self._go(at)

    def _go(self, until: float) -> None:
        """Let everything happen up to then, plans included."""
        while (decisions := self._agenda.tell(until)) is not None:
            self._carry_out(decisions)
            while self._asks:
                self._asks = False
                self.plan = self._decided()
                decisions = self._rules.replan(self._masked(self.plan))
                self._record_plan()
                self._carry_out(decisions)
        self._rules.now = until

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        """Real communication with a server takes no time of its own here."""
        accounts, now = self._accounts, self.now
        for decision in decisions:
            match decision:
                case Start():
                    accounts.begin(decision, decision.samples, now, now, math.inf)
                    self._news.append(decision)
                case Push(rank, step):
                    self._agenda.add(now, PushEnded(rank, step))
                case CallOff(rank):
                    accounts.call_off(rank)
                case Reduction():
                    number = max(self._open, default=-1) + 1
                    self._open[number] = decision.number, now
                    self._news.append(decision._replace(number=number))
                case PushSum(leader, closing):
                    self._agenda.add(now, SumArrived(leader, closing))
                case Serve(job):
                    self._agenda.add(now, JobEnded(job))
                case Wake(time, fact):
                    self._agenda.add(time, fact)
                case Lost():
                    accounts.lose(decision)
                    self._news.append(decision)
                case Update():
                    accounts.update(decision)
                    self._news.append(decision)
                case Ask():
                    self._asks = True

    def _computing(self) -> set[int]:
        work = enumerate(self._rules.gradients)
        return {rank for rank, g in work if g is not None and g.state is State.COMPUTING}

    def _record_plan(self) -> None:
        if self._recorder is not None:
            self._recorder.planned(self._rules.plan, self.version, self.now)

    # -- plans -------------------------------------------------------------------------------

    def _decided(self) -> Plan:
        """The plan from now on; one with other quorums has to wait for steps that are fixed."""
        if self._next is None:
            plan = self._ask(self._accounts.view(self.hints))
            if plan.quorums == self.plan.quorums:
                return plan
            self._next = plan
        else:
            self.asked += 1
        computing = self._computing()
        fixed = tuple(
            quorum
            for quorum in self.plan.quorums
            if self._fixed(quorum) and not computing.isdisjoint(quorum.members)
        )
        if fixed:
            plan = replace(self.plan, quorums=fixed, review=Review(updates=1))
            plan = plan.resolved(self._workers)
        else:
            plan, self._next = self._next, None
        self._note("plan", self.asked, self.version, plan)
        return plan

    def _ask(self, view: View) -> Plan:
        """What the policy answers, resolved; the same answer is the same plan."""
        self.asked += 1
        answer = policies.ask(self.policy, view, self.name)
        view.close()
        if answer is self._answer:
            return self.plan
        try:
            plan = answer.resolved(self._workers)
            plan.sizes(self._batch, self._workers)
            if not self._reduced and any(plan.in_amp):
                self.wanted_reduced = True
                plan = replace(plan, precision=Precision.FULL).resolved(self._workers)
        except PlanError as error:
            raise PlanError(f"policy {self.name}: {error}") from None
        self._answer = answer
        self._note("plan", self.asked, view.version, plan)
        return plan

    def _masked(self, plan: Plan) -> Plan:
        """The plan without those that are gone; whoever is left of a quorum still makes updates."""
        if not self.lost:
            return plan
        quorums = []
        for quorum in plan.quorums:
            left = tuple(rank for rank in quorum.members if rank not in self.lost)
            riders = [pair for pair in quorum.riders if pair[0] not in self.lost]
            if not left:  # then its riders wait for each other
                left, riders = tuple(child for child, _ in riders), []
            if left:
                count = None if quorum.count is None else min(quorum.count, len(left))
                kept = tuple((c, parent if parent in left else left[0]) for c, parent in riders)
                quorums.append(replace(quorum, ranks=left, count=count, riders=kept))
        if not quorums:
            raise NobodyLeft(f"policy {self.name}: all ranks of its plan are gone")
        return replace(plan, quorums=tuple(quorums)).resolved(self._workers)
