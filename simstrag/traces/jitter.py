"""Levels of a log of loads: which of its changes are load, and which are jitter.

The scale s of the jitter of a host is von Neumann's, of the differences of successive samples, with
the median absolute deviation in place of the mean square: steps of the load do not enlarge it, as
long as most differences have none.  It is no less than half the unit of rounding, and than the
median over hosts, since a short series may be calm by chance.  A correlation of what is left of
successive samples enlarges s to that of the mean of many (an autoregression of first order).

A level is the mean between two changes.  Changes are those with the least sum of squares where each
of them costs 2 ln(n) s^2, with n the samples of the log (Schwarz' criterion).  An episode of m
samples has two, and is seen from 2 s sqrt(ln(n) / m) on.

Sources: von Neumann, "Distribution of the ratio of the mean square successive difference to the
variance", Annals of Mathematical Statistics 12, 1941; Yao, "Estimating the number of change-points
via Schwarz' criterion", Statistics & Probability Letters 6, 1988; the search is that of Killick,
Fearnhead and Eckley, "Optimal detection of changepoints with a linear computational cost", JASA
107, 2012, among places found in intervals as by Kovács, Bühlmann, Li and Munk, "Seeded binary
segmentation", Biometrika 110, 2023.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Ints, Reals

LEAST_SAMPLES = 20
"""Samples of a host from which on its jitter is estimated."""
MOST_JITTER = 0.05
"""Largest scale that is taken as jitter; what changes by more from sample to sample is load."""
RESOLUTIONS = (0.01, 0.001)
"""Units to which exporters round: percent, and tenths of it."""
MOST_CORRELATION = 0.9
TO_DEVIATION = 1.4826 / math.sqrt(2)
"""From the median absolute deviation of differences of normal values to the deviation of one."""


class Levels(NamedTuple):
    """The loads of a host without jitter.

    level: of each sample.
    error: by how much each level may differ from an equal one by jitter alone.
    scale: the standard deviation of the jitter; infinity where samples are too few to tell.
    least: load times the root of the samples that it lasts from which on it is seen.
    """

    level: Reals
    error: Reals
    scale: float
    least: float


def levels_of(series: Sequence[Reals]) -> list[Levels]:
    """The levels of a log: of each host, its shares (0 to 1) in order of time.

    >>> rng = np.random.default_rng(1)
    >>> jittery = np.repeat([0.6, 0.9, 0.6], 50) + rng.normal(0, 0.02, 150)
    >>> (found,) = levels_of([jittery])
    >>> np.flatnonzero(np.diff(found.level)), round(found.scale, 3)
    (array([49, 99]), 0.018)
    """
    cost = 2 * math.log(max(sum(map(len, series)), 2))
    scales = [_scale(values) for values in series]
    told = [scale for scale in scales if scale <= MOST_JITTER]
    usual = float(np.median(told)) if told else 0.0
    return [
        _levels(values, max(scale, usual), cost)
        for values, scale in zip(series, scales, strict=True)
    ]


def _levels(values: Reals, first: float, cost: float) -> Levels:
    if not 0 < first <= MOST_JITTER:
        return Levels(values, np.zeros(len(values)), first, 0.0)
    scale = first
    while True:
        places = _changes(values / scale, cost)
        level, length = _means(values, places)
        larger = first * _enlargement(values - level)
        if larger <= 1.01 * scale:
            error = scale * np.sqrt(cost / length)
            return Levels(level, error, first, scale * math.sqrt(2 * cost))
        scale = larger


def _scale(values: Reals) -> float:
    """The deviation of the jitter of successive values; infinity if they are too few to tell."""
    if len(values) < LEAST_SAMPLES:
        return math.inf
    steps = np.diff(values)
    deviation = TO_DEVIATION * float(np.median(np.abs(steps - np.median(steps))))
    return max(deviation, _resolution(values) / 2)


def _resolution(values: Reals) -> float:
    """The unit to which values are rounded; a value between two units varies by half of one."""
    return next((unit for unit in RESOLUTIONS if _is_multiple(values / unit)), 0.0)


def _is_multiple(values: Reals) -> bool:
    return bool(np.all(np.abs(values - np.rint(values)) < 1e-6))


def _means(values: Reals, places: list[int]) -> tuple[Reals, Reals]:
    """The mean of each stretch, of which equal values are theirs to the bit, and its length."""
    level, length = np.empty(len(values)), np.empty(len(values))
    for a, b in itertools.pairwise(places):
        part = values[a:b]
        level[a:b] = part[0] if part.min() == part.max() else part.mean()
        length[a:b] = b - a
    return level, length


def _enlargement(rest: Reals) -> float:
    """Of the scale of differences to that of means, by the correlation r of what is left.

    Differences have 1 - r of the variance of values, and means 1 + r over 1 - r times it.
    """
    squares = float(rest @ rest)
    r = float(rest[1:] @ rest[:-1]) / squares if squares else 0.0
    r = min(max(r, 0.0), MOST_CORRELATION)
    return math.sqrt(1 + r) / (1 - r)


def _changes(values: Reals, cost: float) -> list[int]:
    """Where levels begin, with 0 and the number of values; the deviation of values is 1."""
    values = values - values.mean()
    ends = np.array([0, *_candidates(values, math.sqrt(cost / 2)), len(values)])
    total = np.append(0.0, np.cumsum(values))[ends]
    least, before = np.full(len(ends), -cost), np.zeros(len(ends), np.int64)
    open_ = np.zeros(1, np.int64)
    for k in range(1, len(ends)):
        # The sum of squares of the values is the same for all changes.
        sums = least[open_] - (total[k] - total[open_]) ** 2 / (ends[k] - ends[open_])
        best = int(sums.argmin())
        before[k], least[k] = open_[best], sums[best] + cost
        open_ = np.append(open_[sums <= least[k]], k)
    places, k = [len(values)], len(ends) - 1
    while k:
        k = int(before[k])
        places.append(int(ends[k]))
    return places[::-1]


def _candidates(values: Reals, least: float) -> Ints:
    """Where the means on both sides differ most, of each interval in which they do so enough."""
    sums = np.append(0.0, np.cumsum(values))
    found: list[Ints] = []
    length = 1
    while length < len(values):
        length = min(length + max(1, length // 2), len(values))
        last = len(values) - length
        starts = np.append(np.arange(0, last, max(1, length // 4)), last)[:, None]
        left = np.arange(1, length)
        change = sums[starts + left] - sums[starts]
        change -= (sums[starts + length] - sums[starts]) * (left / length)
        change = np.abs(change) / np.sqrt(left * (length - left) / length)
        best = change.argmax(axis=1)
        enough = change.max(axis=1) > least
        found.append(starts[enough, 0] + best[enough] + 1)
    return np.unique(np.concatenate(found))
