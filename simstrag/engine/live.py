"""The driver of `simstrag.engine.rules` for real ranks: it learns what has happened, and when.

Its caller reports gradients and collectives as they end, and carries out the news.  Nothing here
does I/O or reads a clock, so that a recorded run can be replayed and checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from simstrag import policies
from simstrag.arrays import Array, Floats, Ints
from simstrag.contract import Hints, Plan, Policy, Precision, Quorum, Review, View
from simstrag.engine.agenda import Agenda
from simstrag.engine.bookkeeping import Accounts
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
from simstrag.engine.recorder import Recorder
from simstrag.engine.rule_state import Limits
from simstrag.engine.rules import Rules
from simstrag.errors import NobodyLeft, PlanError
from simstrag.learning.noise_scale import NoiseScale, unmodelled
from simstrag.learning.noise_scale_estimate import NoiseAverages, NormPair, is_measured

__all__ = ["Facts", "Live", "Lost", "Reduction", "Start", "Update"]


NOTHING = NoiseAverages()
UNKNOWN = "there is no estimate of the gradient noise scale"

NEVER_OVER = Limits(updates=1 << 62)
"""A real run ends when its training loop does."""

News = Start | Update | Lost | Reduction


@dataclass(frozen=True)
class Facts:
    """The state from which another `Live` can go on, with ranks that all begin anew.

    started: steps that each rank has started, less those under way.
    windows: the steps in views.
    noise: of gradients, as measured so far.
    """

    plan: Plan
    version: int
    samples: int
    now: float
    reviewed: tuple[int, int, float]
    asked: int
    started: Ints
    windows: dict[str, Array]
    noise: NoiseAverages = NOTHING


class Live:
    """One policy at work on one real job.

    batch: samples of a gradient at a share of 1.
    name: the policy's name in messages.
    facts: the state to go on from; the policy is not asked first then.
    recorder: takes the rows of the run.
    note: called with all that happens (a word, then values) and with plans, for a journal from
        which the run can be replayed.
    fixed: whether the steps for a quorum must end in it, because a collective sums gradients while
        they are computed.  A new plan with other quorums then waits until all such steps are over,
        and ranks that are ready wait with it.
    noise_scale: with which progress counts up to the first estimate; by default that of the hints.
    reduced: whether there is reduced precision; without it plans are carried out in full, and
        `wanted_reduced` says whether one asked for it.

    Times are seconds on one clock that never goes back.  Raises `PlanError` for an impossible plan.

    >>> live = Live(policies.load("asgd"), world_size=2, batch=32)
    >>> [start.rank for start in live.news()]
    [0, 1]
    >>> live.finish_step(rank=1, at=0.5, seconds=0.4)
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
        noise_scale: float | None = None,
        reduced: bool = True,
    ) -> None:
        self.policy, self.name = policy, name or type(policy).__name__.lower()
        self.hints = hints or Hints(batch=batch)
        self.asked = 0 if facts is None else facts.asked
        self._note = note or (lambda *_: None)
        self._fixed = fixed or (lambda _: False)
        self._reduced, self.wanted_reduced = reduced, False
        self._next: Plan | None = None
        self.lost: frozenset[int] = frozenset()
        self._batch, self._workers = batch, world_size
        self._answer: Plan | None = None
        self.noise = NoiseAverages() if facts is None else facts.noise
        known = self.hints.noise_scale if noise_scale is None else noise_scale
        self.learner = NoiseScale(batch, 1.0 if known is None else known)
        if facts is None:
            view = View(world_size, hints=self.hints, noise_scale=self.hints.noise_scale)
            plan = self._ask(view)
        else:
            plan = facts.plan
        self.plan = plan
        self._recorder = recorder
        self._rules = Rules(world_size, plan, self.learner, NEVER_OVER)
        if known is None:
            self.learner.lost = self.learner.lost or UNKNOWN
        self._accounts = Accounts(self._rules, recorder)
        self._agenda = Agenda(self._rules)
        self._open: dict[int, tuple[int, float]] = {}  # closing and beginning of each reduction
        self._asks = False
        self._news: list[News] = []
        self._record_plan()
        if facts is not None:
            steps = facts.started.tolist()
            self._rules.resume(facts.version, facts.now, facts.reviewed, steps)
            self.learner.begin_at(facts.samples)
            self._accounts.windows = facts.windows
        self._carry_out(self._rules.begin())
        self._advance(self.now)

    @property
    def now(self) -> float:
        """The time of the last event."""
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
        """When the next window expires, unless something happens before; infinity without one."""
        return self._agenda.next

    def measures(self, applied: int = 0) -> bool:
        """Whether the norms of gradients that begin now are wanted.

        applied: samples of an update just made; for its gradients, if they began before it.
        """
        number = (self.samples - applied) // (self._workers * self._batch)
        return self._workers > 1 and is_measured(number) and unmodelled(self.plan) is None

    def steps_left(self, rank: int) -> int:
        """Steps that a rank's contribution needs after its present one, under the plan in force."""
        return self._rules.steps_left(rank)

    # -- what has happened -------------------------------------------------------------------

    def finish_step(self, rank: int, at: float, seconds: float) -> None:
        """A rank has finished a gradient, after so many seconds of computing."""
        at = max(at, self.now)
        self._note("done", at, rank, seconds)
        self._end_step(rank, at - seconds, at)
        self._advance(at)

    def finish_reduction(self, number: int, at: float) -> None:
        """The collective of a `Reduction` has ended."""
        at = max(at, self.now)
        self._note("reduced", at, number)
        self._end_reduction(number, at)

    def wait(self, at: float) -> None:
        """Nothing has happened up to now, but windows may have expired."""
        self._note("wait", max(at, self.now))
        self._advance(max(at, self.now))

    def lose_rank(self, rank: int, at: float) -> None:
        """A rank is lost for good: quorums go on without it.

        Raises `NobodyLeft` where it is the last of the plan.
        """
        self._note("gone", max(at, self.now), rank)
        self._advance(max(at, self.now))
        self.lost |= {rank}
        self._carry_out(self._rules.change(self._without_lost(self.plan)))
        self._record_plan()
        self._advance(self.now)

    def measure(self, pair: NormPair) -> None:
        """The squared norms of gradients of a finished update are known."""
        self._note("norms", self.samples, *pair)
        self.noise = self.noise.with_pair(pair, self.samples, self._workers * self._batch)
        if self.noise.scale is not None:
            self.learner.rescale(self.noise.scale)

    def lockstep(self, start: float, seconds: Floats, end: float | None = None) -> None:
        """One step of all ranks under a plan whose updates wait for all of them; it makes no news.

        start: when all began.  seconds: computing of each rank, shape (N,).
        end: when the update was over; by default, when the last gradient was finished.
        """
        news, self._news = self._news, []
        begun = max(start, self.now)
        until = begun + float(seconds.max())
        for rank, own in enumerate(seconds.tolist()):
            self._end_step(rank, begun, begun + own)
        self._advance(until)
        (number,) = self._open
        self._end_reduction(number, max(end or until, until))
        self._news = news

    def news(self) -> list[News]:
        """What has followed since the last call; an update comes before the starts from it."""
        news, self._news = self._news, []
        return news

    def facts(self) -> Facts:
        """The facts from which another `Live` goes on."""
        started = np.array(self._rules.steps)
        started[list(self._computing())] -= 1  # these ranks begin anew
        return Facts(
            self.plan, self.version, self.samples, self.now, self._rules.reviewed, self.asked,
            started, self._accounts.windows, self.noise,
        )  # fmt: skip

    def end(self) -> None:
        """The run is over: the recorder gets what is left, and the totals."""
        self._accounts.end()

    # -- facts and decisions -----------------------------------------------------------------

    def _end_step(self, rank: int, begun: float, end: float) -> None:
        """The last step of a rank has computed from `begun`, or from its pull if that is later."""
        step = self._accounts.step(rank)
        step.begun = max(begun, step.pulled)
        step.got = max(step.begun - step.paused, step.pulled)
        step.finish = end
        self._agenda.add(end, StepEnded(rank, step.start.step, step.samples))

    def _end_reduction(self, number: int, at: float) -> None:
        closing, begun = self._open.pop(number)
        self._accounts.busy[closing] = at - begun
        self._agenda.add(at, CollectiveEnded(closing))
        self._advance(at)

    def _advance(self, until: float) -> None:
        """Tell the rules all that happens up to a time, and answer when they ask the policy."""
        while (decisions := self._agenda.tell(until)) is not None:
            if decisions:
                self._carry_out(decisions)
            while self._asks:
                self._asks = False
                self.plan = self._next_plan()
                decisions = self._rules.replan(self._without_lost(self.plan))
                self._record_plan()
                self._carry_out(decisions)
        self._rules.now = until

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        """Carry out decisions; what the server does in between takes no time of its own here."""
        accounts, now = self._accounts, self.now
        for decision in decisions:
            match decision:
                case Start():
                    samples, pause = decision.samples, decision.pause
                    accounts.begin(decision, samples, now, now, math.inf, pause)
                    self._news.append(decision)
                case Push(rank):
                    accounts.step(rank).sent = now
                    self._agenda.add(now, PushEnded(*decision))
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
        return {rank for rank in range(self._workers) if self._rules.is_computing(rank)}

    def _record_plan(self) -> None:
        if self._recorder is not None:
            self._recorder.planned(self._rules.plan, self.version, self.now)

    # -- plans -------------------------------------------------------------------------------

    def _next_plan(self) -> Plan:
        """The plan from now on; one with other quorums waits until fixed steps are over."""
        if self._next is None:
            plan = self._ask(self._accounts.view(self.hints, noise_scale=self.noise.scale))
            if plan.quorums == self.plan.quorums:
                return plan
            self._next = plan
        else:
            self.asked += 1
        computing = self._computing() - self.lost
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
        """The policy's answer, resolved; the same object for the same answer."""
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

    def _without_lost(self, plan: Plan) -> Plan:
        """The plan without lost ranks. Raises `NobodyLeft` where none of its ranks is left."""
        if not self.lost:
            return plan
        left = plan.without(self.lost, self._workers)
        if left is None:
            raise NobodyLeft(f"policy {self.name}: all ranks of its plan are gone")
        return left
