"""Checks of the fields of a plan; each error is one line that names the field."""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Iterable
from typing import TypeVar, cast

from simstrag.errors import PlanError

E = TypeVar("E", bound=enum.Enum)


def whole(what: str, value: object, least: int | None = None) -> int:
    """`value` as an int. Raises `PlanError` where it is not whole or less than `least`.

    >>> whole("bound", 3, least=0)
    3
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise PlanError(f"{what} must be a whole number, not {value!r}") from None
    if least is not None and number < least:
        raise PlanError(f"{what} must be {least} or more, not {number}")
    return number


def wholes(what: str, values: Iterable[object], least: int) -> tuple[int, ...]:
    """`values` as ints, each checked by `whole`; fast for many ints.

    >>> wholes("a rank", [3, 1], least=0)
    (3, 1)
    """
    values = tuple(values)
    if set(map(type, values)) == {int}:
        ints = cast("tuple[int, ...]", values)
        if min(ints) >= least:
            return ints
    return tuple(whole(what, value, least) for value in values)


def real(what: str, value: object) -> float:
    """`value` as a float. Raises `PlanError` where it is not a number or NaN.

    >>> real("window", 1)
    1.0
    """
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise PlanError(f"{what} must be a number, not {value!r}") from None
    if math.isnan(number):
        raise PlanError(f"{what} must be a number, not NaN")
    return number


def choice(what: str, value: object, kind: type[E]) -> E:
    """`value`, a member of `kind`. Raises `PlanError` where it is not."""
    if not isinstance(value, kind):
        allowed = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise PlanError(f"{what} must be one of {allowed}, not {value!r}")
    return value
