"""Straggler detection: pure functions on arrays of local computing times.

Rows are ranks, the last axis is time, newest last; NaN stands for a missing time.  A rank whose
window is not full has no median (NaN) and is left out.

Sources: the modified z-score of Iglewicz & Hoaglin, "How to Detect and Handle Outliers" (1993).
All other rules are this project's for the detector of Korel, cited by their numbers (A.9.n) in
docs/korel.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.medians import medians
from simstrag.policies.estimators.columns import centre
from simstrag.ties import TOLERANCE, is_at_most, is_less
from simstrag.view import device_gain

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NORMAL_MAD = 1.4826
"""Standard deviation of a normal sample over its MAD, 1 / 0.6745."""
NORMAL_MEDIAN = 1.2533
"""Standard error of the median of W normal values over sigma/sqrt(W), sqrt(pi/2)."""

SLACK = 2 * TOLERANCE
"""Relative; more than all that comparisons of ties, and rounding, can make of a bound."""


class Baseline(NamedTuple):
    """The reference of ranks' times and the scale of deviations, in seconds; NaN where unknown."""

    reference: float
    scale: float


def median(values: Floats) -> Floats:
    """The median along the last axis, several times faster than `np.median` on ten values.

    values: shape (..., W), seconds.  Returns shape (...); NaN where any of the W is NaN.

    >>> median(np.array([[3.0, 1.0, 2.0, 9.0], [1.0, 1.0, 1.0, math.nan]]))
    array([2.5, nan])
    """
    return medians(values.T, skip=False).T


def mad(values: Floats) -> Floats:
    """The median absolute deviation from the median, along the last axis.

    values: shape (..., W), seconds.  Returns shape (...), seconds.

    >>> float(mad(np.array([1.0, 2.0, 3.0, 4.0, 100.0])))
    1.0
    """
    return median(np.abs(values - median(values)[..., np.newaxis]))


def robust_z(x: Floats, reference: float, scale: float) -> Floats:
    """The deviations of x from the reference in robust standard deviations.

    With the median as reference and 1.4826*MAD as scale this is the modified z-score
    0.6745*(x - median)/MAD of Iglewicz & Hoaglin.

    x: shape (N,), seconds.
    reference, scale: seconds.

    >>> robust_z(np.array([1.0, 1.5]), reference=1.0, scale=0.1)
    array([0., 5.])
    """
    return (x - reference) / scale


def baseline(
    x: Floats,
    windows: Callable[[], Floats],
    *,
    clean: float | None,
    delta: float,
    floor: float,
    guard: bool = True,
) -> Baseline:
    """The reference and the scale of full-precision times.

    For three or more ranks they are the median and 1.4826 times the MAD (A.9.7).  The median is no
    reference if it is itself contended, that is above (1+delta)*clean, or if there are fewer than
    three ranks: two have equal deviations, and z is always 0.67.  Then the reference is
    max(clean, the fastest rank), so that too low a clean time does no harm, and the scale is the
    standard error of a window's median, from the MAD within windows.

    x: shape (N,), the median of each rank's window, NaN where it is not full.
    windows: a function that returns the windows, shape (N, W), seconds.
    clean: seconds of an uncontended step, if known.
    delta: the share above `clean` that counts as contended.
    floor: least scale, as a share of the reference.
    guard: whether a contended median is replaced.

    >>> windows = np.array([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
    >>> baseline(median(windows), lambda: windows, clean=None, delta=0.1, floor=0.01)
    Baseline(reference=1.0, scale=0.01)
    >>> windows = windows[1:]
    >>> baseline(median(windows), lambda: windows, clean=1.2, delta=0.1, floor=0.01)
    Baseline(reference=1.2, scale=0.012)
    """
    count, reference, deviation = centre(x)
    if not count:
        return Baseline(math.nan, math.nan)
    shifted = guard and clean is not None and is_less((1 + delta) * clean, reference)
    if count < 3 or shifted:
        unknown = np.isnan(x)
        reference = max(clean or 0.0, float(x[~unknown].min()))
        rows = windows()[~unknown]
        deviation = centre(mad(rows)).median * NORMAL_MEDIAN / math.sqrt(rows.shape[-1])
    return Baseline(reference, max(NORMAL_MAD * deviation, floor * reference))


def find_suspects(
    x: Floats, against: Baseline, z_on: float, delta_on: float
) -> npt.NDArray[np.bool_]:
    """Whether each rank is slow: z > z_on and x/reference >= 1+delta_on (A.9.10); shape (N,).

    Both conditions are needed: with z alone 5-9 % of all checks of a clean cluster are false alarms
    at a noise of 5-10 %.

    x: shape (N,), seconds.

    >>> find_suspects(np.array([1.0, 1.05, 1.5, math.nan]), Baseline(1.0, 0.01), 3.5, 0.1)
    array([False, False,  True, False])
    """
    enough = is_at_most((1 + delta_on) * against.reference, x)
    if not np.count_nonzero(enough):
        return enough
    beyond = is_less(z_on, robust_z(x, against.reference, against.scale))
    return beyond & enough


def bounds_of_medians(ordered: Floats, most: int) -> Floats:
    """Between what the medians of windows stay while new times come.

    With k new times each order statistic of a window moves by k places at most, so its median
    stays between those k places down and up.

    ordered: shape (W, N), the last times of each rank, ascending, then NaN for none.
    most: the largest k of use.

    Returns shape (2K+1, N), ascending: the bounds of k are the rows K-k and K+k.  K is `most`, or
    less, so that no window becomes full meanwhile; NaN for a rank whose window is not full.

    >>> bounds_of_medians(np.array([[1.0, 3.0], [2.0, 4.0], [9.0, 9.0]]), most=9)
    array([[1., 3.],
           [2., 4.],
           [9., 9.]])
    """
    low, high = (len(ordered) - 1) // 2, len(ordered) // 2
    most, unknown = min(most, low), np.isnan(ordered[-1])
    some_are = np.count_nonzero(unknown) > 0
    if some_are:  # these ranks take no part until their windows are full
        missing = np.count_nonzero(np.isnan(ordered[:, unknown]), axis=0)
        most = min(most, int(missing.min()) - 1)
    bounds = ordered[low - most : low + most + 1] + ordered[high - most : high + most + 1]
    bounds *= 0.5
    if some_are:
        bounds[:, unknown] = math.nan
    return bounds


def steps_without_outlier(
    bounds: Floats,
    fast: Ints,
    slow: Ints,
    *,
    clean: float | None,
    delta_on: float,
    delta_off: float,
    guard: bool = True,
) -> int:
    """Further steps of every rank with which no rank can be suspect, nor a slow rank well.

    If more than half of the ranks have a lower bound above a limit, the median over ranks is above
    it.  No rank is suspect while the largest upper bound is less than 1+delta_on times the least
    possible reference.  No slow rank is well while its lower bound is more than 1+delta_off times
    the largest possible reference.  These bounds need neither a sort over ranks nor a scale.

    bounds: shape (2K+1, N), `bounds_of_medians` in full precision.
    fast, slow: the ranks that do not count as slow now, and those that do.
    clean, guard: as in `baseline`.
    delta_on, delta_off: shares of the reference beyond which a rank may be suspect, and is not
        well.

    Returns k <= K; 0 if that holds for the present times alone, -1 if not even that is certain.

    >>> rules = {"clean": None, "delta_on": 0.1, "delta_off": 0.05}
    >>> steady, ranks = np.full((10, 4), 1.0), (np.arange(4), np.arange(0))
    >>> steps_without_outlier(bounds_of_medians(steady, most=9), *ranks, **rules)
    4
    >>> steady[6:, 3] = 1.2  # with one more such time the median is 1.1
    >>> steps_without_outlier(bounds_of_medians(steady, most=9), *ranks, **rules)
    0
    """
    most, n = len(bounds) // 2, bounds.shape[1]
    unknown = np.isnan(bounds[most])
    if np.count_nonzero(unknown):
        fast, slow = fast[~unknown[fast]], slow[~unknown[slow]]
        n = len(fast) + len(slow)
    lower, upper = bounds[most::-1], bounds[most:]
    contended = (1 + delta_on) * clean if guard and clean is not None else math.inf
    above = np.maximum.reduce(upper.take(fast, axis=1), axis=1, initial=0.0)
    above *= (1 + SLACK) / (1 + delta_on)
    below = np.minimum.reduce(lower.take(slow, axis=1), axis=1, initial=math.inf)
    below *= (1 - SLACK) / (1 + delta_off)
    if n >= 3 and np.count_nonzero(upper[0] < contended) > n // 2:
        below = np.minimum(below, contended)
        holds = np.add.reduce(lower > above[:, np.newaxis], axis=1) > n // 2
        holds &= np.add.reduce(upper < below[:, np.newaxis], axis=1) > n // 2
    else:
        least, last = np.fmin.reduce([lower, upper], axis=2, initial=math.inf)
        holds = (np.maximum(clean or 0.0, least) > above) & (np.maximum(clean or 0.0, last) < below)
        if n >= 3:
            holds &= np.add.reduce(lower > contended * (1 + SLACK), axis=1) > n // 2
    return int(np.count_nonzero(holds)) - 1


def full_precision_time(
    amp_time: Floats, rho: float, host: float | None, clean: float | None
) -> Floats:
    """The full-precision time of steps that ran in reduced precision, in seconds (A.9.17).

    With a known host part h it is h + r*(t - h), else rho*t.  Exact without contention.

    amp_time: seconds, any shape.
    rho, host, clean: the arguments of `device_gain`.

    >>> full_precision_time(np.array([1.0, 2.0]), rho=1.5, host=None, clean=None)
    array([1.5, 3. ])
    >>> full_precision_time(np.array([1 / 1.5]), rho=1.5, host=0.25, clean=1.0).round(6)
    array([1.])
    """
    gain = device_gain(rho, host, clean)
    fixed = 0.0 if host is None or clean is None else host
    return fixed + gain * (amp_time - fixed)
