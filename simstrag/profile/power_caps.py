"""What a power cap does to a device: measured at a few caps, predicted at the others.

A device that would draw D watts without a cap is slowed where the cap is below D:

    seconds(cap) = s (1 + A max(0, D / cap - 1)^G)      watts(cap) = min(D, K cap)

D and s are fitted to the rows; A, G and K are those of `SHAPE`.  What the rows have beyond the law
is interpolated between them, so that a measured row is met exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Floats
from simstrag.errors import InputError

SHAPE = (0.52, 1.51, 0.91)
"""A, G, K: fitted to 68 trainings of six models on a V100 at seven caps each, 100 to 250 W (Zeus,
You et al., NSDI 2023, `summary_power_v100.csv`), with an error of 4.8 % (root mean square of the
logarithms).  In a checkout of simstrag, `python -m benchmarks.power_caps` fits it again."""
LEAST = 3
"""The fewest rows: two constants are fitted."""
SWAPPED = 1.2
"""Seconds at the highest cap over those at the lowest, above which rows are no measurement."""
GRID = 400
"""Values of D that are tried."""


class PowerRow(NamedTuple):
    """One measurement: seconds of a step or an epoch, and mean watts, under a cap in watts."""

    cap: float
    seconds: float
    watts: float


def law(
    caps: Floats, demand: float | Floats, shape: Sequence[float] = SHAPE
) -> tuple[Floats, Floats]:
    """Seconds, 1 without a cap, and watts at some caps.

    demand: watts without a cap.

    >>> seconds, watts = law(np.array([100.0, 300.0]), 200.0)
    >>> seconds.round(2).tolist(), watts.tolist()
    ([1.52, 1.0], [91.0, 200.0])
    """
    rise, exponent, share = shape
    beyond = np.maximum(demand / caps - 1, 0)
    return 1 + rise * beyond**exponent, np.minimum(demand, share * caps)


class PowerCaps:
    """Seconds and watts of a device at any cap within the measured ones.

    rows: one of each cap.
    shape: A, G and K of the law.

    Raises `InputError` for fewer than three caps, a cap given twice, a number that is not above 0,
    and seconds that rise with the cap.

    >>> rows = [PowerRow(100, 15, 90), PowerRow(150, 11, 130), PowerRow(250, 10, 190)]
    >>> measured = PowerCaps(rows)
    >>> measured.slowdown(100.0), measured.watts(150.0), measured.most_frugal([100, 150, 250])
    (1.5, 130.0, 100)
    """

    def __init__(self, rows: Sequence[PowerRow], shape: Sequence[float] = SHAPE) -> None:
        self.rows = tuple(sorted(rows))
        caps = [row.cap for row in self.rows]
        if len(caps) < LEAST:
            raise InputError(f"{len(caps)} power limits: measure {LEAST} or more")
        if len(caps) > len({*caps}):
            raise InputError("a power limit is given twice; give the mean of its rows")
        for value in (value for row in self.rows for value in row):
            if not 0 < value < math.inf:
                raise InputError(f"power limits, seconds and watts must be above 0, not {value:g}")
        if self.rows[-1].seconds > SWAPPED * self.rows[0].seconds:
            raise InputError("seconds rise with the power limit; are columns swapped?")
        self._shape = tuple(shape)
        self._caps, seconds, watts = np.array(self.rows, np.float64).T
        demands = np.linspace(0.5 * watts.max(), 1.5 * watts.max(), GRID)
        errors = [self._beyond(demand, seconds, watts) for demand in demands]
        spreads = [float(np.var(s) + np.mean(w**2)) for s, w in errors]
        best = int(np.argmin(spreads))
        self.demand = float(demands[best])
        self._left = errors[best]

    def slowdown(self, cap: float) -> float:
        """Seconds at a cap over those at the highest measured cap."""
        return self._seconds(cap) / self._seconds(self.rows[-1].cap)

    def watts(self, cap: float) -> float:
        """Mean watts of a device that computes at a cap."""
        _, watts = law(np.array([cap]), self.demand, self._shape)
        return float(watts[0] * math.exp(np.interp(cap, self._caps, self._left[1])))

    def most_frugal(self, caps: Sequence[float]) -> float:
        """The cap with the least energy for the same work."""
        return min(caps, key=lambda cap: self._seconds(cap) * self.watts(cap))

    def _seconds(self, cap: float) -> float:
        seconds, _ = law(np.array([cap]), self.demand, self._shape)
        return float(seconds[0] * math.exp(np.interp(cap, self._caps, self._left[0])))

    def _beyond(self, demand: float, seconds: Floats, watts: Floats) -> tuple[Floats, Floats]:
        """The logarithms of rows over the law."""
        by_law = law(self._caps, demand, self._shape)
        return np.log(seconds / by_law[0]), np.log(watts / by_law[1])
