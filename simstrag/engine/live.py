"""The engine's bookkeeping for real training: told what has happened instead of working it out.

A simulation knows when each step will end; a real run is told afterwards.  All else is the same
code: `simstrag.engine.kernel` decides what makes an update, how stale and how heavy its gradients
are,
who starts next and when the policy is asked.  Nothing here does I/O or reads a clock, so a recorded
run can be told again, and the reference engine can judge it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag import policies
from simstrag.engine.kernel import Kernel, Limits, Stop
from simstrag.engine.recorder import Recorder
from simstrag.errors import NobodyLeft, PlanError
from simstrag.learning.noise_scale import NoiseScale
from simstrag.plan import Plan, Precision, Review
from simstrag.policy import Hints, Policy, View
from simstrag.quorum import Quorum, Via
from simstrag.scenario.scenario import Scenario
from simstrag.view import LAZY

__all__ = ["Facts", "Gradient", "Live", "Lost", "Reduction", "Start", "Update"]

Floats = npt.NDArray[np.float64]

NEVER_OVER = Limits(updates=1 << 62)
"""A real run ends when its training loop does."""

WINDOWS = ("known", *(f"shown_{name}" for name in LAZY if name != "pending_since"))
"""What the views of a kernel are made of."""


class Start(NamedTuple):
    """A rank has the parameters of `version` and begins a step of so many samples.

    amp: in reduced precision.  private: on a model of its own that it has already.
    """

    rank: int
    step: int
    version: int
    amp: bool
    samples: int
    private: bool


class Gradient(NamedTuple):
    """A gradient in its update: computed from the parameters of `version`."""

    rank: int
    step: int
    version: int
    samples: int
    weight: float


class Update(NamedTuple):
    """The parameters become `version`; gradients in order of rank."""

    version: int
    gradients: tuple[Gradient, ...]


class Lost(NamedTuple):
    """A gradient that comes to nothing: `dropped`, or `aborted` before it was whole."""

    rank: int
    step: int
    fate: str


class Reduction(NamedTuple):
    """A collective begins; `Live.reduced` is told when closing `number` has ended.

    members: whose gradients are summed up, in order of rank.  riders: the others whose gradients
    go with those of a member.  average: it is models that are averaged.
    """

    number: int
    members: tuple[int, ...]
    riders: tuple[int, ...]
    via: Via
    average: bool


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
        self._heard = _Heard(recorder)
        scenario = Scenario(
            workers=world_size, updates=1, step={"compute": 1.0, "amp_ratio": 1.5},
            learner={"batch": batch, "noise_scale": self.hints.noise_scale or 1.0},
        )  # fmt: skip
        known = scenario.learner
        self.learner = NoiseScale(batch, known.noise_scale, known.c_tau)
        if self.hints.noise_scale is None:
            self.learner.lost = "nobody knows the noise scale of this model"
        if facts is None:
            noise_scale = self.hints.noise_scale
            plan = self._ask(View(world_size, hints=self.hints, noise_scale=noise_scale))
        else:
            plan = facts.plan
        self._kernel = Kernel(
            world_size, scenario.timing(0), self._masked(plan), self.learner, NEVER_OVER,
            self._heard, scenario.straggler_ratio, told=True,
        )  # fmt: skip
        self.plan = plan
        if facts is not None:
            self._resume(facts)
        self._started = self._kernel.memory.ranks["started"].copy()
        self._reducing: dict[int, int] = {}
        self._go(self.now)

    @property
    def now(self) -> float:
        """The time of what was told last."""
        return self._kernel.now

    @property
    def version(self) -> int:
        """Updates so far."""
        return self._kernel.version

    @property
    def samples(self) -> int:
        """Samples applied so far."""
        return int(self._kernel.memory.job["samples"])

    @property
    def expiry(self) -> float:
        """When the next window is over, unless something happens before; infinity without one."""
        memory = self._kernel.memory
        open_ = [
            memory.ranks[q["ready"]]["arrival"] + q["window"]
            for q in memory.quorums[: memory.job["quorum_count"]]
            if q["window"] < math.inf and q["ready"] >= 0
        ]
        return float(min(open_, default=math.inf))

    # -- what has happened -------------------------------------------------------------------

    def done(self, rank: int, at: float, seconds: float) -> None:
        """The gradient of a rank is here; computing it took so long."""
        at = max(at, self.now)
        self._note("done", at, rank, seconds)
        begun = max(at - seconds, float(self._kernel.memory.ranks[rank]["pulled"]))
        self._kernel.tell(rank, begun, at)
        self._go(at)

    def reduced(self, number: int, at: float) -> None:
        """The collective of a `Reduction` has ended."""
        at = max(at, self.now)
        self._note("reduced", at, number)
        self._kernel.reduced(self._reducing.pop(number), at)
        self._go(at)

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
        m = self._kernel.memory.job
        kept = {name: m[name].item() for name in REVIEWED}
        self._kernel.replan(self._masked(self.plan))
        for name, value in kept.items():
            m[name] = value
        self._go(self.now)

    def lockstep(self, start: float, seconds: Floats, end: float | None = None) -> None:
        """One step of a plan in which everybody waits for everybody: begun together at `start`.

        It is no news to anybody.  seconds: shape (N,), of each rank's computing.  end: when its
        update was over; without it, when the last gradient was there.
        """
        begun = max(start, self.now)
        for rank, own in enumerate(seconds.tolist()):
            self._kernel.tell(rank, begun, begun + own)
        until = begun + float(seconds.max())
        self._heard.listens = False
        self._advance(until)
        (closing,) = self._kernel.reducing
        end = max(end or until, until)
        self._kernel.reduced(closing, end)
        self._advance(end)
        self._heard.listens = True
        self._started[:] = self._kernel.memory.ranks["started"]

    def _advance(self, until: float) -> None:
        """As `_go`, but nobody hears of anything."""
        while self._kernel.advance(until) is Stop.REVIEW:
            self._review()
        self._kernel.memory.job["now"] = until
        self._kernel.hand_over()

    def news(self) -> list[News]:
        """What has become of it since last asked; updates in order of version, each before the
        starts from its parameters."""
        news, self._heard.news = self._heard.news, []
        return news

    def facts(self) -> Facts:
        """What another `Live` needs to go on from here."""
        memory = self._kernel.memory
        m = memory.job
        reviewed: Any = tuple(m[name].item() for name in REVIEWED)
        windows = {name: getattr(memory, name).copy() for name in WINDOWS}
        began = memory.ranks["state"] == COMPUTING  # of which nothing will come
        started = memory.ranks["started"] - began
        return Facts(
            self.plan, self.version, self.samples, self.now, reviewed, self.asked,
            started, self.lost, windows,
        )  # fmt: skip

    def end(self) -> None:
        """The run is over: the recorder gets what is left, and the totals."""
        self._kernel.end()

    # -- the kernel --------------------------------------------------------------------------

    def _resume(self, facts: Facts) -> None:
        memory = self._kernel.memory
        m = memory.job
        m["version"], m["samples"], m["now"] = facts.version, facts.samples, facts.now
        for name, value in zip(REVIEWED, facts.reviewed, strict=True):
            m[name] = value
        memory.ranks["started"] = facts.started
        for name, window in facts.windows.items():
            getattr(memory, name)[:] = window

    def _go(self, until: float) -> None:
        """Let everything happen up to then, plans included; note what it was."""
        kernel = self._kernel
        begun: list[Reduction] = []
        while kernel.advance(until) is Stop.REVIEW:
            begun += self._reductions()
            self._review()
        begun += self._reductions()
        kernel.memory.job["now"] = until
        kernel.hand_over()
        self._heard.news += begun
        self._note_starts()

    def _review(self) -> None:
        self.plan = self._decided()
        self._kernel.replan(self._masked(self.plan))

    def _reductions(self) -> list[Reduction]:
        """Those that have begun under the present plan, and were not told of yet."""
        kernel, begun = self._kernel, []
        for closing in kernel.reducing:
            if closing not in self._reducing.values():
                members, riders = kernel.aboard(closing)
                number = max(self._reducing, default=-1) + 1
                self._reducing[number] = closing
                via = tuple(Via)[kernel.memory.closings[closing]["via"]]
                begun.append(Reduction(number, members, riders, via, self.plan.average))
        return begun

    def _note_starts(self) -> None:
        ranks, news = self._kernel.memory.ranks, self._heard.news
        began = np.flatnonzero(ranks["started"] != self._started)
        if not len(began):
            return
        rows = ranks[began]
        columns = (rows[name].tolist() for name in STARTED)
        starts = [
            Start(rank, step, version, bool(amp), samples, kept > 0)
            for rank, step, version, amp, samples, kept in zip(
                began.tolist(), *columns, strict=True
            )
        ]
        self._started[began] = rows["started"]
        if len({start.version for start in starts}) > 1:
            news.sort(key=lambda each: each.version if isinstance(each, Update) else -1)
            for start in starts:
                later = [k for k, n in enumerate(news) if getattr(n, "version", -1) > start.version]
                news.insert(min(later, default=len(news)), start)
        else:
            news += starts

    # -- plans -------------------------------------------------------------------------------

    def _decided(self) -> Plan:
        """The plan from now on; one with other quorums has to wait for steps that are fixed."""
        if self._next is None:
            plan = self._ask(self._kernel.view(self.hints))
            if plan.quorums == self.plan.quorums:
                return plan
            self._next = plan
        else:
            self.asked += 1
        computing = self._kernel.memory.ranks["state"] == COMPUTING
        fixed = tuple(
            quorum
            for quorum in self.plan.quorums
            if self._fixed(quorum) and computing[list(quorum.members)].any()
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


APPLIED, DROPPED, ABORTED = range(3)
COMPUTING = 1
REVIEWED = ("reviewed_updates", "reviewed_samples", "reviewed_time")
STARTED = ("step", "version", "amp", "samples", "kept")
FATES = ("fate", "update", "rank", "step", "version", "samples", "weight")
LOST = {DROPPED: "dropped", ABORTED: "aborted"}


class _Heard(Recorder):
    """Turns the logs of a kernel into news, and hands them on."""

    def __init__(self, recorder: Recorder | None) -> None:
        super().__init__(keep_steps=True, keep_gradients=True, storage=_Nowhere())
        self.news: list[News] = []
        self.listens = True
        self._recorder = recorder

    def planned(self, plan: Plan, version: int, time: float) -> None:
        if self._recorder is not None:
            self._recorder.planned(plan, version, time)

    def names(self, members: Any) -> int:
        return super().names(members) if self._recorder is None else self._recorder.names(members)

    def take(self, logs: Any) -> None:
        if self._recorder is not None:
            self._recorder.take(logs)
        if self.listens:
            self._hear(logs)

    def _hear(self, logs: Any) -> None:
        applied: dict[int, list[Gradient]] = {}
        lost: dict[int, list[Lost]] = {fate: [] for fate in LOST}
        columns = (logs["fates"][name].tolist() for name in FATES)
        for fate, update, *gradient in zip(*columns, strict=True):
            if fate == APPLIED:
                applied.setdefault(update, []).append(Gradient(*gradient))
            elif fate in lost:
                lost[fate].append(Lost(gradient[0], gradient[1], LOST[fate]))
        self.news += [Update(update, tuple(own)) for update, own in sorted(applied.items())]
        for each in lost.values():
            self.news += each

    def totals(self, machine: Any, ranks: Any, progress: float | None) -> None:
        if self._recorder is not None:
            self._recorder.totals(machine, ranks, progress)


class _Nowhere:
    """Keeps nothing."""

    excerpt = None

    def add(self, name: str, block: Any) -> None:
        pass

    def table(self, name: str) -> None:
        return None
