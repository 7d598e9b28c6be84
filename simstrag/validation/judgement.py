"""Verdicts: whether a simulated number agrees with repeated real runs, by rules fixed beforehand.

The tolerance follows from the spread of the real runs. If two real runs of one case differ by more
than the largest tolerance, the verdict is "too noisy".
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

LEAST, MOST = 0.05, 0.10
"""Smallest and largest tolerance, as relative errors."""

PREDICTED, MISSED, NOISY = "predicted", "not predicted", "too noisy: not shown"


class Verdict(NamedTuple):
    """A simulated number against the real one.

    real: mean over real runs.
    simulated: mean over simulated runs.
    spread: standard deviation of the real runs over their mean; NaN for a single run.
    error: (simulated - real) / real.
    allowed: largest error that counts as predicted.
    """

    real: float
    simulated: float
    spread: float
    error: float
    allowed: float
    word: str


def judge(real: Sequence[float], simulated: Sequence[float]) -> Verdict:
    """The verdict on the mean of simulated runs against the mean of real runs.

    A case is predicted if the error is at most 5 %, or at most two standard deviations of the real
    runs if that is more, but never more than 10 %.  If two standard deviations exceed 10 %, only an
    error beyond them is a verdict (not predicted); a smaller one shows nothing.

    >>> judge([10.0, 10.2, 9.8], [10.3]).word, judge([10.0, 10.2, 9.8], [11.1]).word
    ('predicted', 'not predicted')
    >>> judge([10.0, 12.0, 8.0], [10.0]).word, judge([10.0, 12.0, 8.0], [15.0]).word
    ('too noisy: not shown', 'not predicted')
    """
    mean, prediction = statistics.fmean(real), statistics.fmean(simulated)
    spread = statistics.stdev(real) / mean if len(real) > 1 else math.nan
    error = (prediction - mean) / mean
    twice = 0.0 if math.isnan(spread) else 2 * spread
    allowed = min(max(LEAST, twice), MOST)
    if twice > MOST:
        word = NOISY if abs(error) <= twice else MISSED
    else:
        word = PREDICTED if abs(error) <= allowed else MISSED
    return Verdict(mean, prediction, spread, error, allowed, word)


class PolicyPair(NamedTuple):
    """Two policies under one schedule, ordered by their real makespans.

    real, simulated: extra time of the slower one, as a share of the makespan of the faster one.
    tie: the real runs do not decide which is faster.
    right: the simulation has the same order; meaningless for a tie.
    """

    faster: str
    slower: str
    real: float
    simulated: float
    tie: bool
    right: bool


def pairs(
    real: Mapping[str, Mapping[int, float]], simulated: Mapping[str, Mapping[int, float]]
) -> list[PolicyPair]:
    """All pairs of policies, compared by paired differences of their makespans.

    real: makespans by policy and repetition.  Repetitions of two policies ran close in time, so
        differences are paired; a repetition that only one of them has is left out.
    simulated: makespans by policy and seed.

    A tie is a mean difference whose 95 % interval (Student's t) contains zero.  With fewer than two
    common repetitions every pair is a tie.

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
        gap = statistics.fmean(simulated[second].values()) - (
            base := statistics.fmean(simulated[first].values())
        )
        tie = n == 1 or mean <= stats.t.ppf(0.975, n - 1) * statistics.stdev(differences) / n**0.5
        least = statistics.fmean(real[first][k] for k in both)
        found.append(PolicyPair(first, second, mean / least, gap / base, bool(tie), gap > 0))
    return found


def mitigations(
    policy: Mapping[int, float], bsp: Mapping[int, float], clean: Mapping[int, float]
) -> Estimate:
    """Mitigation M with a Fieller interval over the repetitions that all three have."""
    common = sorted(policy.keys() & bsp.keys() & clean.keys())
    times = ([each[k] for k in common] for each in (policy, bsp, clean))
    if not common:
        return Estimate(math.nan, math.nan, math.nan)
    return paired_statistics.mitigation(*(np.asarray(each, np.float64) for each in times))
