"""Every update waits for all ranks, but a rank that has computed for theta seconds stops there.

It gives what its finished micro-batches make, at least one; theta is chosen once, from steps
measured at the beginning, so that the most samples are applied per second.

Source: Giladi et al., "DropCompute: simple and more robust distributed synchronous training via
compute variance reduction", NeurIPS 2023, arXiv:2306.10598.

The paper's are the deadline, the loss that is still divided by all M micro-batches, and the goal
S_eff.  From its released code are the steps measured (6 to 50), the 200 candidates, where they
begin, and the communication: what the time per step leaves beyond the slowest rank's computing.
This project's are that the M micro-batches of a step take equal times, of which nobody measures
more than the sum, that a step which is cut counts until the end of its last micro-batch, and that
of equally good deadlines the latest is taken.  Where M is 1 or unknown, nothing can be cut.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simstrag.policy import WINDOW, Plan, Review, View
from simstrag.ties import TOLERANCE, is_at_most

Floats = npt.NDArray[np.float64]
CANDIDATES = 200
FIRST = 6
"""The first candidate is where somebody's sixth micro-batch ends."""
MEASURING = Plan(review=Review(updates=1))


@dataclass(slots=True)
class _State:
    """times: shape (N, measure), local times in seconds, NaN where none has been seen.
    began: steps of the slowest rank and the time when the warm-up was over.
    chosen: the plan with a deadline, once there is one.
    """

    times: Floats
    began: tuple[int, float] | None = None
    chosen: Plan | None = None


@dataclass(frozen=True)
class DropCompute:
    """Synchronous with a deadline.

    theta: seconds of computing after which a rank stops; `auto` is chosen from measured steps, and
        `inf` never stops.
    warmup: steps of each rank before those measured.
    measure: steps of each rank that are measured.
    """

    theta: float | None = field(default=None, metadata={"none": "auto"})
    warmup: int = 5
    measure: int = 45
    simulated_only = "it cuts steps at a micro-batch, and a real step cannot be cut from outside"
    state_: _State | None = field(default=None, init=False, repr=False, compare=False)
    cuttable_: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.theta is not None and not self.theta > 0:
            raise ValueError(f"theta must be above 0 seconds, or auto, not {self.theta}")
        for name, least in (("warmup", 0), ("measure", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, not {getattr(self, name)}")

    @cached_property
    def plan_(self) -> Plan:
        return Plan(deadline=self.theta)

    def plan(self, view: View) -> Plan:
        m = view.hints.microbatches or 1
        object.__setattr__(self, "cuttable_", m > 1)  # frozen are the parameters
        if self.theta is not None or m == 1:
            return self.plan_
        if self.state_ is None:
            times = np.full((view.world_size, self.measure), np.nan)
            object.__setattr__(self, "state_", _State(times))
        state = self.state_
        assert state is not None
        if state.chosen is None:
            self._measure(state, view, m)
        return state.chosen or MEASURING

    def summary(self) -> dict[str, int | float]:
        """theta: the deadline in seconds, once there is one; cuttable: 1 where a step has more
        than one micro-batch, so that a deadline can cut it, else 0.  Nothing where `inf` was asked.

        >>> DropCompute(theta=0.5).summary()
        {'theta': 0.5, 'cuttable': 0}
        """
        if self.theta == math.inf:
            return {}
        chosen = None if self.state_ is None else self.state_.chosen
        theta = self.theta if chosen is None else chosen.deadline
        known = {} if theta is None else {"theta": theta}
        return {**known, "cuttable": int(self.cuttable_)}

    def _measure(self, state: _State, view: View, m: int) -> None:
        """Enter what the view shows; after the last step needed, choose the deadline."""
        column = view.steps[:, None] - WINDOW + np.arange(WINDOW) - self.warmup
        inside = (column >= 0) & (column < self.measure)
        state.times[np.nonzero(inside)[0], column[inside]] = view.local_times[inside]
        steps = int(view.steps.min())
        if state.began is None and steps >= self.warmup:
            state.began = steps, view.time
        whole = state.times[:, ~np.isnan(state.times).any(axis=0)]
        if steps < self.warmup + self.measure or not whole.size:
            return
        assert state.began is not None
        before, then = state.began
        per_step = (view.time - then) / max(steps - before, 1)
        overhead = max(per_step - float(whole.max(axis=0).mean()), 0.0)
        state.chosen = Plan(deadline=best_deadline(whole, m, overhead))


def best_deadline(times: Floats, m: int, overhead: float) -> float:
    """The deadline in seconds with the largest effective speed-up; of equals the latest.

    times: shape (N, steps), local times of whole steps of m micro-batches, seconds.
    overhead: seconds of an update beyond the slowest rank's computing.

    >>> round(best_deadline(np.array([[1.0, 1.0], [1.0, 4.0]]), m=8, overhead=0.0), 2)
    0.99
    """
    first = times.min() * min(FIRST, m) / m
    latest_first = np.linspace(first, times.max(), CANDIDATES)[::-1]
    gains = np.array([effective_speedup(times, m, overhead, theta) for theta in latest_first])
    return float(latest_first[np.argmax(is_at_most(gains.max(), gains))])


def effective_speedup(times: Floats, m: int, overhead: float, theta: float) -> float:
    """S_eff = (1 - drop rate) * T_raw / T_theta, samples per second against those without deadline.

    >>> effective_speedup(np.array([[1.0], [4.0]]), m=4, overhead=1.0, theta=1.5)  # (1+.5)/2*5/3
    1.25
    """
    done = np.minimum(np.floor(theta * m / times * (1 + TOLERANCE)) + 1, m)
    raw = times.max(axis=0).mean() + overhead
    cut = (times * done / m).max(axis=0).mean() + overhead
    return float((done / m).mean() * raw / cut)
