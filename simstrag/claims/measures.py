"""What a claim measures: functions of the runs of a few policies at one point of a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simstrag.arrays import Floats
from simstrag.experiments import paired_statistics
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate


@dataclass(frozen=True, slots=True)
class PointRuns:
    """The runs at one point.

    summaries: of each policy, in the order of the seeds.
    clean: those of bsp without contention; empty where the measure needs none.
    has_target: whether runs end at a target.
    outside: the probability that a measure lies outside its interval.
    """

    summaries: Mapping[str, Sequence[Mapping[str, Any]]]
    clean: Sequence[Mapping[str, Any]]
    has_target: bool
    outside: float = 0.05

    def column(self, policy: str, name: str) -> Floats:
        """One number of a policy's runs, shape (seeds,); NaN where it is not known."""
        values = [run[name] for run in self.summaries[policy]]
        return np.array([math.nan if v is None else v for v in values], dtype=np.float64)

    def times(self, policy: str) -> Floats:
        """Seconds to the target, shape (seeds,); where it was missed, those until the run ended."""
        return seconds(self.summaries[policy])

    def misses(self, policy: str) -> int:
        """How many runs ended before they reached the target, or diverged; 0 without a target."""
        runs = self.summaries[policy] if self.has_target else ()
        return sum(run["time_to_target"] is None for run in runs)


def seconds(runs: Sequence[Mapping[str, Any]]) -> Floats:
    """Seconds to the target of each run; where it has or reached none, its makespan."""
    times = (r["makespan"] if r["time_to_target"] is None else r["time_to_target"] for r in runs)
    return np.array([*times], dtype=np.float64)


class ClaimMeasure(NamedTuple):
    """A measure of a claim.

    words: its name.
    unit: "%" for a share, "x" for a ratio.
    of: the estimate from the runs, the policy and its rivals.
    needs_clean: whether bsp is also simulated without contention.
    column: the number of a run that is compared.
    """

    words: str
    unit: str
    of: Callable[[PointRuns, str, Sequence[str]], Estimate]
    needs_clean: bool = False
    column: str = "time"


def _delay_removed(runs: PointRuns, policy: str, _: Sequence[str]) -> Estimate:
    own, bsp, clean = runs.times(policy), runs.times(BASELINE), seconds(runs.clean)
    return paired_statistics.mitigation(own, bsp, clean, outside=runs.outside)


def _least_speedup(runs: PointRuns, policy: str, rivals: Sequence[str]) -> Estimate:
    """The least value and the least ends: the claim is about every rival."""
    own = runs.times(policy)
    found = [paired_statistics.speedup(own, runs.times(each), runs.outside) for each in rivals]
    return Estimate(*np.min(found, axis=0).tolist())


def _mean_speedup(runs: PointRuns, policy: str, rivals: Sequence[str]) -> Estimate:
    times = np.mean([runs.times(rival) for rival in rivals], axis=0)
    return paired_statistics.speedup(runs.times(policy), times, runs.outside)


def speedups(runs: PointRuns, policy: str, rival: str) -> Floats:
    """The speed-up over a rival under each seed, shape (seeds,)."""
    return runs.times(rival) / runs.times(policy)


def _mean_of_speedups(runs: PointRuns, policy: str, rivals: Sequence[str]) -> Estimate:
    each = np.mean([speedups(runs, policy, rival) for rival in rivals], axis=0)
    return paired_statistics.mean(each, runs.outside)


def _least_saving(runs: PointRuns, policy: str, rivals: Sequence[str]) -> Estimate:
    found = _least_speedup(runs, policy, rivals)
    return Estimate(*(1 - 1 / x if x > 0 else math.nan for x in found))


def _equal_work(runs: PointRuns, policy: str, rivals: Sequence[str]) -> Estimate:
    own, other = (runs.column(name, "makespan") for name in (policy, rivals[0]))
    return paired_statistics.speedup(own, other, runs.outside)


def _accuracy_gain(runs: PointRuns, policy: str, rivals: Sequence[str]) -> Estimate:
    others = np.mean([runs.column(rival, "accuracy") for rival in rivals], axis=0)
    found = paired_statistics.ratio(runs.column(policy, "accuracy"), others, runs.outside)
    return Estimate(*(x - 1 for x in found))


def _accuracy_points(runs: PointRuns, policy: str, rivals: Sequence[str]) -> Estimate:
    own, other = (runs.column(name, "accuracy") for name in (policy, rivals[0]))
    return paired_statistics.difference(own, other, runs.outside)


DELAY_REMOVED = ClaimMeasure("share of bsp's straggler delay removed", "%", _delay_removed, True)
SPEEDUP = ClaimMeasure("speed-up over the fastest of the others", "x", _least_speedup)
MEAN_SPEEDUP = ClaimMeasure("speed-up over the mean time of the others", "x", _mean_speedup)
MEAN_OF_SPEEDUPS = ClaimMeasure("mean of the speed-ups over the others", "x", _mean_of_speedups)
SAVING = ClaimMeasure("time saved against the fastest of the others", "%", _least_saving)
EQUAL_WORK = ClaimMeasure("speed-up at equal samples", "x", _equal_work)
ACCURACY_GAIN = ClaimMeasure(
    "final accuracy above the mean of the others", "%", _accuracy_gain, column="accuracy"
)
ACCURACY_POINTS = ClaimMeasure(
    "difference of final accuracy", "%", _accuracy_points, column="accuracy"
)
