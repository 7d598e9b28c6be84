"""Numbers and lists as text: significant digits, intervals, and a dash for no number."""

# ruff: noqa: RUF001, RUF002 - dashes and minus signs are meant

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "–"
"""NaN or no number; a table that shows it says why."""


def join(words: Sequence[str]) -> str:
    """Words with commas and a last `and`.

    >>> join(["a", "b", "c"]), join(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def number(value: float | int | None, digits: int = 3, sign: bool = False) -> str:
    """A number with `digits` significant digits, and at least those of its integer part.

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
    """A share in percent, without the sign.

    >>> percent(0.5), percent(0.0), percent(0.00012)
    ('50.0', '0', '0.012')
    """
    if value is not None and 0 < abs(value) < 0.001:
        digits = 2
    return number(None if value is None else 100 * value, digits)


def estimate(value: float, low: float, high: float, scale: float = 1.0, sign: bool = False) -> str:
    """A value and its interval, with the digits that the interval supports, at most four.

    An interval too narrow for these digits is left out.  An end other than 0 is not shown as 0.

    >>> estimate(12.3456, 12.1, 12.6), estimate(-1.5, -2.0, 0.3), estimate(3.0, math.nan, math.nan)
    ('12.3 (12.1–12.6)', '−1.5 (−2.0 to 0.3)', '3.000 (–)')
    >>> estimate(273.8, 273.8 - 1e-12, 273.8 + 1e-12), estimate(9.12, 0.023, 22.13)
    ('273.8', '9.1 (0.02–22.1)')
    """
    value, low, high = value * scale, low * scale, high * scale
    if math.isnan(value):
        return MISSING
    if value == low == high == 0:
        return "0"
    if math.isnan(low) or math.isnan(high):
        return f"{_fixed(value, max(3 - _magnitude(value), 0), sign)} ({MISSING})"
    places = decimals(value, low, high)
    shown, ends = _fixed(value, places, sign), [_end(v, places, sign) for v in (low, high)]
    if ends[0] == ends[1]:
        return shown
    return f"{shown} ({('–' if low >= 0 and not sign else ' to ').join(ends)})"


def decimals(value: float, low: float, high: float) -> int:
    """Decimal places that show an interval, with at most four digits of its largest number.

    >>> decimals(12.3456, 12.1, 12.6), decimals(273.8, 273.8, 273.8 + 1e-12)
    (1, 1)
    """
    most = max(3 - _magnitude(max(map(abs, (value, low, high)))), 0)
    if high <= low:
        return most
    return min(max(math.ceil(-math.log10((high - low) / 2)), 1 - _magnitude(value), 0), most)


def _end(value: float, places: int, sign: bool) -> str:
    """An end of an interval with `places` decimals, or with more where it would be 0."""
    small = value and round(value, places) == 0
    return _fixed(value, -_magnitude(value) if small else places, sign)


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _fixed(value: float, places: int, sign: bool) -> str:
    text = f"{value:{'+' if sign else ''}.{places}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")
