"""Numbers as people write them: whole, or with a unit, such as 25Gbit or 350ms."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any

from simstrag.errors import InputError

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SIZES = {
    "bit": 1 / 8, "bit/s": 1 / 8, "b": 1 / 8, "b/s": 1 / 8, "bps": 1 / 8,
    "B": 1.0, "B/s": 1.0, "Bps": 1.0,
}  # fmt: skip
BYTES_PER_SECOND = {
    prefix + unit: factor * size
    for prefix, factor in _PREFIXES.items()
    for unit, size in _SIZES.items()
}


def whole_number(value: Any, name: str, least: int = 0) -> int:
    """`value` as an int. Raises `InputError` where it is not whole, or less than `least`.

    name: of the argument, for the message.

    >>> whole_number(1.5, "jobs", least=1)
    Traceback (most recent call last):
    simstrag.errors.InputError: jobs 1.5 must be a whole number, 1 or more
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{name} {value!r} must be a whole number, {least} or more")
    return number


def parse_quantity(text: str, name: str, units: Mapping[str, float], example: str) -> float:
    """A positive quantity in the base unit of `units`; only what is counted needs no unit.

    name: of the flag, for the message of the `InputError`.

    >>> parse_quantity("25Gbit/s", "--link", BYTES_PER_SECOND, "25Gbit or 3.1GB")
    3125000000.0
    >>> parse_quantity("25", "--link", BYTES_PER_SECOND, "25Gbit or 3.1GB")
    Traceback (most recent call last):
    simstrag.errors.InputError: --link 25: has no unit; did you mean 25Gbit (3.125GB) or
    25GB (200Gbit)?
    """
    found = re.fullmatch(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(\S*)\s*", text)
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or math.isnan(number):
        raise InputError(f"{name} {text}: is no number with a unit; write it as in {example}")
    unit = found[2]
    if unit and unit not in units:
        raise InputError(f"{name} {text}: there is no unit '{unit}' here; write it as in {example}")
    if not 0 < number * units.get(unit, 1) < math.inf:
        raise InputError(f"{name} {text}: must be more than 0; write it as in {example}")
    if unit not in units:
        meant = _with_units(found[1], units, example)
        raise InputError(f"{name} {text}: has no unit; did you mean {meant}?")
    return number * units[unit]


def _with_units(number: str, units: Mapping[str, float], example: str) -> str:
    """A number with either unit of an example, and what that is in the other unit.

    >>> _with_units("0.1", SECONDS, "0.35s or 350ms")
    '0.1s (100ms) or 0.1ms (0.0001s)'
    """
    a, b = re.findall(r"[\d.]+(\S+)", example)
    return " or ".join(
        f"{number}{unit} ({float(number) * units[unit] / units[other]:g}{other})"
        for unit, other in ((a, b), (b, a))
    )
