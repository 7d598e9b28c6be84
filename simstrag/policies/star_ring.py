"""The fast ranks all-reduce; a straggler's gradient rides with one of them when it is ready.

No update waits for a straggler, and none of its gradients is lost. Without stragglers all ranks
all-reduce. Every ten updates the policy looks for other stragglers.

Source: STAR's all-reduce form: Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685.  Only the abstract and the first sentences of the
introduction were at hand.  The abstract's: STAR works with all-reduce too.  From the released code:
a straggler is more than 20 % slower than the fastest rank, ring and riders, no waiting for riders,
ten updates.  Ours: a plan changes with the *set* of stragglers, where the code compares only their
number; riders get their parents by speed instead of by number.

Under this plan the communication times of a view are 0: a rank whose network alone is slow is no
straggler here, though it slows the ring.
"""

from dataclasses import dataclass, field

import numpy as np

from simstrag.contract import Plan, PlanError, Quorum, Review, View
from simstrag.policies.estimators.predictors import ALLOWED, PredictsTimes
from simstrag.policies.estimators.time_to_progress import find_stragglers, ring_and_riders

REVIEW = Review(updates=10)
ALL_RANKS = Plan(suspects=frozenset(), review=REVIEW)


@dataclass(slots=True)
class _State:
    plan: Plan = ALL_RANKS
    version: int = -1


@dataclass(frozen=True)
class StarRing(PredictsTimes):
    """A ring with riders.

    x: ranks in the ring while there are stragglers, the fastest; None (`auto`) is all ranks that
        are no stragglers.
    ratio: a rank is a straggler if its step is longer than the fastest rank's by more than this
        share.
    predictor: `last` or `median` of the recent times of a rank, `oracle`, or `lstm:FILE`.
    """

    title = "STAR's ring with riders"
    lane = "B"

    x: int | None = field(default=None, metadata={"none": "auto"})
    ratio: float = 0.2
    predictor: str = field(default="median", metadata={"allowed": ALLOWED})
    state_: _State = field(default_factory=_State, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._load()
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
            state.plan = self._next_plan(view, state.plan)
        return state.plan

    def _next_plan(self, view: View, before: Plan) -> Plan:
        """A plan; the same object while the stragglers stay, or a rank's time is unknown."""
        t = self.predictor_(view)
        if np.count_nonzero(np.isnan(t)):
            return before
        slow = find_stragglers(t, self.ratio)
        if slow == before.suspects:
            return before
        if not slow:
            return ALL_RANKS
        ring, riders = ring_and_riders(t, len(t) - len(slow) if self.x is None else self.x)
        return Plan((Quorum(ring, riders=riders),), suspects=slow, review=REVIEW)
