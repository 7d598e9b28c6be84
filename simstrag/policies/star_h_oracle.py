"""The decisions of star_h with each rank's true step time known.

It sees the true slowdown of the moment instead of recent times, which only a simulation offers.
Compared with star_h it shows the worth of a better predictor of computing times.

Source: STAR-H, the heuristic of Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685, as in star_h; the oracle is ours.
"""

from dataclasses import dataclass

from simstrag.arrays import Floats
from simstrag.contract import PlanError, View
from simstrag.policies.estimators.predictors import RULES, predict
from simstrag.policies.star_h import StarH


@dataclass(frozen=True)
class StarHOracle(StarH):
    __doc__ = StarH.__doc__

    title = "STAR-H with known step times"
    lane = "C"
    oracle = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predictor not in RULES:
            raise ValueError(f"predictor must be last or median, not {self.predictor}")

    def predicted(self, view: View) -> Floats:
        """True noise-free computing of a step that starts now, plus predicted communication."""
        if view.truth is None:
            raise PlanError("star_h_oracle: only a simulation has an oracle; use star_h")
        return predict(RULES[self.predictor], view, view.truth())
