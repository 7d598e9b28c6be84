"""Whether the seconds of ranks hold the waiting for each other, so that no rank can be told apart.

A wall time of a whole synchronous step holds the waiting for the slowest rank: then all ranks rise
and fall together.  Ranks that are timed by themselves vary each on its own.  The test is a one-way
analysis of variance of log seconds with steps as groups, about each rank's own mean: under the
hypothesis that ranks share at most the part `SHARED` of their variance, the mean square between
steps over that within, F, divided by 1 + n `SHARED` / (1 - `SHARED`) for n ranks, is distributed as
F; steps count as fewer where the ranks' own deviations are correlated.

Before, pauses are left out, and steps divided by the running median of all ranks: a checkpoint and
a drift move ranks of their own, too.  Where ranks are as alike as walls (`JITTER`), a drift counts:
ranks of their own do not drift by the same factor to the jitter of a clock.  Input that is longer
for all ranks in the same steps is taken for walls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simstrag.arrays import Reals
from simstrag.statistics.pauses import find_pauses, running_median
from simstrag.statistics.slow_workers import FLOOR
from simstrag.statistics.student import f_upper_tail

SHARED = 0.05
"""Part of their variance that ranks of their own may share, ASSUMED: a common clock or a common
file system moves them a little."""
LEVEL = 1e-3
"""Rate at which ranks of their own are taken for walls."""
JITTER = 0.012
"""Spread of log seconds over ranks up to which they may be walls that a drift moves, ASSUMED: ranks
leave a collective together, to the jitter of launches and clocks."""
FEWEST = 10
"""Least steps that tell."""
UNRESOLVED = 1e-3
"""Spread of log seconds over ranks below which nothing is told: clocks and rounding make as much.
Kernels of a rank of its own vary by more."""


class SharedWalls(NamedTuple):
    """The variation of steps that ranks have in common.

    share: of the variance of log seconds that is common to the ranks.
    p: probability of so much for ranks that share `SHARED` of it.
    spread: standard deviation over ranks within a step, of log seconds.
    apart: distance of the slowest rank's mean from the fastest's, of log seconds.
    """

    share: float
    p: float
    spread: float
    apart: float

    @property
    def hide_ranks(self) -> bool:
        """Whether a slow rank is hidden."""
        return self.apart < FLOOR and (self.p <= LEVEL or self.spread < UNRESOLVED)


def shared_walls(seconds: Reals) -> SharedWalls:
    """What the ranks of seconds (ranks, steps) have in common.

    >>> rng = np.random.default_rng(0)
    >>> own = rng.lognormal(0, 0.03, (4, 60))
    >>> walls = np.repeat(own.max(axis=0)[None], 4, axis=0)
    >>> shared_walls(own).hide_ranks, shared_walls(walls).hide_ranks
    (False, True)
    """
    unknown = SharedWalls(0.0, 1.0, np.inf, 0.0)
    if seconds.shape[0] < 2 or seconds.shape[1] < FEWEST:
        return unknown
    found = find_pauses(seconds)
    quiet = ~((found.common > 0) | (found.scattered > 0).any(axis=0))
    if quiet.sum() < FEWEST:
        return unknown
    tiny = np.finfo(float).tiny
    usual = np.maximum(running_median(np.median(seconds, axis=0)[None])[0], tiny)
    steady = _shared(np.log(np.maximum(seconds / usual, tiny))[:, quiet])
    if steady.spread > JITTER:
        return steady
    return min(steady, _shared(np.log(np.maximum(seconds, tiny))[:, quiet]), key=lambda w: w.p)


def _shared(logs: Reals) -> SharedWalls:
    """What the ranks of log seconds (ranks, steps) have in common."""
    ranks, steps = logs.shape
    means = logs.mean(axis=1, keepdims=True)
    apart, logs = float(np.ptp(means)), logs - means
    common = logs.mean(axis=0)
    within = float(((logs - common) ** 2).sum()) / ((ranks - 1) * (steps - 1))
    between = ranks * float(common @ common) / (steps - 1)
    spread = float(np.sqrt(within))
    if within <= 0:
        return SharedWalls(1.0, 0.0, 0.0, apart)
    ratio = between / within
    share = max(0.0, (ratio - 1) / (ratio - 1 + ranks))
    rest = logs - common
    lag = float((rest[:, 1:] * rest[:, :-1]).sum()) / float((rest * rest).sum())
    lag = min(max(lag, 0.0), 0.95)
    free = max((steps - 1) * (1 - lag) / (1 + lag), 1.0)
    allowed = 1 + ranks * SHARED / (1 - SHARED)
    p = f_upper_tail(ratio / allowed, free, (ranks - 1) * free)
    return SharedWalls(share, p, spread, apart)
