"""Advice for one job: what a search recommends, with the comparison of its finalists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from simstrag.advice.halving import CandidateResult
from simstrag.advice.recommendation import Recommendation
from simstrag.experiments.comparison import BASELINE, Comparison
from simstrag.experiments.criterion import MEAN, Criterion


@dataclass(frozen=True, kw_only=True)
class Advice(Recommendation):
    """Advice for one scenario.

    comparison: of the finalists.
    unlaunched: seconds of bsp under the first seeds if launching took no time; empty where
        launching does not overlap the device.
    """

    comparison: Comparison
    unlaunched: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        comparison: Comparison,
        trials: tuple[CandidateResult, ...],
        excluded: Mapping[str, str],
        beyond: tuple[str, ...],
        unlaunched: tuple[float, ...] = (),
        by: Criterion = MEAN,
    ) -> Self:
        """The advice that a comparison of finalists supports."""
        d = comparison.answer.decision
        return cls(
            samples=d.samples, lane_of=d.lane_of,
            certain=comparison.scenario.certain, trials=trials,
            excluded=excluded, beyond=beyond, comparison=comparison, unlaunched=unlaunched,
            by=by,
        )  # fmt: skip

    @cached_property
    def answer(self) -> Any:
        """The answer of the comparison, `simstrag.analysis.text.answer.Answer`."""
        return self.comparison.answer

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the comparison that no sentence of the advice says."""
        return tuple(each for each in self.comparison.warnings if each not in self.beyond)

    @property
    def lines(self) -> tuple[str, ...]:
        """The two lines that run the choice on real ranks: one of the script, one of the shell."""
        scenario = self.comparison.scenario
        return (
            f'trainer = simstrag.ddp.wrap(model, optimizer, policy="{self.choice}", '
            f"batch={scenario.learner.batch})",
            f"simstrag ddp train.py --ranks {scenario.workers}",
        )

    @property
    def launching(self) -> float | None:
        """Share of the time of bsp that launching costs, if no finalist gains more than it."""
        if not self.unlaunched:
            return None
        seeds = len(self.unlaunched)
        means = {policy: float(times[:seeds].mean()) for policy, times in self.times.items()}
        without = sum(self.unlaunched) / seeds
        return 1 - without / means[BASELINE] if without < min(means.values()) else None

    def hours(self, policy: str) -> float:
        """Mean GPU-hours of a run."""
        return float(self.times[policy].mean()) * self.comparison.scenario.gpus / 3600

    def to_dict(self) -> dict[str, Any]:
        """The advice for JSON, with the answer of the comparison."""
        return super().to_dict() | {"launching": self.launching, "answer": self.answer.to_dict()}

    def _repr_html_(self) -> str:
        return self.comparison._repr_html_()
