"""Every update waits for all ranks, and each rank computes a share of samples by its speed.

A rank twice as slow as another gets half as many samples, so that all finish together. An update
has the same number of samples as before, and each sample the same weight.

Source: Chen et al., "Semi-Dynamic Load Balancing: Efficient Distributed Learning in Non-Dedicated
Environments" (LB-BSP), SoCC 2020; the dead band is that of OmniLearn: Tyagi & Sharma,
arXiv:2503.17469, 2025.

The papers': shares in proportion to speed at the boundary of an iteration, with a fixed sum; each
gradient weighed by its samples; least and largest batches.  Ours: all numbers but the dead band of
5 %, and speed as the median of samples per second over a window.  LB-BSP fits a line with an offset
(GPU) or trains a predictor (CPU); OmniLearn smooths.

Ours, too: `via=server`. And where the host launches while the device computes, a smaller share
shortens only the device's part. Then shares are such that no rank computes longer than the slowest
one needs, and a rank gives samples away only where that helps.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Floats
from simstrag.contract import WINDOW, Learnt, Plan, Quorum, Review, Via, View
from simstrag.contract.ties import is_less
from simstrag.policies.estimators.detectors import median
from simstrag.policies.estimators.shares import StreamTimes, balanced

EVERY_UPDATE = Review(updates=1)


@dataclass(slots=True)
class _State:
    """The plan in force, its shares, shape (N,), and the number of their changes.

    streams: what launching and computing of each rank take, where they overlap.
    """

    plan: Plan
    shares: Floats
    streams: StreamTimes | None = None
    changes: int = 0


@dataclass(frozen=True)
class LbBsp:
    """Load-balanced BSP; shares are of the nominal batch and sum to the number of ranks.

    window: recent steps of a rank whose median is its speed.
    deadband: the relative change of a share above which all shares change.
    low, high: least and largest share.
    via: `allreduce` or `server`.
    """

    title = "load-balanced BSP"
    lane = "A"

    window: int = 5
    deadband: float = 0.05
    low: float = 0.25
    high: float = 4.0
    via: Via = Via.ALLREDUCE
    state_: Learnt[_State] = field(default_factory=Learnt, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.window <= WINDOW:
            raise ValueError(f"window must be 1 to {WINDOW} steps, not {self.window}")
        if not self.deadband >= 0:
            raise ValueError(f"deadband must be 0 or more, not {self.deadband}")
        if not 0 < self.low <= 1 <= self.high < math.inf:
            raise ValueError(f"1 must lie between low and high, not {self.low} and {self.high}")
        if self.via is Via.LEADER:
            raise ValueError("via must be allreduce or server, not leader")

    def plan(self, view: View) -> Plan:
        state = self.state_.value
        if state is None:
            step = view.hints.step
            streams = None if step is None else StreamTimes.of(step, view.world_size)
            state = _State(self._plan_of(None), np.ones(view.world_size), streams)
            self.state_.value = state
        batch, times, cancelled = (
            view.newest(name, self.window) for name in ("batch", "local_times", "lower_bound")
        )
        if np.count_nonzero(cancelled):
            times = np.where(cancelled, math.nan, times)
        b = view.hints.batch
        low = self.low if b is None else max(self.low, 1 / b)  # every rank gets a sample
        if state.streams is not None:
            if not state.streams.follow(batch, times, self.deadband):
                return state.plan
            shares = state.streams.shares(low, self.high)
        else:
            rate = median(batch / times)
            if np.count_nonzero(np.isnan(rate)):
                return state.plan
            shares = balanced(rate, low, self.high)
        below = is_less(shares, (1 - self.deadband) * state.shares)
        above = is_less((1 + self.deadband) * state.shares, shares)
        if np.count_nonzero(below | above):
            state.shares = shares
            state.plan = self._plan_of(shares)
            state.changes += 1
        return state.plan

    def _plan_of(self, shares: Floats | None) -> Plan:
        return Plan((Quorum(via=self.via),), batch=shares, review=EVERY_UPDATE)

    def summary(self) -> dict[str, int | float]:
        """The number of changes of the shares."""
        return {"rebalances": 0 if self.state_.value is None else self.state_.value.changes}
