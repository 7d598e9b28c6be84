"""Ranks of similar speed form groups that update independently; each waits for its members alone.

Groups are clusters of predicted step times, formed about once per round. Where all ranks are of one
speed they are one group, which is bsp through a server.

Source: STAR's dynamic x-order: Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685.  Only the abstract and the first sentences of the
introduction were at hand.  The abstract's: workers are grouped for updates.  From the released
code: Ward clusters of the times, a group's update at its last member's arrival, weights 1/N, 50 ms
as threshold.  Ours: a threshold relative to the fastest rank as the default, the predictor, and a
review every N*b samples.
"""

from dataclasses import dataclass, field

import numpy as np

from simstrag.contract import Plan, Quorum, Review, Via, View
from simstrag.policies.estimators.predictors import ALLOWED, PredictsTimes
from simstrag.policies.estimators.time_to_progress import ward_clusters

Groups = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _State:
    groups: Groups = ()
    plan: Plan | None = None
    version: int = -1


@dataclass(frozen=True)
class StarDynamic(PredictsTimes):
    """Dynamic x-order.

    relative: the threshold between two ranks, as a share of the fastest rank's step; between
        groups it limits Ward's cost (docs/star.md).
    absolute: the threshold in seconds instead; 0.05 in the released code.
    predictor: `last` or `median` of the recent times of a rank, `oracle`, or `lstm:FILE`.
    """

    title = "STAR's dynamic groups"
    lane = "C"

    relative: float = 0.2
    absolute: float | None = None
    predictor: str = field(default="median", metadata={"allowed": ALLOWED})
    state_: _State = field(default_factory=_State, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._load()
        for name in ("relative", "absolute"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")

    def plan(self, view: View) -> Plan:
        state = self.state_
        if state.plan is None or view.version > state.version:
            state.version = view.version
            groups = self._groups(view, state.groups)
            if state.plan is None or groups != state.groups:
                state.groups, state.plan = groups, _plan_of(groups, view)
        return state.plan

    def _groups(self, view: View, before: Groups) -> Groups:
        """Groups of ranks, none for all together; those in force while a time is unknown."""
        t = self.predictor_(view)
        if np.count_nonzero(np.isnan(t)):
            return before
        threshold = self.relative * t.min() if self.absolute is None else self.absolute
        groups = tuple(tuple(group.tolist()) for group in ward_clusters(t, threshold))
        return groups if len(groups) > 1 else ()


def _plan_of(groups: Groups, view: View) -> Plan:
    n, b = view.world_size, view.hints.batch
    review = Review(updates=n) if b is None else Review(samples=n * b)
    if not groups:
        return Plan((Quorum(via=Via.SERVER),), review=review)
    return Plan(tuple(Quorum(group, via=Via.SERVER) for group in groups), review=review)
