"""The last values of every rank, where each rank may leave values out.

Korel leaves out times of another precision, so the windows of two ranks may hold different steps.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from simstrag.policies.estimators.detectors import median

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Windows:
    """The last `width` values of each of `ranks` ranks.

    recent: shape (width, ranks), newest last, NaN for none.
    seen: shape (ranks,), number of values of each rank so far.

    >>> windows = Windows(ranks=2, width=3)
    >>> seen = np.array([[1.0, 3.0], [5.0, 3.0], [2.0, 9.0], [4.0, 9.0]])
    >>> windows.follow(np.array([4, 2]), seen, usable=np.ones((4, 2), bool))
    array([4, 2])
    >>> windows.recent
    array([[ 5., nan],
           [ 2.,  9.],
           [ 4.,  9.]])
    """

    def __init__(self, ranks: int, width: int) -> None:
        self.seen: Ints = np.zeros(ranks, dtype=np.int64)
        self.recent: Floats = np.full((width, ranks), math.nan)  # newest last

    def news(self, steps: Ints, rows: int) -> int:
        """The number of newest rows that hold a value not entered yet."""
        return min(int((steps - self.seen).max()), rows)

    def follow(self, steps: Ints, values: Floats, usable: Bools) -> Ints:
        """Enter new values, the oldest first; return their number for each rank, shape (ranks,).

        steps: shape (ranks,), number of values of each rank so far.
        values: shape (rows, ranks), the last values, newest last; a NaN enters as a gap.
        usable: shape (rows, ranks), whether a value enters; the others are left out.
        """
        rows = len(values)
        new = steps - self.seen
        self.seen = steps.copy()
        joined = np.concatenate([self.recent, values])
        if np.count_nonzero(new < rows):
            usable = usable & (np.arange(rows, 0, -1)[:, np.newaxis] <= new)
        entered: Ints = np.add.reduce(usable, axis=0)
        if np.count_nonzero(usable) == usable.size:
            self.recent = joined[rows:]
            return entered
        partly = np.flatnonzero(entered < rows)
        kept = np.ones((len(joined), len(partly)), dtype=np.bool_)
        kept[len(joined) - rows :] = usable[:, partly]
        order = np.argsort(kept, axis=0, kind="stable")  # first what is left out, to be cut off
        joined[:, partly] = np.take_along_axis(joined[:, partly], order, axis=0)
        self.recent = joined[rows:]
        return entered

    def clear(self, ranks: int | Ints) -> None:
        """Remove all values of some ranks."""
        self.recent[:, ranks] = math.nan

    def median(self, ranks: int | Ints) -> Floats:
        """The median of some ranks; NaN where a value is missing."""
        return median(self.recent[:, ranks].T)
