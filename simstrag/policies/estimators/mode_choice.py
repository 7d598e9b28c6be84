"""What STAR-H and STAR-ML share: when they decide, the source of the noise scale, their plans.

While no rank straggles all work as one.  When the set of stragglers changes, a mode is chosen.
"""

from __future__ import annotations

import abc
import enum
import math
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract import UNLIMITED, Block, Plan, Quorum, Review, Via, View
from simstrag.errors import PlanError
from simstrag.policies.estimators.gradient_noise_tables import noise_scale
from simstrag.policies.estimators.gradient_trees import with_trees
from simstrag.policies.estimators.predictors import PredictsTimes, median, predict
from simstrag.policies.estimators.time_to_progress import straggle

Quorums = tuple[Quorum, ...]
COUNTED = ("decisions", "switches", "ssgd", "static", "dynamic", "ring")


class NoiseSource(enum.Enum):
    """The source of the noise scale: the view, its hints, or a table of `gradient_noise_tables`."""

    LIVE = "live"
    HINT = "hint"
    ALEXNET = "alexnet"
    RESNET20 = "resnet20"
    DENSENET121 = "densenet121"
    GOOGLENET = "googlenet"


@dataclass(slots=True)
class ModeState:
    """The last plan, its stragglers and version (the first decision follows an update), counts."""

    plan: Plan | None = None
    slow: Bools | None = None
    version: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))


class ChoosesModes(PredictsTimes, abc.ABC):
    """A policy that defines `_choose_mode` and, as fields, those below."""

    predictor: str
    noise: NoiseSource
    phi: float | None
    ratio: float
    tree: bool
    state_: ModeState

    def _check(self, positive: tuple[str, ...], others: tuple[str, ...]) -> None:
        """Raise `ValueError` for a parameter that is not positive, or not 0 or more and finite."""
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        for name in others:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be 0 or more and finite, not {value}")

    def plan(self, view: View) -> Plan:
        state = self.state_
        if state.plan is None:
            self._require_known(view)
            state.plan = self._plan_of(self._together(), np.arange(0), view)
        if view.version > state.version:
            state.version = view.version
            state.plan = self._review(state.plan, view)
        return state.plan

    @property
    def reviews_ahead(self) -> int:
        """Any number, where times are predicted by medians."""
        return UNLIMITED if self.predictor == "median" else 0

    def first_change(self, block: Block) -> int:
        state = self.state_
        if state.plan is None:
            return 0
        t = predict(median, block)
        slow = straggle(t, self.ratio)
        changes = np.count_nonzero(slow if state.slow is None else slow != state.slow, axis=1) > 0
        changes &= np.count_nonzero(np.isnan(t), axis=1) == 0
        stays = int(changes.argmax()) if np.count_nonzero(changes) else len(block)
        if stays:
            state.version = int(block.versions[stays - 1])
        return stays

    def summary(self) -> dict[str, int | float]:
        """Decisions, those that changed the quorums, and decisions for each mode."""
        return dict(self.state_.counts)

    def predicted(self, view: View) -> Floats:
        """Seconds of each rank's next step, computing and communication; shape (N,)."""
        return self.predictor_(view)

    @abc.abstractmethod
    def _choose_mode(self, t: Floats, phi: float, view: View) -> tuple[str, Quorums]:
        """The mode, as `COUNTED` names it, and its quorums.

        t: as of `predicted`.
        phi: the noise scale in samples.
        """

    def _together(self) -> Quorums:
        """The quorum of SSGD."""
        return (Quorum(via=Via.SERVER),)

    def _review(self, before: Plan, view: View) -> Plan:
        """A plan; the same object while the stragglers stay, or a needed fact is not known yet."""
        t = self.predicted(view)
        if np.count_nonzero(np.isnan(t)):
            return before
        state, slow = self.state_, straggle(t, self.ratio)
        if not np.count_nonzero(slow if state.slow is None else slow != state.slow):
            return before
        suspects = slow.nonzero()[0]
        if not len(suspects):
            mode, quorums = "ssgd", self._together()
        elif (phi := self._phi(view)) is None:  # real ranks have no estimate before some updates
            return before
        else:
            mode, quorums = self._choose_mode(t, phi, view)
        after = self._plan_of(quorums, suspects, view)
        state.slow = slow
        counts = state.counts
        counts["decisions"] += 1
        counts["switches"] += after.quorums != before.quorums
        counts[mode] += 1
        return after

    @property
    def _name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def _require_known(self, view: View) -> None:
        """Raise `PlanError` for a hint that a choice needs, and that will not come later."""
        if self.tree and view.hints.nodes is None:
            raise PlanError(
                f"{self._name}:tree=true: the node of each rank is unknown (hints.nodes)"
            )
        if view.hints.batch is None:
            raise PlanError(
                f"{self._name}: the samples of a gradient are unknown (hints.batch); give the batch"
            )
        if self.noise is NoiseSource.HINT and self._phi(view) is None:
            raise PlanError(
                f"{self._name}: the noise scale is unknown (noise=hint); give phi=..., in samples, "
                "noise=live, or the table of a model, such as noise=resnet20"
            )

    @staticmethod
    def _samples_of(view: View) -> int:
        """Samples of a gradient."""
        assert view.hints.batch is not None
        return view.hints.batch

    def _phi(self, view: View) -> float | None:
        """The noise scale in samples; None where it is unknown."""
        if self.phi is not None:
            return self.phi
        if self.noise is NoiseSource.LIVE:
            return view.noise_scale
        if self.noise is NoiseSource.HINT:
            return view.hints.noise_scale
        total_batch = view.world_size * self._samples_of(view)
        return noise_scale(self.noise.value, total_batch, view.samples)

    def _plan_of(self, quorums: Quorums, slow: Ints, view: View) -> Plan:
        """A plan with a review once per round."""
        if self.tree:
            quorums = with_trees(quorums, view, np.isin(np.arange(view.world_size), slow))
        review = Review(samples=view.world_size * self._samples_of(view))
        return Plan(quorums, suspects=slow, review=review)
