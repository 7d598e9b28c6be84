"""Statistics of a comparison: paired over seeds, as pure functions on arrays.

All arrays have shape (seeds,), entry k of each from the same seed: the same noise and the same
contention.  Intervals are Student's for means and paired differences, Fieller's for ratios of
means.  Both are exact for normal values and any number of seeds.  They are 95 % intervals, or those
that the value lies outside of with the probability `outside`.  Times are not negative, so intervals
of their means and of ratios of these end at 0; those of accuracies end at 0 and 1.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Floats

NEGLIGIBLE = 0.005
"""Below this share of the clean time there is no straggler delay to speak of."""
NOISE = 1e-9
"""A difference of times below this share of the time is rounding."""


class Estimate(NamedTuple):
    """A value and its interval; NaN where it is not defined."""

    value: float
    low: float
    high: float


def mean(times: Floats, outside: float = 0.05) -> Estimate:
    """The mean of times, with Student's interval from 0 up.

    >>> mean(np.array([2.0, 2.0, 2.0])), mean(np.array([1.0, 9.0])).low
    (Estimate(value=2.0, low=2.0, high=2.0), 0.0)
    """
    return within(difference(times, np.zeros(len(times)), outside), 0.0)


def difference(times: Floats, baseline: Floats, outside: float = 0.05) -> Estimate:
    """Mean paired difference, times - baseline, with Student's interval."""
    differences = np.subtract(times, baseline, dtype=np.float64)
    value, n = float(np.mean(differences)), len(differences)
    if n < 2 or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan)
    half = quantile(n - 1, outside) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return Estimate(value, value - half, value + half)


def within(e: Estimate, least: float = -math.inf, most: float = math.inf) -> Estimate:
    """An estimate with the part of its interval that is possible: it holds the truth as often.

    >>> within(Estimate(0.9, 0.7, 1.1), 0.0, 1.0)
    Estimate(value=0.9, low=0.7, high=1.0)
    """
    return Estimate(e.value, *(min(max(end, least), most) for end in (e.low, e.high)))


def ratio(values: Floats, others: Floats, outside: float = 0.05) -> Estimate:
    """The ratio of means, values / others, with Fieller's interval; NaN for 0 / 0.

    The interval holds each ratio r for which Student's interval of the mean of values - r others
    holds 0.  Thus it excludes 0 or 1 exactly where that of the mean of the values, or of their
    difference, excludes 0.  It is NaN where the mean of the others is not shown to differ from 0.

    Source: E. C. Fieller, "Some problems in interval estimation", J. R. Stat. Soc. B 16, 1954.

    >>> ratio(np.array([1.0, 3.0]), np.array([4.0, 4.0])).value
    0.5
    """
    values, others = (np.asarray(sample, dtype=np.float64) for sample in (values, others))
    n, whole = len(values), float(np.mean(others))
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.mean(values) / whole)
    if n < 2 or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan)
    scatter = np.cov(values - value * others, others) * (quantile(n - 1, outside) ** 2 / n)
    residual, both, spread = map(float, (scatter[0, 0], scatter[0, 1], scatter[1, 1]))
    sure = whole**2 - spread
    if sure <= 0:
        return Estimate(value, math.nan, math.nan)
    half = math.sqrt(both**2 + residual * sure)
    return Estimate(value, value - (both + half) / sure, value - (both - half) / sure)


def ratio_of_times(times: Floats, others: Floats, outside: float = 0.05) -> Estimate:
    """The ratio of mean times, times / others, with the part of `ratio`'s interval from 0 up."""
    return within(ratio(times, others, outside), 0.0)


def speedup(times: Floats, baseline: Floats, outside: float = 0.05) -> Estimate:
    """Ratio of means, baseline / times: above 1 is faster than the baseline."""
    return ratio_of_times(baseline, times, outside)


def mitigation(
    times: Floats, baseline: Floats, clean: Floats, *, outside: float = 0.05
) -> Estimate:
    """The share of straggler delay removed, (T_bsp - T) / (T_bsp - T_clean), of means.

    NaN where stragglers cost the baseline less than 0.5 % of the clean time.

    >>> mitigation(np.array([11.0, 11.0]), np.array([12.0, 12.0]), np.array([10.0, 10.0])).value
    0.5
    """
    found = ratio(np.subtract(baseline, times), np.subtract(baseline, clean), outside)
    small = np.mean(baseline) - np.mean(clean) < NEGLIGIBLE * np.mean(clean)
    return Estimate(math.nan, math.nan, math.nan) if small else found


def exact(suffices: bool, e: Estimate, whole: float = 0.0) -> Estimate:
    """An estimate without width where one seed suffices, and without rounding.

    whole: size of the times subtracted; a difference below `NOISE` times this counts as 0.
    """
    if suffices:
        e = Estimate(e.value, e.value, e.value)
    return Estimate(*(0.0 if abs(x) <= NOISE * whole else x for x in e))


@functools.cache
def quantile(freedom: float, outside: float = 0.05) -> float:
    """The quantile of Student's distribution that half of `outside` lies above."""
    from scipy.special import stdtrit  # here, because it takes a while to load

    return float(stdtrit(freedom, 1 - outside / 2))
