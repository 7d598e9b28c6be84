"""Carries out the failures of a scenario on one simulated run (docs/semantics.md, 19a to 19c)."""

from __future__ import annotations

import copy
import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from simstrag.contract import Plan, Policy
from simstrag.engine.kernel import Kernel
from simstrag.engine.plain import Plain
from simstrag.errors import PlanError, StallError
from simstrag.scenario.failures import CheckpointSection, FailuresSection

FAILS, IS_LOST, IS_BACK = range(3)
"""What happens to a rank, in the order of one instant; under restart IS_BACK is of all ranks."""

MOST = 1000
"""Failures without a single update beyond all before, ASSUMED to go on for ever."""

RankChange = tuple[float, int, int, float]
"""When, what, to which rank, and when that is back."""


class FailingRun(Protocol):
    """The run on which failures are carried out: kernel, policy, and the policy's name and plan."""

    kernel: Kernel | Plain
    policy: Policy
    name: str

    @property
    def full_plan(self) -> Plan:
        """The plan as if all ranks were there."""

    def go_back(self, policy: Policy, plan: Plan) -> None:
        """Ask this policy from now on, and take this plan for its last answer."""


class Failures(ABC):
    """The failures of one run: what happens next, and its counts for the summary."""

    def __init__(self, section: FailuresSection, seed: int, workers: int) -> None:
        self.counts: dict[str, float] = {"failures": 0}
        self._section = section
        self._coming = section.coming(seed, workers)
        self._agenda: list[RankChange] = []
        self._headway = 0, 0  # the highest version so far, and failures since
        self._expect()

    @classmethod
    def of(cls, section: FailuresSection, seed: int, workers: int) -> Failures:
        """The failures of a section, of the class of their reaction."""
        if section.continues:
            return Continue(section, seed, workers)
        return Restart(section, seed, workers)

    @property
    def next(self) -> float:
        """Instant of the next event; infinity without one."""
        return self._agenda[0][0] if self._agenda else math.inf

    @property
    def awaits(self) -> bool:
        """Whether a run in which nothing happens goes on when ranks are lost or back."""
        return any(what != FAILS for _, what, *_ in self._agenda)

    @abstractmethod
    def begin(self, run: FailingRun) -> None:
        """Prepare for a run that begins."""

    def happen(self, run: FailingRun) -> None:
        """The next of these events happens; the run was advanced to its time."""
        at, what, rank, back = heapq.heappop(self._agenda)
        run.kernel.pause(at)
        if what == FAILS:
            self._count(run.kernel, at)
            self._expect()
            self._fail(run, at, rank, back)
        else:
            self._follow(run, at, what, rank)

    def _count(self, kernel: Kernel | Plain, at: float) -> None:
        """Count a failure.  Raises `StallError` where updates do not get beyond failures."""
        self.counts["failures"] += 1
        version, failures = self._headway
        if kernel.version > version:
            version, failures = kernel.version, 0
        self._headway = version, failures + 1
        if failures == MOST:
            raise StallError(
                f"no headway at {at:g} s, version {version}: ranks failed {MOST:,} times since the "
                "last new update; raise failures.mtbf, or take checkpoints more often"
            )

    def save(self, run: FailingRun) -> None:
        """A checkpoint is due, at an update."""
        raise AssertionError("no checkpoint was asked for")

    def restrict(self, run: FailingRun, plan: Plan) -> Plan | None:
        """A resolved plan without lost ranks; None where none of its ranks is left."""
        return plan

    @property
    def too_few(self) -> bool:
        """Whether the run has lost so many ranks that the others wait."""
        return False

    @abstractmethod
    def _fail(self, run: FailingRun, at: float, rank: int, back: float) -> None:
        """A rank fails."""

    @abstractmethod
    def _follow(self, run: FailingRun, at: float, what: int, rank: int) -> None:
        """Carry out a later consequence of a failure."""

    def _expect(self) -> None:
        """Note the next failure, if there is one."""
        for time, rank, back in itertools.islice(self._coming, 1):
            heapq.heappush(self._agenda, (time, FAILS, rank, back))


class Continue(Failures):
    """The others go on without a rank that fails (rule 19b)."""

    def __init__(self, section: FailuresSection, seed: int, workers: int) -> None:
        super().__init__(section, seed, workers)
        self._workers = workers
        self._lost: frozenset[int] = frozenset()  # ranks that the others go on without
        self._hung: list[int] = []  # those of them that no plan without them has replaced yet
        self._forming = -1.0, 0.0  # when the group began to form the last time, and was formed
        self._returned: set[int] = set()  # ranks that are back, and that no plan has let start yet
        self._restricted: tuple[Plan, frozenset[int], Plan | None] = Plan(), self._lost, None

    @property
    def too_few(self) -> bool:
        """Whether so many ranks are lost now that the others wait."""
        return self._workers - len(self._lost) < self._section.min_workers

    def begin(self, run: FailingRun) -> None:
        """Do nothing: a run begins with all ranks."""

    def restrict(self, run: FailingRun, plan: Plan) -> Plan | None:
        """The same object for the same plan and lost ranks; None where too few are left.

        Raises `PlanError` for an overlap.
        """
        if any(quorum.overlap for quorum in plan.quorums):
            raise PlanError(
                f"policy {run.name} cannot go on without a rank: a plan with overlap keeps its "
                "quorums; say failures.on_fault: restart, or leave the policy out"
            )
        if not self._lost:
            return plan
        if self.too_few:
            return None
        if self._restricted[0] is not plan or self._restricted[1] != self._lost:
            self._restricted = plan, self._lost, plan.without(self._lost, self._workers)
        return self._restricted[2]

    def _fail(self, run: FailingRun, at: float, rank: int, back: float) -> None:
        run.kernel.fail(at, rank)
        self._returned.discard(rank)
        known = at + self._section.detection
        lost = max(known, min(known + self._section.quorum_timeout, back))
        heapq.heappush(self._agenda, (lost, IS_LOST, rank, back))
        if back < math.inf:
            heapq.heappush(self._agenda, (back, IS_BACK, rank, back))

    def _follow(self, run: FailingRun, at: float, what: int, rank: int) -> None:
        if what == IS_LOST:
            self._lost |= {rank}
            self._hung.append(rank)
        else:
            self._lost -= {rank}
            self._returned.add(rank)
        plan = self.restrict(run, run.full_plan)
        if plan is not None:  # else they wait until more of them are back
            lost, self._hung = self._hung, []
            back, self._returned = sorted(self._returned), set()
            run.kernel.regroup(at, plan, lost, back, self._form(at))

    def _form(self, at: float) -> float:
        """Seconds until the group is formed anew, after one that is still being formed."""
        begun, formed = self._forming
        if at > begun:
            self._forming = at, max(at, formed) + self._section.regroup
        return self._forming[1] - at


class _Checkpoint(NamedTuple):
    """The state that a restart goes back to, complete at some time."""

    complete: float
    version: int
    samples: int
    policy: Policy
    plan: Plan
    state: object


class Restart(Failures):
    """All ranks stop, and go back to the last checkpoint (rule 19c)."""

    def __init__(self, section: FailuresSection, seed: int, workers: int) -> None:
        super().__init__(section, seed, workers)
        self.counts |= {
            "checkpoints": 0, "lost_updates": 0, "lost_samples": 0, "down_seconds": 0.0
        }  # fmt: skip
        self._checkpoints: list[_Checkpoint] = []
        self._down: float | None = None  # since when all ranks stand still

    def begin(self, run: FailingRun) -> None:
        """Keep the initial state, to which a restart before the first checkpoint returns."""
        self._keep(run, 0.0)

    def save(self, run: FailingRun) -> None:
        """The state is that of the update; it can be used once the checkpoint is paid."""
        self.counts["checkpoints"] += 1
        cost = self._due.cost
        self._keep(run, run.kernel.now + cost)
        run.kernel.saved(cost)

    @property
    def _due(self) -> CheckpointSection:
        assert self._section.checkpoint is not None
        return self._section.checkpoint

    def _keep(self, run: FailingRun, complete: float) -> None:
        kernel = run.kernel
        self._checkpoints = [*self._complete(kernel.now), _Checkpoint(
            complete, kernel.version, kernel.applied[0], copy.deepcopy(run.policy), run.full_plan,
            kernel.save(),
        )]  # fmt: skip
        self._mark(run, complete)

    def _complete(self, at: float) -> Iterator[_Checkpoint]:
        """The last checkpoint that is complete by then, and those that are under way."""
        done = [one for one in self._checkpoints if one.complete <= at]
        yield from done[-1:]
        yield from (one for one in self._checkpoints if one.complete > at)

    def _mark(self, run: FailingRun, since: float) -> None:
        """The next checkpoint is due some time or updates after this one."""
        due = self._section.checkpoint
        if due is not None:
            version = math.inf if due.updates is None else run.kernel.version + due.updates
            run.kernel.mark(version, math.inf if due.seconds is None else since + due.seconds)

    def _fail(self, run: FailingRun, at: float, rank: int, back: float) -> None:
        """A failure while all ranks stand still begins detection and restart anew."""
        if self._down is None:
            self._down = at
            due = self._section.checkpoint
            if due is not None and due.on_failure:
                self._keep(run, at)
            self._checkpoints = [*self._complete(at)][:1]
            saved, kernel = self._checkpoints[0], run.kernel
            self.counts["lost_updates"] += kernel.version - saved.version
            self.counts["lost_samples"] += kernel.applied[0] - saved.samples
            kernel.halt(at)
        self._agenda = [event for event in self._agenda if event[1] == FAILS]
        up = at + self._section.detection + self._section.restart
        heapq.heappush(self._agenda, (up, IS_BACK, rank, back))

    def _follow(self, run: FailingRun, at: float, what: int, rank: int) -> None:
        assert self._down is not None
        self.counts["down_seconds"] += at - self._down
        self._down = None
        saved = self._checkpoints[0]
        run.go_back(copy.deepcopy(saved.policy), saved.plan)
        run.kernel.restart(at, saved.state)
        self._mark(run, at)
