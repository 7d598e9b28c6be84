"""Statistics of a comparison: paired over seeds, as pure functions on arrays.

All arrays have shape (seeds,), entry k of each from the same seed: the same noise and the same
contention.  Intervals are paired percentile bootstraps over seeds, 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
RESAMPLES = 2000
NEGLIGIBLE = 0.005
"""Below this share of the clean time there is no straggler delay to speak of."""


class Estimate(NamedTuple):
    """A value and its 95 % interval; NaN where it is not defined."""

    value: float
    low: float
    high: float


def mean(times: Array) -> Estimate:
    """The mean.

    >>> mean(np.array([2.0, 2.0, 2.0]))
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    return _estimate(lambda a: a, times)


def difference(times: Array, baseline: Array) -> Estimate:
    """Mean paired difference, times - baseline."""
    return _estimate(lambda a, b: a - b, times, baseline)


def ratio(values: Array, others: Array) -> Estimate:
    """The ratio of means, values / others; NaN for 0 / 0.

    >>> ratio(np.array([1.0, 3.0]), np.array([4.0, 4.0])).value
    0.5
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return _estimate(lambda a, b: a / b, values, others)


def speedup(times: Array, baseline: Array) -> Estimate:
    """Ratio of means, baseline / times: above 1 is faster than the baseline."""
    return ratio(baseline, times)


def mitigation(times: Array, baseline: Array, clean: Array) -> Estimate:
    """The share of straggler delay removed, (T_bsp - T) / (T_bsp - T_clean), of means.

    NaN where stragglers cost the baseline less than 0.5 % of the clean time.

    >>> mitigation(np.array([11.0, 11.0]), np.array([12.0, 12.0]), np.array([10.0, 10.0])).value
    0.5
    """

    def share(a: Array, b: Array, c: Array) -> Array:
        delay = b - c
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(delay < NEGLIGIBLE * c, math.nan, (b - a) / delay)

    return _estimate(share, times, baseline, clean)


def _estimate(of_means: Callable[..., Array], *samples: Array) -> Estimate:
    """`of_means(mean, mean, ...)` with its paired bootstrap interval.

    A NaN resample counts as -inf for the low end and as +inf for the high end; with more than 2.5 %
    of them the ends are NaN.
    """
    arrays = [np.asarray(sample, dtype=np.float64) for sample in samples]
    value = float(of_means(*(np.mean(a) for a in arrays)))
    n = len(arrays[0])
    if n < 2 or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan)
    picks = np.random.Generator(np.random.Philox(key=n)).integers(0, n, size=(RESAMPLES, n))
    resampled = of_means(*(a[picks].mean(axis=1) for a in arrays))
    unknown = np.isnan(resampled)
    with np.errstate(invalid="ignore"):
        low = float(np.percentile(np.where(unknown, -math.inf, resampled), 2.5))
        high = float(np.percentile(np.where(unknown, math.inf, resampled), 97.5))
    return Estimate(
        value, low if math.isfinite(low) else math.nan, high if math.isfinite(high) else math.nan
    )
