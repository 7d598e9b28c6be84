"""Every update waits for all ranks but those found slow, whose samples the others take over.

A rank that stands out for several checks in a row is left out of the updates, if the others do more
samples per second without it.  After a number of updates it takes part in a few again, the probe;
if it is still slow it leaves for twice as long as before.  So it is out for about as long again as
it was slow, at most.

With `redistribute` an update has as many samples as ever, and each the same weight: the mathematics
of synchronous training does not change.  Without it an update is smaller by the missing samples.

Source: the eviction of machines of Wan et al., "Robust LLM Training Infrastructure at ByteDance",
2025, arXiv:2509.16293. That operators treat a slow machine like a dead one: Wu et al., "FALCON:
Pinpointing and Mitigating Stragglers for Large-Scale Hybrid-Parallel Training", 2024,
arXiv:2410.12588.

Theirs: a slow machine is taken out of the job, which restarts from a checkpoint.  Ours: the test of
slowness, the comparison of samples per second, the probe and its waiting times. A rank leaves and
comes back between two updates, without a restart, and gets the parameters at no cost (assumed).
"""

from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Bools, Ints
from simstrag.contract import UNLIMITED, WINDOW, Block, Learnt, Plan, Quorum, Review, View
from simstrag.contract.ties import is_at_most
from simstrag.policies.estimators.detectors import median
from simstrag.policies.estimators.slow_ranks import SlowRanks, worth_leaving

EVERY_UPDATE = Review(updates=1)


@dataclass(slots=True)
class _State:
    """The members, and the plan in force.

    ranks: the paces of the members.
    suspect: shape (N,), the ranks that are out, in a probe, or were still slow in it.
    wait: shape (N,), updates that a rank is out when it leaves next.
    due: shape (N,), the version at which a rank that is out comes back.
    """

    ranks: SlowRanks
    suspect: Bools
    wait: Ints
    due: Ints
    plan: Plan = Plan(suspects=frozenset(), review=EVERY_UPDATE)  # noqa: RUF009 (frozen)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("drains", "probes", "readmissions"), 0)
    )


@dataclass(frozen=True)
class Drain:
    """Synchronous training without the slow ranks.

    redistribute: whether the others take over the samples of a rank that is out.
    ratio: a rank is slow if its pace is at least this many times that of the others, and stands
        out from their scatter.
    window: recent steps of a rank whose median is its pace.
    checks: checks in a row, one per update, that must find a rank slow before it leaves.
    wait: updates until the first probe; doubled by every probe that fails.
    probe: updates of a probe.
    least: ranks that stay at least.
    """

    title = "draining slow workers"

    redistribute: bool = True
    ratio: float = 1.2
    window: int = 5
    checks: int = 3
    wait: int = 20
    probe: int = 3
    least: int = 1
    state_: Learnt[_State] = field(default_factory=Learnt, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.window <= WINDOW:
            raise ValueError(f"window must be 1 to {WINDOW} steps, not {self.window}")
        if not 1 <= self.probe <= self.window:
            raise ValueError(f"probe must be 1 to {self.window} steps, not {self.probe}")
        if not self.ratio > 1:
            raise ValueError(f"ratio must be above 1, not {self.ratio}")
        for name in ("checks", "wait", "least"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")

    @property
    def lane(self) -> str:
        """Without `redistribute` some samples are left out."""
        return "A" if self.redistribute else "B"

    def plan(self, view: View) -> Plan:
        state = self._state(view.world_size)
        if not state.ranks.follow(view):
            return state.plan
        leaving = self._leaving(state, view)
        coming = ~state.ranks.members & (state.due <= view.version)
        if len(leaving):
            state.due[leaving] = view.version + state.wait[leaving]
            state.suspect[leaving] = True
            state.ranks.change(leaving, take_part=False)
        if np.count_nonzero(coming):
            state.ranks.change(coming, take_part=True)
            state.counts["probes"] += int(np.count_nonzero(coming))
        suspects = frozenset(np.flatnonzero(state.suspect).tolist())
        if len(leaving) or np.count_nonzero(coming) or suspects != state.plan.suspects:
            state.plan = self._plan_of(state.ranks.members, suspects)
        return state.plan

    @property
    def reviews_ahead(self) -> int:
        """Reviews before a rank comes back; none in a probe."""
        state = self.state_.value
        if state is None or np.count_nonzero(state.suspect & state.ranks.members):
            return 0
        due: Ints = state.due[~state.ranks.members]
        return int(np.minimum.reduce(due, initial=UNLIMITED)) - 1 - state.ranks.version

    def first_change(self, block: Block) -> int:
        if self.state_.value is None:
            return 0
        rows, judged = min(len(block), self.reviews_ahead), ~self.state_.value.suspect
        return self.state_.value.ranks.follow_block(block, rows, judged, acts=True)

    def summary(self) -> dict[str, int | float]:
        """Ranks that left, probes of them, and probes that found one well."""
        state = self.state_.value or self._new(1)
        return dict(state.counts)

    def _new(self, n: int) -> _State:
        ranks = SlowRanks(np.ones(n, dtype=np.bool_), self.window, self.checks, self.ratio)
        zeros = np.zeros(n, dtype=np.int64)
        return _State(ranks, np.zeros(n, dtype=np.bool_), zeros + self.wait, zeros)

    def _state(self, n: int) -> _State:
        if self.state_.value is None:
            self.state_.value = self._new(n)
        return self.state_.value

    def _leaving(self, state: _State, view: View) -> Ints:
        """The members that leave now; probes that are over are booked."""
        paces = state.ranks.paces()
        paces[state.suspect] = np.nan
        slow = state.ranks.check(paces, view.hints.clean_seconds)
        probed = state.suspect & state.ranks.members
        if np.count_nonzero(probed):
            recent = state.ranks.paces(self.probe)
            probed &= ~np.isnan(recent)
            others = recent[state.ranks.members & ~state.suspect & ~np.isnan(recent)]
            paces[probed] = recent[probed]
            slow |= probed & is_at_most(self.ratio * median(others), recent)
        inside = np.flatnonzero(state.ranks.members)
        b = view.hints.batch
        whole = b * view.world_size if b and self.redistribute else None
        leaving = inside[worth_leaving(paces[inside], slow[inside], self.least, whole)]
        well, failed = probed & ~slow, leaving[probed[leaving]]
        state.wait[failed] *= 2
        state.wait[well] = self.wait
        state.suspect[well] = False
        state.counts["drains"] += len(leaving) - len(failed)
        state.counts["readmissions"] += int(np.count_nonzero(well))
        return leaving

    def _plan_of(self, members: Bools, suspects: frozenset[int]) -> Plan:
        n, left = len(members), int(np.count_nonzero(members))
        if left == n:
            return Plan(suspects=suspects, review=EVERY_UPDATE)
        quorum = Quorum(tuple(np.flatnonzero(members).tolist()))
        shares = np.where(members, n / left, 0.0) if self.redistribute else None
        return Plan((quorum,), batch=shares, suspects=suspects, review=EVERY_UPDATE)
