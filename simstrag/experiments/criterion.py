"""What policies are compared by: the mean of their times, or a quantile of the time of one run.

A quantile is Harrell and Davis' estimate, a weighted mean of all order statistics.  Intervals of
quantiles are percentiles of the bootstrap over seeds, paired, and widened as few seeds need it.
With few seeds they hold the truth less often than they say (docs/advice.md).

Sources: F. E. Harrell, C. E. Davis, "A new distribution-free quantile estimator", Biometrika 69,
1982; T. Hesterberg, "What teachers should know about the bootstrap", The American Statistician 69,
2015, for the widening, which we apply to the 95 % interval and scale to other levels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from simstrag.arrays import Floats, Ints
from simstrag.errors import InputError
from simstrag.experiments import paired_statistics
from simstrag.experiments.paired_statistics import Estimate

RESAMPLES = 1000
NORMAL = 1.959964
"""The quantile of the normal distribution that a percentile interval of 95 % stands for."""
BEYOND = 2
"""Runs that must lie beyond a quantile in the mean for the seeds to carry it."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """The mean of times, or a quantile.

    quantile: from 0.5 to below 1; None for the mean.  Raises `InputError` for another.

    >>> round(Criterion(0.9).of(np.arange(1.0, 100.0)), 1), Criterion(0.9).seeds
    (89.6, 20)
    """

    quantile: float | None = None

    def __post_init__(self) -> None:
        if self.quantile is None:
            return
        if not (isinstance(self.quantile, Real) and 0.5 <= self.quantile < 1):
            raise InputError(f"quantile {self.quantile}: give one from 0.5 to below 1, such as 0.9")

    def __str__(self) -> str:
        return "mean" if self.quantile is None else f"{100 * self.quantile:g} % quantile"

    @property
    def seeds(self) -> int:
        """The fewest seeds that carry it."""
        if self.quantile is None:
            return 2
        return math.ceil(round(BEYOND / (1 - self.quantile), 6))

    def of(self, times: Floats) -> float:
        """The mean or quantile; of a run that missed its target it is that run's inf or NaN."""
        if self.quantile is None or not np.isfinite(times).all():
            return float(np.mean(times))
        return float(np.sort(times) @ _weights(len(times), self.quantile))

    def difference(self, times: Floats, others: Floats, outside: float = 0.05) -> Estimate:
        """The paired difference, times - others, with its interval."""
        if self.quantile is None:
            return paired_statistics.difference(times, others, outside)
        return self._bootstrap(np.subtract, times, others, outside)

    def ratio(self, times: Floats, others: Floats, outside: float = 0.05) -> Estimate:
        """The ratio, times / others, with its interval; that of quantiles is of logarithms."""
        if self.quantile is None:
            return paired_statistics.ratio(times, others, outside)
        logs = self._bootstrap(lambda own, other: np.log(own / other), times, others, outside)
        return Estimate(*map(math.exp, logs))

    def _bootstrap(
        self, compare: Callable[[Any, Any], Any], times: Floats, others: Floats, outside: float
    ) -> Estimate:
        """The result of `compare` on both quantiles, with its interval.

        The percentile interval of 95 %, widened by Student's t over 1.96 and by sqrt(n / (n - 1)).
        """
        n, value = len(times), float(compare(self.of(times), self.of(others)))
        if n < 2 or not math.isfinite(value):
            return Estimate(value, math.nan, math.nan)
        weights, drawn = _weights(n, self.quantile or 0.0), _resamples(n)
        both = (np.sort(sample[drawn], axis=1) @ weights for sample in (times, others))
        low, high = np.quantile(compare(*both), (0.025, 0.975))
        wider = paired_statistics.quantile(n - 1, outside) / NORMAL * math.sqrt(n / (n - 1))
        return Estimate(
            value, value - wider * max(value - low, 0.0), value + wider * max(high - value, 0.0)
        )


MEAN = Criterion()


@functools.cache
def _resamples(n: int) -> Ints:
    """Of each resample which of n seeds it has: the same for all policies."""
    return np.random.default_rng(n).integers(n, size=(RESAMPLES, n))


@functools.cache
def _weights(n: int, quantile: float) -> Floats:
    """The weights of n order statistics."""
    from scipy.special import betainc  # here, because it takes a while to load

    ends = betainc((n + 1) * quantile, (n + 1) * (1 - quantile), np.arange(n + 1) / n)
    return np.diff(ends)
