"""Every update waits for all ranks, but a rank stops its step after theta seconds of computing.

It contributes its finished micro-batches, at least one.  Theta is chosen once, from the first
steps, and maximizes the samples applied per second.

Source: Giladi et al., "DropCompute: simple and more robust distributed synchronous training via
compute variance reduction", NeurIPS 2023, arXiv:2306.10598.

The paper's: the deadline, a loss divided by all M micro-batches, and the goal S_eff.  From its
released code: the measured steps (6 to 50), the 200 candidates, the first of them, and the
communication: the time per step beyond the slowest rank's computing.  This project's: the M
micro-batches of a step take equal times, since only their sum is measured.  A cut step lasts until
the end of its last micro-batch; the latest of equally good deadlines is taken.  Where M is 1 or
unknown, no step can be cut.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Floats
from simstrag.contract import WINDOW, Plan, Review, View
from simstrag.contract.ties import TOLERANCE, is_at_most

CANDIDATES = 200
FIRST = 6
"""The first candidate is the earliest end of a sixth micro-batch."""
MEASURING = Plan(review=Review(updates=1))


@dataclass(slots=True)
class _State:
    """The measured steps and the chosen plan.

    cuttable: whether a step has more than one micro-batch.
    times: shape (N, measure), local times in seconds, NaN where there is none; None at first.
    began: steps of the slowest rank, and the time, at the end of the warm-up.
    chosen: the plan with the deadline; None while measuring.
    """

    cuttable: bool = False
    times: Floats | None = None
    began: tuple[int, float] | None = None
    chosen: Plan | None = None


@dataclass(frozen=True)
class DropCompute:
    """Synchronous with a deadline.

    theta: seconds of computing after which a rank stops; `auto` chooses it from measured steps,
        and `inf` never stops.
    warmup: steps of each rank before the measured steps.
    measure: measured steps of each rank.
    """

    title = "DropCompute"
    lane = "B"

    theta: float | None = field(default=None, metadata={"none": "auto"})
    warmup: int = 5
    measure: int = 45
    simulated_only = "it cuts steps at a micro-batch, and a real step cannot be cut from outside"
    state_: _State = field(default_factory=_State, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.theta is not None and not self.theta > 0:
            raise ValueError(f"theta must be above 0 seconds, or auto, not {self.theta}")
        for name, least in (("warmup", 0), ("measure", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, not {getattr(self, name)}")

    def plan(self, view: View) -> Plan:
        state, m = self.state_, view.hints.microbatches or 1
        state.cuttable = m > 1
        if self.theta is not None or m == 1:
            return Plan.standing(deadline=self.theta)
        if state.chosen is None:
            self._measure(state, view, m)
        return state.chosen or MEASURING

    def summary(self) -> dict[str, int | float]:
        """The deadline in seconds, and whether steps can be cut; nothing for `theta=inf`.

        theta: the deadline, once there is one.
        cuttable: 1 where a step has more than one micro-batch, else 0.

        >>> DropCompute(theta=0.5).summary()
        {'theta': 0.5, 'cuttable': 0}
        """
        if self.theta == math.inf:
            return {}
        chosen = self.state_.chosen
        theta = self.theta if chosen is None else chosen.deadline
        known = {} if theta is None else {"theta": theta}
        return {**known, "cuttable": int(self.state_.cuttable)}

    def _measure(self, state: _State, view: View, m: int) -> None:
        """Store the times of a view; after the last measured step, choose the deadline."""
        if state.times is None:
            state.times = np.full((view.world_size, self.measure), np.nan)
        column = view.steps[:, None] - WINDOW + np.arange(WINDOW) - self.warmup
        inside = (column >= 0) & (column < self.measure)
        state.times[np.nonzero(inside)[0], column[inside]] = view.local_times[inside]
        steps = int(view.steps.min())
        if state.began is None and steps >= self.warmup:
            state.began = steps, view.time
        complete = state.times[:, ~np.isnan(state.times).any(axis=0)]
        if steps < self.warmup + self.measure or not complete.size:
            return
        assert state.began is not None
        first_step, start = state.began
        per_step = (view.time - start) / max(steps - first_step, 1)
        overhead = max(per_step - float(complete.max(axis=0).mean()), 0.0)
        state.chosen = Plan(deadline=best_deadline(complete, m, overhead))


def best_deadline(times: Floats, m: int, overhead: float) -> float:
    """The deadline in seconds with the largest effective speed-up; the latest of tied ones.

    times: shape (N, steps), local times of steps of m micro-batches, seconds.
    overhead: seconds of an update beyond the slowest rank's computing.

    >>> round(best_deadline(np.array([[1.0, 1.0], [1.0, 4.0]]), m=8, overhead=0.0), 2)
    0.99
    """
    first = times.min() * min(FIRST, m) / m
    latest_first = np.linspace(first, times.max(), CANDIDATES)[::-1]
    gains = np.array([effective_speedup(times, m, overhead, theta) for theta in latest_first])
    return float(latest_first[np.argmax(is_at_most(gains.max(), gains))])


def effective_speedup(times: Floats, m: int, overhead: float, theta: float) -> float:
    """S_eff = (1 - drop rate) * T_raw / T_theta, samples per second relative to no deadline.

    >>> effective_speedup(np.array([[1.0], [4.0]]), m=4, overhead=1.0, theta=1.5)  # (1+.5)/2*5/3
    1.25
    """
    done = np.minimum(np.floor(theta * m / times * (1 + TOLERANCE)) + 1, m)
    raw = times.max(axis=0).mean() + overhead
    cut = (times * done / m).max(axis=0).mean() + overhead
    return float((done / m).mean() * raw / cut)
