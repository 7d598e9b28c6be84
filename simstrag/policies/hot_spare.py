"""Every update waits for all ranks but the spares; a rank found slow and a spare change places.

The last ranks are the spares at first.  The others do the samples of all, so an update has as many
samples as with all ranks, each of the same weight.  The mathematics of synchronous training does
not change.  A spare that turns out to be slow changes places with another one.

Source: the warm standby machines of Wan et al., "Robust LLM Training Infrastructure at ByteDance",
2025, arXiv:2509.16293.

Theirs: machines that are kept ready, and take the places of machines that are evicted.  Ours: the
test of slowness, which is that of `drain`; a rank that was slow is the next spare, but rests first.
They restart the job from a checkpoint; here two ranks change places between two updates, and the
spare gets the parameters at no cost (assumed).  With a pause this is migration, or a restart
elsewhere: all ranks wait for as many seconds whenever two change places.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from simstrag.arrays import Bools, Ints
from simstrag.contract import (
    UNLIMITED,
    WINDOW,
    Block,
    Learnt,
    Plan,
    PlanError,
    Quorum,
    Review,
    View,
)
from simstrag.contract.ties import argsort
from simstrag.policies.estimators.slow_ranks import SlowRanks


@dataclass(slots=True)
class _State:
    """The members, and the plan in force.

    ranks: the paces of the members.
    ready: shape (N,), the version from which a spare may take part again.
    swaps: ranks that changed places with a spare.
    """

    ranks: SlowRanks
    ready: Ints
    plan: Plan
    swaps: int = 0


@dataclass(frozen=True)
class HotSpare:
    """Synchronous training with spare ranks.

    spares: ranks that do nothing until they are needed.
    ratio: a rank is slow if its pace is at least this many times that of the others, and stands
        out from their scatter.
    window: recent steps of a rank whose median is its pace.
    checks: checks in a row, one per update, that must find a rank slow before it is a spare.
    rest: updates for which a rank that was slow stays a spare.
    pause: seconds that all ranks wait while two change places.
    """

    title = "hot spares"
    lane = "A"

    spares: int = 1
    ratio: float = 1.2
    window: int = 5
    checks: int = 3
    rest: int = 100
    pause: float = 0.0
    state_: Learnt[_State] = field(default_factory=Learnt, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.window <= WINDOW:
            raise ValueError(f"window must be 1 to {WINDOW} steps, not {self.window}")
        if not self.ratio > 1:
            raise ValueError(f"ratio must be above 1, not {self.ratio}")
        if not 0 <= self.pause < math.inf:
            raise ValueError(f"pause must be 0 or more seconds, not {self.pause:g}")
        for name, bound in (("spares", 1), ("checks", 1), ("rest", 0)):
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be {bound} or more, not {getattr(self, name)}")

    def plan(self, view: View) -> Plan:
        state = self._state(view.world_size)
        ranks = state.ranks
        if state.plan.pause:
            state.plan = replace(state.plan, pause=0.0)
        if not ranks.follow(view):
            return state.plan
        paces = ranks.paces()
        slow = np.flatnonzero(ranks.check(paces, view.hints.clean_seconds))
        if len(slow):
            spares = np.flatnonzero(~ranks.members & (state.ready <= view.version))
            spares = spares[np.argsort(state.ready[spares], kind="stable")]  # longest rested first
            slow = slow[argsort(paces[slow])[::-1]][: len(spares)]
            ranks.change(slow, take_part=False)
            ranks.change(spares[: len(slow)], take_part=True)
            state.ready[slow] = view.version + self.rest
            state.swaps += len(slow)
        suspects = frozenset(np.flatnonzero(state.ready > view.version).tolist())
        if len(slow) or suspects != state.plan.suspects:
            state.plan = _plan_of(ranks.members, suspects, self.pause if len(slow) else 0.0)
        return state.plan

    @property
    def reviews_ahead(self) -> int:
        """Reviews before a rank has rested; none while a swap's pause is in the plan."""
        state = self.state_.value
        if state is None or state.plan.pause:
            return 0
        resting: Ints = state.ready[state.ready > state.ranks.version]
        return int(np.minimum.reduce(resting, initial=UNLIMITED)) - 1 - state.ranks.version

    def first_change(self, block: Block) -> int:
        if self.state_.value is None:
            return 0
        ranks, rows = self.state_.value.ranks, min(len(block), self.reviews_ahead)
        is_spare = ~ranks.members & (self.state_.value.ready <= ranks.version)
        everybody = np.ones_like(is_spare)
        return ranks.follow_block(block, rows, everybody, acts=bool(is_spare.any()))

    def summary(self) -> dict[str, int | float]:
        """The number of ranks that changed places with a spare."""
        return {"swaps": 0 if self.state_.value is None else self.state_.value.swaps}

    def _state(self, n: int) -> _State:
        if self.state_.value is None:
            if self.spares >= n:
                raise PlanError(f"hot_spare: {self.spares} spares of {n} ranks leave none to train")
            members = np.arange(n) < n - self.spares
            ranks = SlowRanks(members, self.window, self.checks, self.ratio)
            state = _State(ranks, np.zeros(n, dtype=np.int64), _plan_of(members, frozenset()))
            self.state_.value = state
        return self.state_.value


def _plan_of(members: Bools, suspects: frozenset[int], pause: float = 0.0) -> Plan:
    shares = np.where(members, len(members) / np.count_nonzero(members), 0.0)
    quorum = Quorum(tuple(np.flatnonzero(members).tolist()))
    review = Review(updates=1)
    return Plan((quorum,), batch=shares, pause=pause, suspects=suspects, review=review)
