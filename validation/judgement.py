"""Is what was simulated true of what was measured?  Answers by rules that were fixed beforehand.

Every number is held against the mean of repeated real runs, and the tolerance comes from their own
spread: where the same run twice differs by more than is allowed, nothing can be shown.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from simstrag.experiments import paired_statistics
from simstrag.experiments.paired_statistics import Estimate

__all__ = ["MISSED", "NOISY", "PREDICTED", "Pair", "Verdict", "judged", "mitigations", "pairs"]

LEAST, MOST = 0.05, 0.10
"""Tolerated relative error: the least, however little runs differ, and the most."""

PREDICTED, MISSED, NOISY = "predicted", "not predicted", "too noisy: not shown"


class Verdict(NamedTuple):
    """A number, real and simulated.

    real, simulated: means.  spread: standard deviation of the real runs over their mean, NaN of
    one.  error: (simulated - real) / real.  allowed: how large it may be.
    """

    real: float
    simulated: float
    spread: float
    error: float
    allowed: float
    word: str


def judged(real: Sequence[float], simulated: Sequence[float]) -> Verdict:
    """Hold the mean of simulated runs against the mean of real ones.

    A case is predicted if the error is at most 5 %, or at most two standard deviations of the real
    runs if that is more, but never more than 10 %.  If two standard deviations exceed 10 %, only an
    error beyond them is a verdict (not predicted); a smaller one shows nothing.

    >>> judged([10.0, 10.2, 9.8], [10.3]).word, judged([10.0, 10.2, 9.8], [11.1]).word
    ('predicted', 'not predicted')
    >>> judged([10.0, 12.0, 8.0], [10.0]).word, judged([10.0, 12.0, 8.0], [15.0]).word
    ('too noisy: not shown', 'not predicted')
    """
    mean, said = statistics.fmean(real), statistics.fmean(simulated)
    spread = statistics.stdev(real) / mean if len(real) > 1 else math.nan
    error = (said - mean) / mean
    twice = 0.0 if math.isnan(spread) else 2 * spread
    allowed = min(max(LEAST, twice), MOST)
    if twice > MOST:
        word = NOISY if abs(error) <= twice else MISSED
    else:
        word = PREDICTED if abs(error) <= allowed else MISSED
    return Verdict(mean, said, spread, error, allowed, word)


class Pair(NamedTuple):
    """Two policies under one schedule, the one that was really faster first.

    real, simulated: by how much the second takes longer, as a share of the first's makespan.
    tie: whether real runs leave open which is faster.  right: whether the simulation has the same
    one in front, which says nothing of a tie.
    """

    faster: str
    slower: str
    real: float
    simulated: float
    tie: bool
    right: bool


def pairs(
    real: Mapping[str, Mapping[int, float]], simulated: Mapping[str, Mapping[int, float]]
) -> list[Pair]:
    """Every pair of policies, of makespans by repetition, and of simulated ones by seed.

    A repetition of each ran side by side, so differences are paired, and one that only one of them
    has is left out.  A tie is a mean difference whose 95 % interval (Student's t) has zero in it;
    of one repetition, or none in common, all are ties.

    >>> real = {"a": {1: 1.0, 2: 1.1}, "b": {1: 2.0, 2: 2.1, 3: 9.0}}
    >>> pair, = pairs(real, {"a": {0: 1.0}, "b": {0: 3.0}})
    >>> pair.faster, round(pair.real, 3), pair.tie, pair.right
    ('a', 0.952, False, True)
    """
    found = []
    for one, other in itertools.combinations(real, 2):
        if not (both := real[one].keys() & real[other].keys()):
            continue
        differences = [real[other][k] - real[one][k] for k in sorted(both)]
        swapped = statistics.fmean(differences) < 0
        first, second = (other, one) if swapped else (one, other)
        mean, n = abs(statistics.fmean(differences)), len(differences)
        said = statistics.fmean(simulated[second].values()) - (
            base := statistics.fmean(simulated[first].values())
        )
        tie = n == 1 or mean <= stats.t.ppf(0.975, n - 1) * statistics.stdev(differences) / n**0.5
        least = statistics.fmean(real[first][k] for k in both)
        found.append(Pair(first, second, mean / least, said / base, bool(tie), said > 0))
    return found


def mitigations(
    policy: Mapping[int, float], bsp: Mapping[int, float], clean: Mapping[int, float]
) -> Estimate:
    """M with its interval: a bootstrap over the repetitions, or seeds, that all three have."""
    common = sorted(policy.keys() & bsp.keys() & clean.keys())
    times = ([each[k] for k in common] for each in (policy, bsp, clean))
    if not common:
        return Estimate(math.nan, math.nan, math.nan)
    return paired_statistics.mitigation(*(np.asarray(each, np.float64) for each in times))
