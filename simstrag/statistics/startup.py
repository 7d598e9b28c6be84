"""The start of a job: leading steps that compile, warm up or fill caches."""

from __future__ import annotations

import warnings

import numpy as np

from simstrag.arrays import Reals

TIMES = 3.0
"""Leading steps beyond this multiple of the steady step are start-up.  ASSUMED: compiling takes
tens of steps' time, and a slowdown of most ranks by contention seldom reaches three."""
FEWEST, SHARE = 3, 0.1
"""Start-up is at most so many steps, or this share of all if that is more.  ASSUMED: a longer
beginning that is slow is an episode of the job."""


def leading(seconds: Reals) -> int:
    """How many first steps are start-up, as most ranks have it.

    seconds: of each rank and step, in order of steps, shape (ranks, steps); NaN if not recorded.

    >>> leading(np.array([[60.0, 9.0, 0.3, 0.3, 0.3, 0.3], [45.0, 12.0, 0.3, 0.4, 0.3, 0.3]]))
    2
    >>> leading(np.array([[0.6, 0.6, 0.3, 0.3, 0.3, 0.3]]))
    0
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step without a rank
        usual = np.nanmedian(seconds, axis=0)
    most = max(FEWEST, int(SHARE * len(usual)))
    is_slow = usual > TIMES * np.nanmedian(usual)
    count = int(np.argmin(np.append(is_slow, False)))
    return count if count <= most and 2 * count < len(usual) else 0
