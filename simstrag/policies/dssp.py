"""Every gradient is an update of its own; a rank too far ahead may go on where that saves waiting.

A rank more than s_L steps ahead of the slowest blocks, as in ssp. But the fastest rank first gets
up to r_max extra steps: the number after which it ends shortly before a push of the slowest.

Source: Zhao et al., "Dynamic Stale Synchronous Parallel Distributed Training for Deep Learning",
ICDCS 2019, arXiv:1908.11848.

The paper's: thresholds from s_L to s_L + r_max (3 and 15), a controller that decides when the
fastest rank is at s_L, and the wait for s_L after.  The controller predicts the next r_max pushes
of both ranks from the times between their last two, and takes the closest pair in either order.
Ours: the interval between a rank's pushes is its last local time plus its communication, without
waiting; the slowest's next push is predicted from the start of its step. For each r = 0..r_max the
wait lasts from the fast rank's r-th push to the slowest's first push at or after it.  The r with
the least wait is taken, the smallest of tied ones.  The extra steps raise the threshold by r, so
that a push of the slowest adds to them, until the rank blocks. It then waits for s_L, maybe for
several pushes.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Ints
from simstrag.contract import Block, Learnt, Plan, Quorum, Review, Via, View
from simstrag.contract.ties import is_at_most
from simstrag.policies.estimators.predictors import last, predict

QUORUM = Quorum(count=1, via=Via.SERVER)
ON_BLOCK = Review(on_block=True)


@dataclass(slots=True)
class _State:
    """The thresholds; arrays have one entry per rank.

    began: steps known at the first plan, from which a rank's lead counts.
    bounds: the thresholds in force.
    decided: steps known at the last decision on a block of the rank.
    grants: decisions to allow extra steps.
    extra_steps: extra steps in all.
    """

    began: Ints
    bounds: Ints
    decided: Ints
    plan: Plan
    grants: int = 0
    extra_steps: int = 0


@dataclass(frozen=True)
class Dssp:
    """Dynamic stale synchronous parallel.

    low: s_L, steps that any rank may be ahead of the slowest.
    extra: r_max, most extra steps of the fastest; 0 is ssp.
    """

    title = "dynamic stale-synchronous parallel"
    lane = "C"

    low: int = 3
    extra: int = 12
    state_: Learnt[_State] = field(default_factory=Learnt, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("low", "extra"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")

    def plan(self, view: View) -> Plan:
        state = self.state_.value
        if state is None:
            bounds = np.full(view.world_size, self.low)
            never = np.full(view.world_size, -1)
            state = _State(view.steps, bounds, never, _plan_of(bounds))
            self.state_.value = state
        steps, bounds, low = view.steps, state.bounds, self.low
        ahead = steps - state.began
        ahead -= np.minimum.reduce(ahead)
        (blocked,) = ((ahead > bounds) & (state.decided != steps)).nonzero()
        if not len(blocked):
            return state.plan
        fastest, changes = np.maximum.reduce(ahead), False
        for rank in blocked.tolist():
            state.decided[rank] = steps[rank]
            if bounds[rank] > low:  # the rank has used its extra steps
                bounds[rank], changes = low, True
            elif ahead[rank] == fastest:
                r = self._extra_steps(view, rank, np.flatnonzero(ahead == 0))
                if r > 0:
                    bounds[rank], changes = low + r, True
                    state.grants += 1
                    state.extra_steps += r
        if changes:
            state.plan = _plan_of(bounds)
        return state.plan

    def first_change(self, block: Block) -> int:
        state = self.state_.value
        if state is None:
            return 0
        steps, ahead = block.steps, block.steps - state.began
        ahead -= np.minimum.reduce(ahead, axis=1, keepdims=True)
        over = ahead > state.bounds
        blocked = over & (steps != state.decided)  # now, or at a review before
        blocked[1:] &= ~(over[:-1] & (steps[1:] == steps[:-1]))
        may_change = (state.bounds > self.low) | (
            ahead == np.maximum.reduce(ahead, axis=1, keepdims=True)
        )
        changes = np.count_nonzero(blocked & may_change, axis=1) > 0
        stays = int(changes.argmax()) if np.count_nonzero(changes) else len(block)
        rows, ranks = blocked[:stays].nonzero()
        state.decided[ranks] = steps[rows, ranks]  # the last of a rank counts
        return stays

    def summary(self) -> dict[str, int | float]:
        """Grants of extra steps, and their number."""
        state = self.state_.value
        if state is None:
            return {"grants": 0, "extra_steps": 0}
        return {"grants": state.grants, "extra_steps": state.extra_steps}

    def _extra_steps(self, view: View, fast: int, slowest: Ints) -> int:
        """r*, the r in 0..r_max with the least wait; 0 where an interval is unknown.

        Among several slowest ranks the one with the latest next push counts.
        """
        interval = predict(last, view)
        next_push = np.maximum(view.pending_since + interval, view.time)[slowest]
        if np.isnan(next_push).any() or math.isnan(interval[fast]):
            return 0
        slow = int(np.argmax(is_at_most(next_push.max(), next_push)))
        ahead = view.time + interval[fast] * np.arange(self.extra + 1) - next_push[slow]
        period = interval[slowest[slow]]
        waits = np.where(ahead <= 0, -ahead, -ahead % period)
        waits[is_at_most(period, waits) & (ahead > 0)] = 0.0  # a push that comes at once
        return int(np.argmax(is_at_most(period + waits, period + waits.min())))


def _plan_of(bounds: Ints) -> Plan:
    return Plan.standing(QUORUM, bound=tuple(bounds.tolist()), review=ON_BLOCK)
