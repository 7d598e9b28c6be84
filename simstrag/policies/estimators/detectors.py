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

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract.medians import medians
from simstrag.contract.ties import is_at_most, is_less
from simstrag.contract.view import device_gain
from simstrag.policies.estimators.columns import centre, medians_of_known

NORMAL_MAD = 1.4826
"""Standard deviation of a normal sample over its MAD, 1 / 0.6745."""
NORMAL_MEDIAN = 1.2533
"""Standard error of the median of W normal values over sigma/sqrt(W), sqrt(pi/2)."""

BOUNDED = 64
"""Ranks from which on bounds of all rows are cheaper than the median of each."""
MANY = 3
"""Ranks whose median is a reference; two have equal deviations from theirs."""


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
    if count < MANY or shifted:
        unknown = np.isnan(x)
        reference = max(clean or 0.0, float(x[~unknown].min()))
        rows = windows()[~unknown]
        deviation = centre(mad(rows)).median * NORMAL_MEDIAN / math.sqrt(rows.shape[-1])
    return Baseline(reference, max(NORMAL_MAD * deviation, floor * reference))


def find_suspects(x: Floats, against: Baseline, z_on: float, delta_on: float) -> Bools:
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


class Limit(NamedTuple):
    """Where ranks stand out: a share above the reference, a z, and its least scale as a share."""

    delta: float
    z: float
    floor: float


def may_stand_out(
    x: Floats,
    fast: Ints,
    slow: Ints,
    *,
    on: Limit,
    off: Limit,
    clean: float | None,
    guard: bool = True,
) -> Bools:
    """Whether a fast rank may be suspect, or a slow one well.

    Of the fast ranks the slowest is suspect first, of the slow ones the fastest is well first.
    Where the median is no reference, the scale is left out.

    x: shape (R, N), rows of medians of windows in full precision, NaN where one is not full.
    fast, slow: the ranks that do not count as slow now, and those that do.
    on: a suspect takes as much, by both tests.
    off: a rank that is well takes no more, by both tests.
    clean, guard: as in `baseline`, whose `delta` and `floor` are those of `on`.

    Returns shape (R,).

    >>> x = np.array([[1.0, 1.0, 1.0, 1.2], [1.0, 1.0, 1.0, 1.0], [1.0, 1.1, 1.2, 1.3]])
    >>> on, off = Limit(0.1, 3.5, 0.01), Limit(0.05, 2.0, 0.02)
    >>> may_stand_out(x, np.arange(4), np.arange(0), on=on, off=off, clean=None)
    array([ True, False, False])
    """
    if x.shape[1] >= BOUNDED and _are_calm(x, fast, slow, on, off, clean if guard else None):
        return np.zeros(len(x), np.bool_)
    known, median = medians_of_known(x)
    least = np.fmin.reduce(x, axis=1, initial=math.inf)
    few = known < MANY
    if guard and clean is not None:
        few |= is_less((1 + on.delta) * clean, median)
    reference = np.where(few, np.maximum(clean or 0.0, least), median)
    top = np.fmax.reduce(x.take(fast, axis=1), axis=1, initial=-math.inf)
    bottom = np.fmin.reduce(x.take(slow, axis=1), axis=1, initial=math.inf)
    suspect = is_at_most((1 + on.delta) * reference, top)
    well = is_at_most(bottom, (1 + off.delta) * reference)
    (doubtful,) = ((suspect | well) & ~few).nonzero()
    if len(doubtful):
        reference, top, bottom = (part[doubtful] for part in (reference, top, bottom))
        deviations = np.abs(x[doubtful] - reference[:, np.newaxis])
        scale = np.maximum(NORMAL_MAD * medians_of_known(deviations)[1], on.floor * reference)
        suspect[doubtful] &= is_less(on.z, (top - reference) / scale)
        scale = np.maximum(scale, off.floor * reference)
        well[doubtful] &= is_at_most((bottom - reference) / scale, off.z)
    either: Bools = suspect | well
    return either


def _are_calm(
    x: Floats, fast: Ints, slow: Ints, on: Limit, off: Limit, clean: float | None
) -> bool:
    """Whether no rank stands out in any row, by bounds of all rows.

    The median of every row lies between those of each rank's least and greatest values.
    """
    bounds = np.stack([np.minimum.reduce(x), np.maximum.reduce(x)]) if len(x) > 1 else x
    low, high = bounds[0], bounds[-1]
    known, medians = medians_of_known(bounds)
    least, most = float(medians[0]), float(medians[-1])
    if known[0] < max(x.shape[1], MANY) or (
        clean is not None and is_less((1 + on.delta) * clean, most)
    ):
        return False
    top = np.maximum.reduce(high.take(fast), initial=-math.inf)
    bottom = np.minimum.reduce(low.take(slow), initial=math.inf)
    above = is_at_most((1 + on.delta) * least, top)
    return not (above or is_at_most(bottom, (1 + off.delta) * most))


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
