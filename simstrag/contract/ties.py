"""Comparisons of measured times in which numbers that differ by rounding alone count as equal.

The last bits of a time depend on the processor, on the version of numpy and on the order of
additions.  A decision that depends on them cannot be repeated elsewhere, so policies compare times
with these functions.  A tie goes to the simpler mode (no straggler, fewer groups, full precision,
the plan in force), unless a policy's rule explicitly includes equality.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from simstrag.arrays import Bools, Floats, Ints

TOLERANCE = 1e-9
"""Relative difference up to which two numbers are tied."""


@overload
def is_less(a: float, b: float) -> bool: ...
@overload
def is_less(a: Floats, b: float | Floats) -> Bools: ...
@overload
def is_less(a: float, b: Floats) -> Bools: ...
def is_less(a: Any, b: Any) -> Any:
    """Whether a < b and the two are not tied; element by element, False where either is NaN.

    a, b: numbers or arrays, in the same unit; a is 0 or more wherever a tie matters.

    >>> is_less(1.0, 1.1), is_less(1.0, 1.0 + 1e-12)
    (True, False)
    """
    return a < b * (1 - TOLERANCE)


@overload
def is_at_most(a: float, b: float) -> bool: ...
@overload
def is_at_most(a: Floats, b: float | Floats) -> Bools: ...
@overload
def is_at_most(a: float, b: Floats) -> Bools: ...
def is_at_most(a: Any, b: Any) -> Any:
    """Whether a < b or the two are tied; element by element, False where either is NaN.

    >>> is_at_most(1.0 + 1e-12, 1.0)
    True
    """
    return a * (1 - TOLERANCE) <= b


def argsort(values: Floats) -> Ints:
    """The indices that sort along the last axis; tied values keep the order of their indices.

    values: 0 or more, without NaN.  Differences of times must be shifted by a time first, so that
    the tolerance is relative to the time.

    >>> argsort(np.array([2.0, 1.0 + 1e-12, 1.0]))
    array([1, 2, 0])
    """
    order = np.argsort(values, axis=-1)  # faster than a stable one, and ties are sorted below
    flat = values.ndim == 1  # the general way is slower
    ascending = values[order] if flat else np.take_along_axis(values, order, axis=-1)
    rises = is_less(ascending[..., :-1], ascending[..., 1:])
    if rises.all():
        return order
    levels = np.zeros(order.shape, dtype=np.int64)
    np.put_along_axis(levels, order[..., 1:], np.cumsum(rises, axis=-1), axis=-1)
    return np.argsort(levels, axis=-1, kind="stable")
