"""The fast ranks all-reduce, and a straggler's gradient rides with one of them when it is ready.

Nobody waits for a straggler and none of its gradients is lost; without stragglers all ranks
all-reduce.  Once in ten updates it looks whether others have become stragglers.

Source: STAR's all-reduce form: Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685.  Of the paper only the abstract and the first sentences
of the introduction were at hand.  The abstract's: that STAR works with all-reduce too.  From the
released code: more than 20 % slower than the fastest rank is a straggler, ring and riders, no
waiting for riders, ten updates.  Ours: it is *who* straggles that counts, where the code compares
only how many do; and riders are given to parents by speed instead of by number.

Under this plan the communication times of a view are 0: a rank whose network alone is slow is no
straggler here, though it slows the ring.
"""

from dataclasses import dataclass, field

import numpy as np

from simstrag.policies.estimators.modes import ring_and_riders, stragglers
from simstrag.policies.estimators.predictors import PREDICTORS, Predictor
from simstrag.policy import Plan, PlanError, Quorum, Review, View

REVIEW = Review(updates=10)
EVERYBODY = Plan(suspects=frozenset(), review=REVIEW)


@dataclass(slots=True)
class _State:
    """The last answer and the version it was given at."""

    plan: Plan = EVERYBODY
    version: int = -1


@dataclass(frozen=True)
class StarRing:
    """A ring with riders.

    x: how many ranks are in the ring while there are stragglers, the fastest; None (`auto`) is
        as many as are no stragglers.
    ratio: a straggler's step takes more than this share longer than the fastest rank's.
    predictor: `last` or `median` of the recent times of a rank.
    """

    x: int | None = field(default=None, metadata={"none": "auto"})
    ratio: float = 0.2
    predictor: Predictor = Predictor.MEDIAN
    state_: _State = field(default_factory=_State, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.x is not None and self.x < 1:
            raise ValueError(f"x must be 1 or more, or auto, not {self.x}")
        if not self.ratio > 0:
            raise ValueError(f"ratio must be above 0, not {self.ratio}")

    def plan(self, view: View) -> Plan:
        n, state = view.world_size, self.state_
        if self.x is not None and self.x > n:
            raise PlanError(f"star_ring: x={self.x} is more than {n} ranks")
        if view.version > state.version:
            state.version = view.version
            state.plan = self._planned(view, state.plan)
        return state.plan

    def _planned(self, view: View, before: Plan) -> Plan:
        """The same object unless others straggle; nothing is decided before all are known."""
        t = PREDICTORS[self.predictor.value](view.local_times, view.communication)
        if np.isnan(t).any():
            return before
        slow = stragglers(t, self.ratio)
        if slow == before.suspects:
            return before
        if not slow:
            return EVERYBODY
        ring, riders = ring_and_riders(t, len(t) - len(slow) if self.x is None else self.x)
        return Plan((Quorum(ring, riders=riders),), suspects=slow, review=REVIEW)
