"""Groups of workers by their level: two kinds of card, or of work, that make half a job slower.

Where half of the workers are slow, the median worker tells nothing: the fastest group is then what
the others are compared with.  Workers are of one group unless the next slower one is slower by more
than noise makes it, by Welch's test of mean logarithms, corrected for the number of places.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from simstrag.arrays import Reals
from simstrag.statistics.slow_workers import FLOOR, independence
from simstrag.statistics.student import upper_tail

LEVEL = 0.002
"""Rate at which equal workers are taken for several groups."""
FEWEST = 5
"""Least independent steps of a worker that tell its level."""
LEAST = 0.25
"""Share of the workers that a group needs to be what others are compared with, ASSUMED: one fast
worker makes no job of slow ones."""
NOISELESS = 1e-9
"""Relative spread below which the steps of a worker do not vary."""


def groups(seconds: Reals) -> list[list[int]]:
    """Places of the workers of seconds (workers, steps) in groups, the fastest first.

    >>> seconds = np.repeat([[0.267], [0.267], [0.400], [0.400]], 40, axis=1)
    >>> groups(seconds * np.random.default_rng(0).lognormal(0, 0.02, seconds.shape))
    [[0, 1], [2, 3]]
    """
    logs = np.log(np.maximum(seconds, np.finfo(float).tiny))
    levels = []
    for place, own in enumerate(logs):
        rest = own - own.mean()
        noisy = float(rest.std()) > NOISELESS
        count = len(own) * independence(rest) if noisy else float(len(own))
        error = float(own.var(ddof=1)) / count if noisy and len(own) > 1 else 0.0
        levels.append((float(own.mean()), error, count - 1, place))
    levels.sort()
    found = [[levels[0][-1]]]
    for before, after in itertools.pairwise(levels):
        gap = after[0] - before[0] - math.log1p(FLOOR)
        error, freedom = before[1] + after[1], min(before[2], after[2])
        t = gap / math.sqrt(error) if error else math.inf
        is_other = gap > 0 and freedom + 1 >= FEWEST
        if is_other and upper_tail(t, freedom) <= LEVEL / (len(levels) - 1):
            found.append([])
        found[-1].append(after[-1])
    return [sorted(group) for group in found]


def reference(seconds: Reals) -> list[int] | None:
    """The workers of the fastest group, where others are half of all or more; else None.

    >>> seconds = np.repeat([[0.2], [0.2], [0.2], [0.3], [0.3], [0.3], [0.3], [0.3]], 40, axis=1)
    >>> reference(seconds), reference(seconds[:4])
    ([0, 1, 2], None)
    """
    fastest = groups(seconds)[0]
    workers = len(seconds)
    if 2 * len(fastest) > workers or len(fastest) < max(2, LEAST * workers):
        return None
    return fastest
