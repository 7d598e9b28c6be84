"""While there are stragglers, the mode with the least estimated time to progress; else all as one.

The modes are an update of every x gradients, for each x, and groups of similar speed that update
independently; in the ring form a ring of the x fastest, with the others as riders.

Source: STAR-H, the heuristic of Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685.  Only the abstract and the first sentences of the
introduction were at hand.  The abstract's: a heuristic chooses the mode with the shortest time to
accuracy.  From the released code: the straggler state (20 % slower than the fastest), decisions on
its edges, time to progress as interval times 1 + phi/(x*b), the noise tables.  Ours: the least of
all candidates where the code stops at the first local minimum, sorted times as the default interval
(the code's for its all-reduce form only), a new decision when other ranks straggle, the staleness
factor, live noise scales.  docs/star.md lists all differences and the limits of the model.
"""

import enum
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simstrag.policies.estimators.gradient_noise_tables import noise_scale
from simstrag.policies.estimators.predictors import ALLOWED, Predictor, PredictsTimes
from simstrag.policies.estimators.time_to_progress import (
    Interval,
    dynamic_time,
    ring_and_riders,
    static_times,
    straggle,
    ward_clusters,
)
from simstrag.policy import ALL, Plan, PlanError, Quorum, Review, Via, View
from simstrag.ties import Bools, Floats, is_at_most, is_less

Ints = npt.NDArray[np.int64]

Quorums = tuple[Quorum, ...]
COUNTED = ("decisions", "switches", "ssgd", "static", "dynamic", "ring")


class Form(enum.Enum):
    """How gradients become updates."""

    SERVER = "server"
    RING = "ring"


class NoiseSource(enum.Enum):
    """The source of the noise scale: the view, its hints, or a table of `gradient_noise_tables`."""

    LIVE = "live"
    HINT = "hint"
    ALEXNET = "alexnet"
    RESNET20 = "resnet20"
    DENSENET121 = "densenet121"
    GOOGLENET = "googlenet"


@dataclass(slots=True)
class _State:
    """The last plan, its stragglers and version (the first decision follows an update), counts."""

    plan: Plan | None = None
    slow: Bools | None = None
    version: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))


@dataclass(frozen=True)
class StarH(PredictsTimes):
    """STAR's heuristic.

    form: `server`, or `ring` (all-reduce).
    interval: the mean time between updates of x gradients: `order`, `interp` or `simulated`.
    staleness: c; estimates are multiplied by 1 + c*(N/x - 1), for groups with x as their size.
    predictor: `last` or `median` of the recent times of a rank, `oracle`, or `lstm:FILE`.
    noise: where phi comes from: `live`, `hint`, or the table of a model.
    phi: noise scale in samples, instead of `noise`.
    ratio: a rank is a straggler if its step is longer than the fastest rank's by more than this
        share.
    relative, absolute: the threshold between groups, as in star_dynamic.
    """

    title = "STAR-H"
    lane = "C"

    form: Form = Form.SERVER
    interval: Interval = Interval.ORDER
    staleness: float = 0.0
    predictor: str = field(default="median", metadata={"allowed": ALLOWED})
    noise: NoiseSource = NoiseSource.LIVE
    phi: float | None = None
    ratio: float = 0.2
    relative: float = 0.2
    absolute: float | None = None
    predictor_: Predictor = field(init=False, repr=False, compare=False)
    state_: _State = field(default_factory=_State, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._load()
        for name in ("ratio", "relative", "absolute"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        for name in ("staleness", "phi"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be 0 or more and finite, not {value}")

    def plan(self, view: View) -> Plan:
        state = self.state_
        if state.plan is None:
            state.plan = self._plan_of(self._together(), np.arange(0), view)
        if view.version > state.version:
            state.version = view.version
            state.plan = self._review(state.plan, view)
        return state.plan

    def summary(self) -> dict[str, int | float]:
        """Decisions, those that changed the quorums, and decisions for each mode."""
        return dict(self.state_.counts)

    def predicted(self, view: View) -> Floats:
        """Seconds of each rank's next step, computing and communication; shape (N,)."""
        return self.predictor_(view)

    def _review(self, before: Plan, view: View) -> Plan:
        """A plan; the same object while the stragglers stay, or a rank's time is unknown."""
        t = self.predicted(view)
        if np.count_nonzero(np.isnan(t)):
            return before
        state, slow = self.state_, straggle(t, self.ratio)
        if not np.count_nonzero(slow if state.slow is None else slow != state.slow):
            return before
        suspects = slow.nonzero()[0]
        some = len(suspects) > 0
        mode, quorums = self._choose_mode(t, view) if some else ("ssgd", self._together())
        after = self._plan_of(quorums, suspects, view)
        state.slow = slow
        counts = state.counts
        counts["decisions"] += 1
        counts["switches"] += after.quorums != before.quorums
        counts[mode] += 1
        return after

    def _choose_mode(self, t: Floats, view: View) -> tuple[str, Quorums]:
        """The mode with the least time to progress; of tied x the largest."""
        n, b = len(t), view.hints.batch
        if b is None:
            raise PlanError("star_h: the samples of a gradient are unknown (hints.batch)")
        phi = self._phi(view, n * b)
        T = static_times(t, self.interval, phi, b, self.staleness)
        x = 1 + int(np.flatnonzero(is_at_most(T, T.min()))[-1])
        if self.form is Form.RING:
            ring, riders = ring_and_riders(t, x)
            return ("ssgd" if x == n else "ring"), (Quorum(ring if riders else ALL, riders=riders),)
        threshold = self.relative * float(t.min()) if self.absolute is None else self.absolute
        groups = ward_clusters(t, threshold)
        if len(groups) > 1:
            T_dyn = dynamic_time(t, groups, phi, b, self.staleness)
            if is_less(T_dyn, T.min()):
                return "dynamic", tuple(Quorum(group, via=Via.SERVER) for group in groups)
        if x == n:
            return "ssgd", self._together()
        return "static", (Quorum(count=x, via=Via.SERVER),)

    def _phi(self, view: View, total_batch: int) -> float:
        phi = self.phi
        if phi is None and self.noise is NoiseSource.LIVE:
            phi = view.noise_scale
        elif phi is None and self.noise is NoiseSource.HINT:
            phi = view.hints.noise_scale
        elif phi is None:
            phi = noise_scale(self.noise.value, total_batch, view.samples)
        if phi is None:
            raise PlanError(
                f"star_h: the noise scale is unknown (noise={self.noise.value}); give phi=..., in "
                "samples, or the table of a model, such as noise=resnet20"
            )
        return phi

    def _together(self) -> Quorums:
        """The quorum of SSGD in this form."""
        return (Quorum() if self.form is Form.RING else Quorum(via=Via.SERVER),)

    def _plan_of(self, quorums: Quorums, slow: Ints, view: View) -> Plan:
        """A plan with a review once per round."""
        n, b = view.world_size, view.hints.batch
        review = Review(updates=n) if b is None else Review(samples=n * b)
        return Plan(quorums, suspects=slow, review=review)
