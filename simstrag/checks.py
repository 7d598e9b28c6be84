"""What the fields of a plan may hold: a stranger's mistake is one line that names the field."""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Iterable
from typing import TypeVar, cast

from simstrag.errors import PlanError

__all__ = ["choice", "real", "whole", "wholes"]

E = TypeVar("E", bound=enum.Enum)


def whole(what: str, value: object, least: int | None = None) -> int:
    """`value` as an int. Raises `PlanError` for anything else, and for less than `least`.

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
    """`values` as ints, each as by `whole`; of many that are ints already this is quick.

    >>> wholes("a rank", [3, 1], least=0)
    (3, 1)
    """
    found = tuple(values)
    if set(map(type, found)) == {int}:
        ints = cast("tuple[int, ...]", found)
        if min(ints) >= least:
            return ints
    return tuple(whole(what, value, least) for value in found)


def real(what: str, value: object) -> float:
    """`value` as a float that is no NaN. Raises `PlanError` for anything else.

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
    """`value`, a member of `kind`. Raises `PlanError` for anything else."""
    if not isinstance(value, kind):
        allowed = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise PlanError(f"{what} must be one of {allowed}, not {value!r}")
    return value
