"""Step functions the plain way, one value at a time: the judge of `trace.step_functions`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from simstrag.trace.slowdown import Piecewise


def of(
    rows: Iterable[tuple[float, float]], period: float = math.inf, before: float = 1.0
) -> Piecewise:
    """From (time, value) rows in order of time; `before` the first; of equal times the last.

    Rows at or after the period are beyond what repeats, and are left out.
    """
    steps = {0.0: before} | {time: value for time, value in rows if time < period}
    return Piecewise(tuple(steps), tuple(steps.values()), period)


def at(f: Piecewise, time: float) -> float:
    """The value at `time` >= 0."""
    base = math.floor(time / f.period) * f.period if f.period < math.inf else 0.0
    return f.values[bisect_right(f.times, time - base) - 1]


def combine(parts: Sequence[Piecewise], function: Callable[..., float]) -> Piecewise:
    """The step function `function(*values)` of several step functions with one period."""
    times = sorted({time for part in parts for time in part.times})
    values = [function(*(at(part, time) for part in parts)) for time in times]
    kept = [k for k in range(len(times)) if k == 0 or values[k] != values[k - 1]]
    period = min(part.period for part in parts)
    return Piecewise(tuple(times[k] for k in kept), tuple(values[k] for k in kept), period)
