"""Many step functions of time in three arrays.

A `Piecewise` is one of them, for the arithmetic of one rank.  Operations on all ranks act here
element by element in the same order, so that results are equal to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simstrag.arrays import Floats, Ints
from simstrag.trace.slowdown import Piecewise


def owners(starts: Ints) -> Ints:
    """The group of each row; group k has rows starts[k] to starts[k+1].

    >>> owners(np.array([0, 2, 2, 3]))
    array([0, 0, 2])
    """
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def pick(starts: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    """The rows of chosen groups, group after group, and the new starts of these groups.

    >>> pick(np.array([0, 2, 2, 3]), np.array([2, 0]))
    (array([2, 0, 1]), array([0, 1, 3]))
    """
    sizes = np.diff(starts)[chosen]
    begins = np.append(0, np.cumsum(sizes))
    return np.arange(begins[-1]) + np.repeat(starts[chosen] - begins[:-1], sizes), begins


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Step functions, one after the other; see `Piecewise`.

    times, values: the rows of all functions.
    starts: place of the first row of each function, and the end of the last one.
    periods: one per function.

    >>> Pieces.of(np.array([5.0, 8.0]), np.array([2.0, 3.0]), np.array([0, 1, 2]))[1]
    Piecewise(times=(0.0, 8.0), values=(1.0, 3.0), period=inf)
    """

    times: Floats
    values: Floats
    starts: Ints
    periods: Floats

    @classmethod
    def of(
        cls,
        times: Floats,
        values: Floats,
        starts: Ints,
        period: float = math.inf,
        before: Floats | float = 1.0,
    ) -> Pieces:
        """From rows in order of time, function after function; of equal times the last counts.

        before: the value before the first row, of each function or of all.  Rows at or after the
        period would never be reached, and are left out.
        """
        owner, count = owners(starts), len(starts) - 1
        same = (owner[1:] == owner[:-1]) & (times[1:] == times[:-1])
        kept = np.append(~same, True)[: len(times)] & (times < period)
        if not kept.all():
            times, values, owner = times[kept], values[kept], owner[kept]
        bare = np.ones(count, np.bool_)
        bare[owner[times == 0]] = False
        begins = np.append(0, np.cumsum(np.bincount(owner, minlength=count) + bare))
        place = np.arange(len(owner)) + np.cumsum(bare)[owner]
        opened = np.zeros(begins[-1]), np.empty(begins[-1])
        opened[1][begins[:-1]] = before
        for column, rows in zip(opened, (times + 0.0, values), strict=True):  # 0 for a time of -0
            column[place] = rows
        return cls(*opened, begins, np.full(count, period))

    @classmethod
    def constants(cls, values: Sequence[float]) -> Pieces:
        """Functions that never change."""
        count = len(values)
        never = np.full(count, math.inf)
        return cls(np.zeros(count), np.array(values, float), np.arange(count + 1), never)

    @classmethod
    def of_each(cls, functions: Sequence[Piecewise]) -> Pieces:
        """These functions, at least one."""
        times = np.concatenate([f.times for f in functions])
        values = np.concatenate([f.values for f in functions])
        starts = np.cumsum([0, *(len(f.times) for f in functions)])
        return cls(times, values, starts, np.array([f.period for f in functions]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, k: int) -> Piecewise:
        rows = slice(self.starts[k], self.starts[k + 1])
        return Piecewise(
            tuple(self.times[rows].tolist()),
            tuple(self.values[rows].tolist()),
            float(self.periods[k]),
        )

    def taken(self, chosen: Ints) -> Pieces:
        """The chosen functions in this order; one may be chosen more than once."""
        rows, starts = pick(self.starts, chosen)
        return Pieces(self.times[rows], self.values[rows], starts, self.periods[chosen])

    def after(self, first: Pieces) -> Pieces:
        """The functions of `first`, then these."""
        return Pieces(
            np.concatenate([first.times, self.times]),
            np.concatenate([first.values, self.values]),
            np.concatenate([first.starts, self.starts[1:] + first.starts[-1]]),
            np.concatenate([first.periods, self.periods]),
        )

    def scale(self, factors: Floats) -> Pieces:
        """Each function times its factor."""
        return self.changing(self.values * np.repeat(factors, np.diff(self.starts)))

    def changing(self, values: Floats) -> Pieces:
        """The same times with other values, without rows that change nothing."""
        kept = np.append(True, values[1:] != values[:-1])[: len(values)]
        kept[self.starts[:-1]] = True
        starts = np.append(0, np.cumsum(kept))[self.starts]
        return Pieces(self.times[kept], values[kept], starts, self.periods)

    def largest(self) -> Piecewise:
        """The maximum of all functions over time.

        Pairs are combined until one function is left; after some rounds few changes are left.
        """
        left = self.changing(self.values)
        while len(left) > 1:
            even = np.arange(0, len(left), 2)
            odd = np.minimum(even + 1, len(left) - 1)
            left = combine([left.taken(even), left.taken(odd)], np.maximum)
        return left[0]


def combine(parts: Sequence[Pieces], function: Callable[..., Floats]) -> Pieces:
    """The step functions `function(*values)`, element by element over the functions of the parts.

    Functions that are combined have the same period, or none.

    >>> a, b = Pieces.constants([2.0, 3.0]), Pieces.constants([5.0, 7.0])
    >>> combine([a, b], lambda x, y: x * y).values
    array([10., 21.])
    """
    if len(parts) == 1:
        return parts[0].changing(function(parts[0].values))
    owner = np.concatenate([owners(part.starts) for part in parts])
    times = np.concatenate([part.times for part in parts])
    order = np.lexsort((times, owner))
    owner, times = owner[order], times[order]
    last = np.append((owner[1:] != owner[:-1]) | (times[1:] != times[:-1]), True)
    values, at = [], 0
    for part in parts:
        of_part = (order >= at) & (order < at + len(part.times))
        # Each function has a row at time 0 in each part: the part's latest row is of this function.
        values.append(part.values[np.cumsum(of_part)[last] - 1])
        at += len(part.times)
    starts = np.append(0, np.cumsum(np.bincount(owner[last], minlength=len(parts[0]))))
    periods = np.min([part.periods for part in parts], axis=0)
    return Pieces(times[last], values[0], starts, periods).changing(function(*values))
