"""Piecewise-constant slowdowns over time, integrated exactly.

This is half of the arithmetic that all engines share (docs/semantics.md, rule 0): `finish` is the
only function that says when work under contention ends.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piecewise:
    """A right-continuous step function of time: `values[k]` holds from `times[k]` on.

    times: seconds, increasing from 0.
    values: positive, one for each time.
    period: seconds after which the function repeats; infinite if it keeps its last value.

    >>> finish(0.0, 4.0, Piecewise((0.0, 3.0), (1.0, 2.0), period=4.0))
    4.5
    """

    times: tuple[float, ...]
    values: tuple[float, ...]
    period: float = math.inf

    def __post_init__(self) -> None:
        assert self.times[0] == 0.0
        assert len(self.times) == len(self.values)
        assert self.times[-1] < self.period

    def at(self, time: float) -> tuple[float, float]:
        """The value from a time on, and when it changes next; infinity if it never does.

        A cycle begins at its number times the period, as in `finish`, and changes are sums of that
        and of `times`: so the second number is later than `time`, and at it the next value holds.

        >>> Piecewise((0.0, 3.0), (1.0, 2.0), period=4.0).at(7.0)
        (2.0, 8.0)
        """
        cycle, base = 0, 0.0
        if self.period < math.inf:
            cycle = math.floor(time / self.period)
            cycle += ((cycle + 1) * self.period <= time) - (cycle * self.period > time)
            base = cycle * self.period
        k = bisect_right(self.times, time, key=lambda start: base + start)
        last = (cycle + 1) * self.period if self.period < math.inf else math.inf
        return self.values[k - 1], base + self.times[k] if k < len(self.times) else last


ONE = Piecewise((0.0,), (1.0,))
"""The slowdown without contention."""


def finish(start: float, work: float, slowdown: Piecewise, factor: float = 1.0) -> float:
    """The end of `work` seconds of uncontended work that begin at `start`.

    Solves ``integral from start to t of ds / slowdown(s) = work`` exactly, segment by segment.

    factor: of all values of the slowdown.

    >>> finish(8.0, 4.0, Piecewise((0.0, 10.0), (1.0, 2.0)))   # 2 s clean, then 2 s at half speed
    14.0
    """
    times, period = slowdown.times, slowdown.period
    values = slowdown.values if factor == 1.0 else [each * factor for each in slowdown.values]
    if len(times) == 1:
        return start + work * values[0]
    cycle = math.floor(start / period) if period < math.inf else 0
    base = cycle * period if cycle else 0.0
    k = bisect_right(times, start - base) - 1
    last = len(times) - 1
    while True:
        if k < last:
            end = base + times[k + 1]
        else:
            end = (cycle + 1) * period if period < math.inf else math.inf
        end_if_alone = start + work * values[k]
        if end_if_alone <= end:
            return end_if_alone
        work = max(work - (end - start) / values[k], 0.0)
        start = end
        if k < last:
            k += 1
        else:
            k, cycle = 0, cycle + 1
            base = cycle * period
