"""Running medians: the last values of every rank, kept in ascending order.

Sorting all windows again for one new value each would take longer than the rest of a review.  Here
a new value replaces the oldest one in the sorted window.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.policies.estimators.loops import compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NONE = math.inf
"""Marks a missing value in a window; it sorts to the end."""
CHUNK = 512
"""Ranks per pass, so that their windows fit into the nearest cache."""


class Windows:
    """The last `width` values of each of `ranks` ranks.

    seen: shape (ranks,), number of values of each rank so far.
    ordered: shape (width, ranks), each rank's values in ascending order.

    >>> windows = Windows(ranks=2, width=3)
    >>> seen = np.array([[1.0, 5.0, 2.0, 4.0], [3.0, 3.0, 9.0, 9.0]])
    >>> windows.follow(np.array([4, 2]), seen)
    array([4, 2])
    >>> windows.medians()
    array([ 4., nan])
    """

    def __init__(self, ranks: int, width: int) -> None:
        self.seen: Ints = np.zeros(ranks, dtype=np.int64)
        self.ordered: Floats = np.full((width, ranks), NONE)
        self._recent: Floats = np.full((width, ranks), NONE)
        self._oldest: Ints = np.zeros(ranks, dtype=np.int64)

    def news(self, steps: Ints, columns: int) -> int:
        """The number of newest columns that hold a value not entered yet."""
        return min(int((steps - self.seen).max()), columns)

    def follow(self, steps: Ints, values: Floats, skip: Bools | None = None) -> Ints:
        """Enter new values, the oldest first; return their number for each rank, shape (ranks,).

        steps: shape (ranks,), number of values of each rank so far.
        values: shape (ranks, columns), the last values, newest last; a NaN enters as a gap, and a
            window with a gap has no median.
        skip: shape (ranks, columns), whether a value is left out.
        """
        if skip is None:
            skip = np.zeros(values.shape, dtype=np.bool_)
        entered = np.zeros(len(steps), dtype=np.int64)
        _follow(
            self.ordered, self._recent, self._oldest, self.seen, steps,
            np.ascontiguousarray(values.T), np.ascontiguousarray(skip.T), entered,
        )  # fmt: skip
        return entered

    def clear(self, rank: int) -> None:
        """Remove all values of a rank."""
        self.ordered[:, rank] = self._recent[:, rank] = NONE

    def medians(self) -> Floats:
        """The median of each rank, shape (ranks,); NaN where the window is not full."""
        low, high = self.middles()
        middle: Floats = (low + high) / 2
        full = self.ordered[-1] < NONE
        return middle if full.all() else np.where(full, middle, math.nan)

    def middles(self) -> tuple[Floats, Floats]:
        """The two middle values, whose mean is the median, each of shape (ranks,)."""
        width = len(self.ordered)
        return self.ordered[(width - 1) // 2], self.ordered[width // 2]

    def median(self, rank: int) -> float:
        """The median of one rank."""
        low, high = self.middles()
        full = self.ordered[-1, rank] < NONE
        return float((low[rank] + high[rank]) / 2) if full else math.nan

    def of(self, rank: int | Bools | slice) -> Floats:
        """The values of some ranks in ascending order, shape (..., width); NaN where missing."""
        values = self.ordered[:, rank].T
        return np.where(values < NONE, values, math.nan)


@compiled
def _follow(
    ordered: Any, recent: Any, oldest: Any, seen: Any, steps: Any, values: Any, skip: Any,
    entered: Any,
) -> None:  # fmt: skip
    width, n = ordered.shape
    columns = len(values)
    goes, comes, below = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    none = np.full(CHUNK, NONE)
    for begin in range(0, n, CHUNK):
        size = min(CHUNK, n - begin)
        for column in range(columns):
            for k in range(size):
                rank = begin + k
                goes[k] = comes[k] = ordered[0, rank]  # nothing changes
                if columns - column > steps[rank] - seen[rank] or skip[column, rank]:
                    continue
                value = values[column, rank]
                at = oldest[rank]
                goes[k] = recent[at, rank]
                comes[k] = recent[at, rank] = NONE if math.isnan(value) else value
                oldest[rank] = at + 1 if at + 1 < width else 0
                entered[rank] += 1
            below[:size] = -NONE
            for j in range(width):
                own = ordered[j, begin : begin + size]
                above = ordered[j + 1, begin : begin + size] if j + 1 < width else none[:size]
                for k in range(size):
                    left = own[k] if own[k] < goes[k] else above[k]
                    least = left if left < comes[k] else comes[k]
                    own[k] = least if least > below[k] else below[k]
                    below[k] = left
        for rank in range(begin, begin + size):
            seen[rank] = steps[rank]
