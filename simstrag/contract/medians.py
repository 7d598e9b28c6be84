"""Medians of columns of numbers, such as the recent times of ranks, a column per rank.

They are computed in the compiled library (`simstrag.contract.compiled`), or in numpy without it,
with equal bits.
"""

from __future__ import annotations

import numpy as np

from simstrag.arrays import Floats
from simstrag.contract.compiled import address, contiguous, loops


def medians(values: Floats, skip: bool) -> Floats:
    """The median of each column; shape (W, ...) to (...).

    skip: whether NaN is left out; else the median of a column with NaN is NaN.

    >>> medians(np.array([[3.0, 1.0], [1.0, np.nan], [2.0, 4.0]]), skip=True)
    array([2. , 2.5])
    """
    native, rows = loops(), contiguous(values, np.float64)
    if native is None or not rows.size:
        return _medians(rows, skip)
    result = np.empty(rows.shape[1:])
    if not native.medians(address(rows), None, 1, 0, len(rows), result.size, skip, address(result)):
        raise MemoryError
    median: Floats = result[()]
    return median


def _medians(values: Floats, skip: bool) -> Floats:
    """The same in numpy; `np.nanmedian` without its warning about columns of NaN."""
    ordered = np.sort(values, axis=0)  # NaN is sorted to the end
    if not skip:
        return median_of_ordered(ordered)
    count = np.count_nonzero(~np.isnan(values), axis=0)
    pair = np.stack([np.maximum(count - 1, 0) // 2, count // 2])
    low, high = np.take_along_axis(ordered, pair, axis=0)
    between: Floats = (low + high) / 2
    return between


def median_of_ordered(ordered: Floats) -> Floats:
    """The median along the first axis of ascending values, the last of which may be NaN.

    ordered: shape (W, ...), seconds.  Returns shape (...); NaN where any of the W is NaN.

    >>> median_of_ordered(np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [9.0, np.nan]]))
    array([2.5, nan])
    """
    half = len(ordered) // 2
    median: Floats = (ordered[half - 1 if len(ordered) % 2 == 0 else half] + ordered[half]) / 2
    median += 0 * ordered[-1]  # NaN if the last is
    return median
