"""Distributions of makespans and of steps, real against simulated, over many repetitions of a case.

Verdicts compare means; an operator plans by the slow tail.  Steps within a run resemble each other,
so a run is what is drawn: the chance level permutes whole runs, and steps have intervals by
resampling whole runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from simstrag.arrays import Bools, Floats
from simstrag.experiments.run_spread import RunSpread, predict_run

FEWEST = 10
"""Finished real runs of a case below which its distributions are not compared."""
SEEDS = 400
"""Simulated runs of a case; from 368 on their 99 % quantile has an interval with two ends."""
LEVELS = (0.5, 0.9, 0.99)
"""Quantiles that are compared."""
OUTSIDE = 0.05
"""Share of pairs from one law that lie farther apart than the chance level, and outside of an
interval."""
BEYOND = 5
"""Runs beyond a quantile of steps below which it has no interval."""
ROUNDS = 499
"""Permutations and resamples."""


class RunSample(NamedTuple):
    """One run. steps: local seconds of the steps of all ranks that ended within the makespan."""

    makespan: float
    steps: Floats


class Quantile(NamedTuple):
    """A quantile with its 95 % interval; NaN where runs are too few to tell the value or an end.

    level: 0 to 1.
    """

    level: float
    value: float
    low: float
    high: float


class Distance(NamedTuple):
    """Two samples of runs, real and simulated.

    ks: Kolmogorov-Smirnov distance, the largest difference of their cumulative shares.
    chance: distance that samples of these sizes from one law exceed in `OUTSIDE` of cases.
    p: share of permutations of whole runs with at least this distance.
    shape: distance after each sample is divided by its median.
    """

    ks: float
    chance: float
    p: float
    shape: float
    real: tuple[Quantile, ...]
    simulated: tuple[Quantile, ...]

    @property
    def beyond_chance(self) -> bool:
        """Whether one law rarely leaves its samples so far apart."""
        return self.p <= OUTSIDE


class Distributions(NamedTuple):
    """The distributions of one case.

    runs, seeds: real and simulated runs.
    one_run: where one further simulated run ends in nine of ten cases.
    inside: real runs that ended there.
    curves: makespans, real and simulated, then steps likewise, in ascending order.
    """

    runs: int
    seeds: int
    makespan: Distance
    step: Distance
    one_run: RunSpread
    inside: int
    curves: tuple[tuple[Floats, Floats], tuple[Floats, Floats]]

    def document(self) -> dict[str, object]:
        """The fields for JSON, without the curves."""
        found = {k: v for k, v in self._asdict().items() if k != "curves"}
        return found | {"one_run": self.one_run.to_dict()}


def compare(real: Sequence[RunSample], simulated: Sequence[RunSample]) -> Distributions:
    """The distributions of one case, by its real and its simulated runs."""
    times, simulated_times = (np.array([run.makespan for run in k]) for k in (real, simulated))
    steps, simulated_steps = ([run.steps for run in runs] for runs in (real, simulated))
    spread = predict_run(simulated_times)
    return Distributions(
        len(real), len(simulated),
        _distance(
            list(times[:, None]), list(simulated_times[:, None]),
            order_quantiles(times), order_quantiles(simulated_times),
        ),
        _distance(
            steps, simulated_steps, run_quantiles(steps), run_quantiles(simulated_steps)
        ),
        spread, int(((times >= spread.low) & (times <= spread.high)).sum()),
        (
            (np.sort(times), np.sort(simulated_times)),
            (np.sort(np.concatenate(steps)), np.sort(np.concatenate(simulated_steps))),
        ),
    )  # fmt: skip


def _distance(
    real: Sequence[Floats],
    simulated: Sequence[Floats],
    of_real: tuple[Quantile, ...],
    of_simulated: tuple[Quantile, ...],
) -> Distance:
    """The distance of two samples; each run is an array of its values."""
    ks, permuted = ks_distances(real, simulated)
    one, other = ([each / np.median(each)] for each in map(np.concatenate, (real, simulated)))
    shape, _ = ks_distances(one, other, rounds=0)
    p = (1 + int((permuted >= ks - 1e-12).sum())) / (1 + len(permuted))
    chance = float(np.quantile(permuted, 1 - OUTSIDE, method="higher"))
    return Distance(ks, chance, p, shape, of_real, of_simulated)


def ks_distances(
    real: Sequence[Floats], simulated: Sequence[Floats], rounds: int = ROUNDS
) -> tuple[float, Floats]:
    """The Kolmogorov-Smirnov distance of the pooled values, and those of permuted runs.

    A permutation chooses as many of all runs as there are real ones, and takes them for real.

    >>> float(ks_distances([np.array([1.0, 2.0])], [np.array([2.5, 3.0])], rounds=0)[0])
    1.0
    """
    runs = [*real, *simulated]
    sizes = np.array([len(run) for run in runs])
    values = np.concatenate(runs)
    order = np.argsort(values)
    owner = np.repeat(np.arange(len(runs)), sizes)[order]
    last = np.append(np.diff(values[order]) > 0, True)  # equal values jump together

    def distance(chosen: Bools) -> float:
        jumps = np.where(chosen, 1 / sizes[chosen].sum(), -1 / sizes[~chosen].sum())
        return float(np.abs(np.cumsum(jumps[owner])[last]).max())

    own, rng = np.arange(len(runs)) < len(real), np.random.default_rng(0)
    permuted = np.array([distance(rng.permutation(own)) for _ in range(rounds)])
    return distance(own), permuted


def order_ranks(n: int, level: float) -> tuple[int, int]:
    """Ranks of the order statistics that enclose a quantile of any continuous law.

    Of n independent values, counted from 1.  The quantile lies below the lower one with probability
    `OUTSIDE` / 2 at most, and likewise above the upper one.  0 and n + 1 are no values: n is too
    small for that end.

    >>> order_ranks(20, 0.5), order_ranks(20, 0.9), order_ranks(400, 0.99)
    ((6, 15), (15, 21), (392, 400))
    """
    low, high = stats.binom.ppf((OUTSIDE / 2, 1 - OUTSIDE / 2), n, level)
    return int(low), int(high) + 1


def order_quantiles(values: Floats) -> tuple[Quantile, ...]:
    """Quantiles of independent values with distribution-free intervals, by order statistics.

    A value needs 1 / (1 - level) values; an end of its interval more.
    """
    n, ends, found = len(values), np.concatenate([[math.nan], np.sort(values), [math.nan]]), []
    for level in LEVELS:
        low, high = order_ranks(n, level)
        value = float(np.quantile(values, level)) if n * (1 - level) >= 1 - 1e-9 else math.nan
        found.append(Quantile(level, value, float(ends[low]), float(ends[high])))
    return tuple(found)


def run_quantiles(runs: Sequence[Floats]) -> tuple[Quantile, ...]:
    """Quantiles of the pooled values, with intervals by resampling whole runs (percentiles).

    Few runs hardly vary in their tails, so an end is given where `BEYOND` runs lie beyond the
    level: with 10 runs such an interval of a 99 % quantile would hold it in a third of cases.
    """
    values = np.concatenate(runs)
    order = np.argsort(values)
    values, owner = values[order], np.repeat(np.arange(len(runs)), list(map(len, runs)))[order]
    rng, drawn = np.random.default_rng(0), np.empty((ROUNDS, len(LEVELS)))
    for row in drawn:
        times = np.bincount(rng.integers(len(runs), size=len(runs)), minlength=len(runs))
        below = np.cumsum(times[owner])
        row[:] = values[np.searchsorted(below, np.array(LEVELS) * below[-1])]
    ends = np.quantile(drawn, (OUTSIDE / 2, 1 - OUTSIDE / 2), axis=0)
    points = np.quantile(values, LEVELS)
    return tuple(
        Quantile(level, float(point), *(map(float, end) if known else (math.nan, math.nan)))
        for level, point, *end in zip(LEVELS, points, *ends, strict=True)
        for known in [len(runs) * (1 - level) >= BEYOND - 1e-9]
    )
