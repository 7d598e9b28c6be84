"""Numbers as text: the digits they deserve, an interval beside them, a dash for no number."""

# ruff: noqa: RUF001, RUF002 - dashes and minus signs are meant

from __future__ import annotations

import math

__all__ = ["MISSING", "estimate", "number", "percent", "seconds"]

MISSING = "–"
"""Stands for NaN and for nothing; a table that shows it says why."""


def number(value: float | int | None, digits: int = 3, sign: bool = False) -> str:
    """A number with so many significant digits, and no fewer than its whole part has.

    >>> number(1234.5), number(0.01234), number(math.nan), number(7)
    ('1234', '0.0123', '–', '7')
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int) or value == 0:
        return _fixed(value, 0, sign)
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return _fixed(value, max(digits - 1 - _magnitude(value), 0), sign)


def seconds(value: float | None) -> str:
    """A duration with its unit.

    >>> seconds(0.0123), seconds(75.0), seconds(0.0)
    ('12.3 ms', '75.0 s', '0 s')
    """
    if value is not None and 0 < abs(value) < 0.1:
        return f"{number(value * 1000)} ms"
    return f"{number(value)} s"


def percent(value: float | None, digits: int = 3) -> str:
    """A share, as a number of hundredths and without the sign for them.

    >>> percent(0.5), percent(0.0), percent(0.00012)
    ('50.0', '0', '0.012')
    """
    if value is not None and 0 < abs(value) < 0.001:
        digits = 2
    return number(None if value is None else 100 * value, digits)


def estimate(value: float, low: float, high: float, scale: float = 1.0, sign: bool = False) -> str:
    """A value and its interval, to the digits that the interval leaves standing.

    >>> estimate(12.3456, 12.1, 12.6), estimate(-1.5, -2.0, 0.3), estimate(3.0, math.nan, math.nan)
    ('12.3 (12.1–12.6)', '−1.5 (−2.0 to 0.3)', '3.000 (–)')
    """
    value, low, high = value * scale, low * scale, high * scale
    if math.isnan(value):
        return MISSING
    if value == low == high == 0:
        return "0 (0 to 0)"
    if math.isnan(low) or math.isnan(high):
        return f"{_fixed(value, max(3 - _magnitude(value), 0), sign)} ({MISSING})"
    places = decimals(value, high - low)
    shown = [_fixed(v, places, sign) for v in (value, low, high)]
    between = "–" if low >= 0 and not sign else " to "
    return f"{shown[0]} ({shown[1]}{between}{shown[2]})"


def decimals(value: float, width: float) -> int:
    """How many places after the point show an interval of this width."""
    least = max(1 - _magnitude(value), 0)
    if width <= 0:
        return max(3 - _magnitude(value), 0)
    return min(max(math.ceil(-math.log10(width / 2)), least, 0), 9)


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _fixed(value: float, places: int, sign: bool) -> str:
    text = f"{value:{'+' if sign else ''}.{places}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")
