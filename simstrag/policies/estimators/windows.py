"""The last values of every rank, where each rank may leave values out.

Korel leaves out times of another precision, so the windows of two ranks may hold different steps.
"""

from __future__ import annotations

import math
from copy import copy

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract.medians import median_of_ordered
from simstrag.policies.estimators.columns import enter


class Windows:
    """The last `width` values of each of `ranks` ranks.

    ordered: shape (width, ranks), each rank's values in ascending order, then NaN for none.
    seen: shape (ranks,), number of values of each rank so far.

    >>> windows = Windows(ranks=2, width=3)
    >>> seen = np.array([[1.0, 3.0], [5.0, 3.0], [2.0, 9.0], [4.0, 9.0]])
    >>> windows.follow(np.array([4, 2]), seen, usable=np.ones((4, 2), bool))
    array([4, 2])
    >>> windows.ordered
    array([[ 2.,  9.],
           [ 4.,  9.],
           [ 5., nan]])
    """

    def __init__(self, ranks: int, width: int) -> None:
        self.seen: Ints = np.zeros(ranks, dtype=np.int64)
        self.ordered: Floats = np.full((width, ranks), math.nan)
        self._values: Floats = np.full(width * ranks, math.nan)
        self._oldest: Ints = np.arange(ranks)  # the place in `_values` of the value to leave next

    def news(self, steps: Ints, rows: int) -> int:
        """The number of newest rows that hold a value not entered yet."""
        return min(int(np.maximum.reduce(steps - self.seen)), rows)

    def follow(self, steps: Ints, values: Floats, usable: Bools) -> Ints:
        """Enter new values, the oldest first; return their number for each rank, shape (ranks,).

        steps: shape (ranks,), number of values of each rank so far.
        values: shape (rows, ranks), the last values, newest last; a NaN enters as a gap.
        usable: shape (rows, ranks), whether a value enters; the others are left out; overwritten.
        """
        fresh, self.seen = steps - self.seen, steps.copy()
        return enter(self.ordered, self._values, self._oldest, values, usable, fresh)

    def follow_rows(self, steps: Ints, values: Floats, usable: Bools) -> Floats:
        """Enter a value of each rank after the other; return the middles after each row.

        steps: shape (rows, ranks), number of values of each rank so far, after each row.
        values, usable: shape (rows, ranks), as of `follow`.

        Returns shape (2, rows, ranks): the two values whose mean is the median; NaN for none.
        """
        middles = np.empty((2, *values.shape))
        fresh, self.seen = np.full(len(self.seen), len(values)), steps[-1].copy()
        enter(self.ordered, self._values, self._oldest, values, usable, fresh, middles)
        return middles

    def copy(self) -> Windows:
        """Windows with the same values."""
        copied = copy(self)
        for name in ("ordered", "_values", "_oldest"):
            setattr(copied, name, getattr(self, name).copy())
        return copied

    def latest(self, rows: int) -> Floats:
        """The last values of each rank, shape (rows, ranks), newest last; NaN for none."""
        places = self._oldest + np.arange(-rows, 0)[:, np.newaxis] * len(self._oldest)
        values: Floats = self._values.take(places % self._values.size)
        return values

    def clear(self, ranks: int | Ints | Bools | list[int]) -> None:
        """Remove all values of some ranks."""
        self.ordered[:, ranks] = math.nan
        self._values.reshape(self.ordered.shape)[:, ranks] = math.nan

    def median(self, ranks: int | Ints | slice) -> Floats:
        """The median of some ranks; NaN where a value is missing."""
        return median_of_ordered(self.ordered[:, ranks])

    def middles(self) -> tuple[Floats, Floats]:
        """The two values whose mean is the median of each rank, shape (ranks,); NaN for none."""
        ordered, unknown = self.ordered, 0 * self.ordered[-1]  # NaN if the last is
        return ordered[(len(ordered) - 1) // 2] + unknown, ordered[len(ordered) // 2] + unknown
