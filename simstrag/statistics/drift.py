"""Drift: all ranks together slower than at their best, for a stretch or more and more.

The level of the job is the running median of the ranks' medians.  Its base is a quantile of the
medians of `SUSTAINED` steps: a tenth of them are lower.  What the level is above the base by more
than noise explains, and by more than `FLOOR`, is drift.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simstrag.arrays import Reals
from simstrag.statistics.pauses import running_median
from simstrag.statistics.slow_workers import FLOOR

SUSTAINED = 10
"""Steps that make a level."""
DEVIATIONS = 4.0
"""Standard errors of a level within which it is the base: the base is the lowest of many."""
SHORTEST = 20
"""Least steps in which drift is looked for."""


class Drift(NamedTuple):
    """The loss that all ranks have in common.

    seconds: of each step above the base; 0 where it is not.
    base: seconds of a step at its best.
    first, last: places of the first and the last step above; -1 without any.
    ratio: level over base in the steps above, in the median.
    steps: how many there are.
    """

    seconds: Reals
    base: float
    first: int
    last: int
    ratio: float
    steps: int = 0


def find_drift(seconds: Reals) -> Drift:
    """The drift of seconds (ranks, steps) without pauses.

    >>> steps = np.full((4, 60), 0.5) + np.random.default_rng(0).normal(0, 0.01, (4, 60))
    >>> steps[:, 30:] *= 1.4
    >>> found = find_drift(steps)
    >>> found.first, found.last, round(found.ratio, 1)
    (30, 59, 1.4)
    """
    middle = np.median(seconds, axis=0)
    steps = len(middle)
    none = Drift(np.zeros(steps), float(np.median(middle)), -1, -1, 1.0)
    if steps < SHORTEST:
        return none
    level = running_median(middle[None])[0]
    windows = np.lib.stride_tricks.sliding_window_view(middle, SUSTAINED)
    base = float(np.quantile(np.median(windows, axis=1), 0.1))
    above = level > base * (1 + FLOOR) + DEVIATIONS * _error(seconds, level)
    runs = np.flatnonzero(np.diff(np.concatenate([[0], above.astype(int), [0]])))
    for begin, end in zip(runs[::2], runs[1::2], strict=True):
        if end - begin < SUSTAINED:
            above[begin:end] = False
    if not above.any():
        return none
    own = np.flatnonzero(above)
    lost = np.where(above, np.maximum(level - base, 0.0), 0.0)
    ratio = float(np.median(level[own])) / base
    return Drift(lost, base, int(own[0]), int(own[-1]), ratio, len(own))


def _error(seconds: Reals, level: Reals) -> float:
    """The standard error of a level by the ranks' own noise, correlated as it is.

    Of several ranks the noise is what they differ by, which no common drift is in.
    """
    ranks = len(seconds)
    rest = seconds - (np.median(seconds, axis=0) if ranks > 1 else level)
    rest = rest - np.median(rest, axis=1, keepdims=True)
    power = float((rest * rest).sum())
    lag = float((rest[:, 1:] * rest[:, :-1]).sum()) / power if power > 0 else 0.0
    lag = min(max(lag, 0.0), 0.9)
    deviation = 1.4826 * float(np.median(np.abs(rest)))
    return float(deviation * np.sqrt((1 + lag) / (1 - lag) / SUSTAINED / ranks))
