"""The last values of every rank, where each rank may leave values out.

Korel leaves out times of another precision, so the windows of two ranks may hold different steps.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Windows:
    """The last `width` values of each of `ranks` ranks.

    seen: shape (ranks,), number of values of each rank so far.

    >>> windows = Windows(ranks=2, width=3)
    >>> seen = np.array([[1.0, 5.0, 2.0, 4.0], [3.0, 3.0, 9.0, 9.0]])
    >>> windows.follow(np.array([4, 2]), seen, usable=np.ones((2, 4), bool))
    array([4, 2])
    >>> windows.ordered().T
    array([[ 2.,  4.,  5.],
           [ 9.,  9., nan]])
    """

    def __init__(self, ranks: int, width: int) -> None:
        self.seen: Ints = np.zeros(ranks, dtype=np.int64)
        self._recent: Floats = np.full((ranks, width), math.nan)  # newest last

    def news(self, steps: Ints, columns: int) -> int:
        """The number of newest columns that hold a value not entered yet."""
        return min(int((steps - self.seen).max()), columns)

    def follow(self, steps: Ints, values: Floats, usable: Bools) -> Ints:
        """Enter new values, the oldest first; return their number for each rank, shape (ranks,).

        steps: shape (ranks,), number of values of each rank so far.
        values: shape (ranks, columns), the last values, newest last; a NaN enters as a gap.
        usable: shape (ranks, columns), whether a value enters; the others are left out.
        """
        columns = values.shape[1]
        new = steps - self.seen
        self.seen = steps.copy()
        joined = np.concatenate([self._recent, values], axis=1)
        if np.count_nonzero(usable) == usable.size and np.count_nonzero(new < columns) == 0:
            self._recent = joined[:, columns:]
            return np.full(len(steps), columns)
        enters = usable & (np.arange(columns, 0, -1) <= new[:, np.newaxis])
        entered: Ints = np.add.reduce(enters, axis=1)
        partly = np.flatnonzero(entered < columns)
        kept = np.ones((len(partly), joined.shape[1]), dtype=np.bool_)
        kept[:, -columns:] = enters[partly]
        order = np.argsort(kept, axis=1, kind="stable")  # first what is left out, to be cut off
        joined[partly] = np.take_along_axis(joined[partly], order, axis=1)
        self._recent = joined[:, columns:]
        return entered

    def clear(self, rank: int) -> None:
        """Remove all values of a rank."""
        self._recent[rank] = math.nan

    def ordered(self) -> Floats:
        """Each rank's values in ascending order, shape (width, ranks), then NaN for none."""
        return np.sort(self._recent, axis=1).T.copy()

    def median(self, rank: int) -> float:
        """The median of one rank; NaN where a value is missing."""
        values = np.sort(self._recent[rank])
        width = len(values)
        middle = (values[(width - 1) // 2] + values[width // 2]) / 2
        return math.nan if math.isnan(values[-1]) else float(middle)
