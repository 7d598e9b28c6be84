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

from simstrag import metrics
from simstrag.metrics import Estimate

__all__ = ["FORETOLD", "MISSED", "NOISY", "Pair", "Verdict", "judged", "mitigations", "pairs"]

LEAST, MOST = 0.05, 0.10
"""Tolerated relative error: the least, however little runs differ, and the most."""

FORETOLD, MISSED, NOISY = "foretold", "not foretold", "too noisy: not shown"


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

    Foretold is what is off by at most 5 %, or by at most two standard deviations of the real runs
    if that is more, but never by more than 10 %.  Where two standard deviations are more than 10 %,
    an error above 5 % shows nothing.

    >>> judged([10.0, 10.2, 9.8], [10.3]).word, judged([10.0, 10.2, 9.8], [11.1]).word
    ('foretold', 'not foretold')
    >>> judged([10.0, 12.0, 8.0], [11.0]).word
    'too noisy: not shown'
    """
    mean, said = statistics.fmean(real), statistics.fmean(simulated)
    spread = statistics.stdev(real) / mean if len(real) > 1 else math.nan
    error = (said - mean) / mean
    twice = 0.0 if math.isnan(spread) else 2 * spread
    allowed = min(max(LEAST, twice), MOST)
    if abs(error) <= LEAST:
        word = FORETOLD
    elif twice > MOST:
        word = NOISY
    else:
        word = FORETOLD if abs(error) <= allowed else MISSED
    return Verdict(mean, said, spread, error, allowed, word)


class Pair(NamedTuple):
    """Two policies under one schedule, the one that was really faster first.

    real, simulated: by how much the second takes longer, as a share of the first's makespan.
    tie: whether real runs leave open which is faster.  right: whether the simulation has the same
    one in front; a tie is right whatever it says.
    """

    faster: str
    slower: str
    real: float
    simulated: float
    tie: bool
    right: bool


def pairs(
    real: Mapping[str, Sequence[float]], simulated: Mapping[str, Sequence[float]]
) -> list[Pair]:
    """Every pair of policies; repetition k of each ran side by side, so differences are paired.

    A tie is a mean difference of no more than two of its standard errors; with one repetition,
    which has none, there are no ties.

    >>> [pair.right for pair in pairs({"a": [1, 1.1], "b": [2, 2.1]}, {"a": [1], "b": [3]})]
    [True]
    """
    found = []
    for one, other in itertools.combinations(real, 2):
        first, second = sorted((one, other), key=lambda each: statistics.fmean(real[each]))
        differences = [b - a for a, b in zip(real[first], real[second], strict=False)]
        mean, n = statistics.fmean(differences), len(differences)
        error = statistics.stdev(differences) / math.sqrt(n) if n > 1 else 0.0
        said = statistics.fmean(simulated[second]) - statistics.fmean(simulated[first])
        tie = mean <= 2 * error
        found.append(
            Pair(
                first, second, mean / statistics.fmean(real[first]),
                said / statistics.fmean(simulated[first]), tie, tie or said > 0,
            )
        )  # fmt: skip
    return found


def mitigations(policy: Sequence[float], bsp: Sequence[float], clean: Sequence[float]) -> Estimate:
    """M with its interval: a bootstrap over repetitions, of which repetition k ran side by side."""
    n = min(len(policy), len(bsp), len(clean))
    return metrics.mitigation(*(np.asarray(each[:n], np.float64) for each in (policy, bsp, clean)))
