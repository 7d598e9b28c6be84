"""Statistics of rows of numbers, and the windows of the recent times of ranks, a column per rank.

Sums and windows run in the compiled library (`simstrag.contract.compiled`), or in Python, with
equal bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract.compiled import address, contiguous, loops


class Centre(NamedTuple):
    """How many numbers of a row are known, their median, and their MAD."""

    known: int
    median: float
    mad: float


def centre(values: Floats) -> Centre:
    """The median of a row without its NaN, and the median absolute deviation (MAD) from it.

    >>> centre(np.array([3.0, 1.0, math.nan, 2.0, 9.0]))
    Centre(known=4, median=2.5, mad=1.0)
    """
    (known,), (median,) = medians_of_known(values[np.newaxis])
    _, (mad,) = medians_of_known(np.abs(values - median)[np.newaxis])
    return Centre(int(known), float(median), float(mad))


def medians_of_known(values: Floats) -> tuple[Ints, Floats]:
    """Of rows, how many numbers are known, and their median; shape (R, N) to twice (R,).

    >>> medians_of_known(np.array([[3.0, 1.0, 2.0], [3.0, math.nan, 2.0]]))
    (array([3, 2]), array([2. , 2.5]))
    """
    native, (rows, n), values = loops(), values.shape, contiguous(values, np.float64)
    if native is None or not n:
        ordered = np.sort(values, axis=1)  # NaN to the end
        known: Ints = n - np.count_nonzero(np.isnan(values), axis=1)
        places = np.stack([np.maximum(known - 1, 0) // 2, np.minimum(known // 2, n - 1)], axis=1)
        low, high = np.take_along_axis(ordered, places, axis=1).T
        return known, (low + high) / 2
    known, median = np.empty(rows, np.int64), np.empty(rows)
    if not native.row_medians(address(values), rows, n, address(known), address(median)):
        raise MemoryError
    return known, median


def correctly_rounded_sum(values: Floats) -> float:
    """`math.fsum`: the sum of a row, rounded once, so that the order of its numbers is no matter.

    >>> correctly_rounded_sum(np.array([1e16, 1.0, -1e16]))
    1.0
    """
    native, row = loops(), contiguous(values, np.float64)
    if native is not None and len(row):
        total = float(native.correctly_rounded_sum(address(row), len(row)))
        if not math.isnan(total):
            return total
    return math.fsum(row.tolist())


def enter(
    ordered: Floats,
    values: Floats,
    oldest: Ints,
    shown: Floats,
    usable: Bools,
    fresh: Ints,
    middles: Floats | None = None,
) -> Ints:
    """Enter new values in windows; return their number for each rank, shape (N,).

    ordered: shape (W, N), the values of each window, ascending, then NaN for none.
    values: shape (W * N,), the same in rings; rank i has the places i, i + N, and so on.
    oldest: shape (N,), the place of the value that leaves next.
    shown: shape (rows, N), values, the oldest first; a NaN enters as a gap.
    usable: shape (rows, N), whether a value may enter; overwritten.
    fresh: shape (N,), of how many rows from the newest on values may enter.
    middles: shape (2, rows, N), where the two values go whose mean is the median of each window,
        after each row; NaN where a value is missing.
    """
    native, (rows, n) = loops(), shown.shape
    shown, usable = contiguous(shown, np.float64), contiguous(usable, np.bool_)
    fresh = contiguous(fresh, np.int64)
    if native is None:
        usable &= np.arange(rows, 0, -1)[:, np.newaxis] <= fresh
        pair = [(len(ordered) - 1) // 2, len(ordered) // 2]
        for k, (row, enters) in enumerate(zip(shown, usable, strict=True)):
            _enter_row(ordered, values, oldest, row, enters)
            if middles is not None:
                middles[:, k] = ordered[pair] + 0 * ordered[-1]
        count: Ints = np.count_nonzero(usable, axis=0)
        return count
    entered = np.zeros(n, dtype=np.int64)
    if rows and not native.enter_rows(
        address(ordered), address(values), address(oldest), len(ordered), n, address(shown),
        address(usable), rows, address(fresh), address(entered),
        None if middles is None else address(middles),
    ):  # fmt: skip
        raise MemoryError
    return entered


def _enter_row(ordered: Floats, values: Floats, oldest: Ints, row: Floats, enters: Bools) -> None:
    """Replace the oldest value of some ranks; the order stays without a sort."""
    old = values.take(oldest)
    new = np.where(enters, row, old)
    values[oldest] = new
    np.add(oldest, len(oldest), out=oldest, where=enters)
    np.subtract(oldest, values.size, out=oldest, where=oldest >= values.size)
    lower, upper = ordered[:-1], ordered[1:]
    kept = np.where(lower >= old, upper, lower)  # all but `old`; comparisons with NaN are false
    np.fmin(kept, new, out=lower)
    ordered[-1] = new
    np.maximum(upper, kept, out=upper)
