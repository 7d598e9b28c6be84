"""Numbers and lists as text: significant digits, intervals, and a dash for no number."""

# ruff: noqa: RUF001, RUF002 - dashes and minus signs are meant

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "–"
"""NaN or no number; a table that shows it says why."""


def join(words: Sequence[str], most: int | None = None) -> str:
    """Words with commas and a last `and`; most: how many are named.

    >>> join(["a", "b", "c"]), join(["a"]), join(["a", "b", "c"], most=1)
    ('a, b and c', 'a', 'a and 2 more')
    """
    if most is not None and len(words) > most:
        words = [*words[:most], f"{len(words) - most} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def capital(text: str) -> str:
    """A sentence that begins with a capital letter.

    >>> capital("nothing is slow")
    'Nothing is slow'
    """
    return text[0].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "step"), plural(4, "GPU")
    ('1 step', '4 GPUs')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number(value: float | int | None, digits: int = 3, sign: bool = False) -> str:
    """A number with `digits` significant digits, and at least those of its integer part.

    >>> number(1234.5), number(0.01234), number(math.nan), number(7), number(0.9999)
    ('1234', '0.0123', '–', '7', '1.00')
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int) or value == 0:
        return _fixed(value, 0, sign)
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    shown = round(value, digits - 1 - _magnitude(value))
    return _fixed(value, max(digits - 1 - _magnitude(shown), 0), sign)


def seconds(value: float) -> str:
    """A duration with its unit.

    >>> seconds(0.0123), seconds(75.0), seconds(0.0)
    ('12.3 ms', '75.0 s', '0 s')
    """
    return f"{number(value)} s" if math.isnan(value) else with_unit(value, "s")


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    """A value with its unit; a dash for NaN.

    >>> with_unit(1.11148e9, "bytes/s"), with_unit(0.00489, "s"), with_unit(64.0, "samples")
    ('1.11 GB/s', '4.89 ms', '64.0 samples')
    """
    scale, word = divisor(value, unit)
    shown = number(value if scale == 1 else value / scale, digits)
    return shown if shown == MISSING else f"{shown} {word}".strip()


def divisor(value: float, unit: str) -> tuple[float, str]:
    """A divisor that makes a value readable, and the unit it gives.

    >>> divisor(3e9, "bytes/s"), divisor(0.05, "s"), divisor(8.0, "samples")
    ((1000000000.0, 'GB/s'), (0.001, 'ms'), (1.0, 'samples'))
    """
    if unit == "s" and 0 < abs(value) < 0.1:
        return 1e-3, "ms"
    if unit.startswith("bytes"):
        power = min(max(math.floor(math.log10(value) / 3), 0), 4) if 0 < value < math.inf else 0
        return 1000.0**power, ("bytes", "kB", "MB", "GB", "TB")[power] + unit[5:]
    return 1.0, unit


def percent(value: float | None, digits: int = 3) -> str:
    """A share in percent, without the sign.

    >>> percent(0.5), percent(0.0), percent(0.00012)
    ('50.0', '0', '0.012')
    """
    if value is not None and 0 < abs(value) < 0.001:
        digits = 2
    return number(None if value is None else 100 * value, digits)


def estimate(
    value: float, low: float, high: float, scale: float = 1.0, sign: bool = False,
    percent: bool = False,
) -> str:  # fmt: skip
    """A value and its interval, to the decimal place of the first digit of half its width.

    Beyond 100, the second digit of half the width is the last that is not 0.  There are at most
    four digits, three without an interval, and at most one decimal place of a percentage.  An
    interval too narrow for that is left out.  An end other than 0 is not shown as 0, nor is the
    value where the interval excludes 0.

    scale: multiplies all three.  percent: whether they are shares to be shown in percent.

    >>> estimate(12.3456, 12.1, 12.6), estimate(-1.5, -2.0, 0.3), estimate(3.0, math.nan, math.nan)
    ('12.3 (12.1–12.6)', '−2 (−2 to 0.3)', '3.00 (–)')
    >>> estimate(273.8, 273.8 - 1e-12, 273.8 + 1e-12), estimate(9.12, 0.023, 22.13)
    ('273.8', '9 (0.02–22)')
    >>> estimate(-5944.2, -7017.1, -4871.3)
    '−5900 (−7000 to −4900)'
    >>> estimate(0.86761, 0.8675, 0.8677, percent=True), estimate(0.3, 0.29, 0.31, percent=True)
    ('86.8', '30 (29–31)')
    """
    value, low, high = (x * (100.0 if percent else scale) for x in (value, low, high))
    if math.isnan(value):
        return MISSING
    if value == low == high == 0:
        return "0"
    is_open = math.isnan(low) or math.isnan(high)
    places = max(2 - _magnitude(value), 0) if is_open else decimals(value, low, high)
    places = min(places, 1) if percent else places
    if is_open:
        return f"{_fixed(value, places, sign)} ({MISSING})"
    shown, *ends = (
        _fixed(v, -_magnitude(v) if v and not is_zero and round(v, places) == 0 else places, sign)
        for v, is_zero in ((value, low <= 0 <= high), (low, False), (high, False))
    )
    between = "–" if low >= 0 and not sign else " to "
    return shown if ends[0] == ends[1] else f"{shown} ({between.join(ends)})"


def between(low: float, high: float, least: int = -9) -> tuple[str, str]:
    """Two ends that differ, to the decimal place of the first digit of half their distance.

    least: decimal places at least.

    >>> between(101.34, 118.71), between(0.4971, 0.5213), between(1234.0, 1890.0)
    (('101', '119'), ('0.50', '0.52'), ('1230', '1890'))
    >>> between(101.34, 118.71, least=1)
    ('101.3', '118.7')
    """
    places = max(decimals(high, low, high), least)
    return _fixed(low, places, False), _fixed(high, places, False)


def decimals(value: float, low: float, high: float) -> int:
    """Decimal places that show an interval, with at most four digits of its largest number.

    Negative ones are zeros before the point.

    >>> decimals(12.3456, 12.1, 12.6), decimals(273.8, 273.8, 273.8 + 1e-12)
    (1, 1)
    >>> decimals(-5944.2, -7017.1, -4871.3)
    -2
    """
    most = max(3 - _magnitude(max(map(abs, (value, low, high)))), 0)
    if high <= low:
        return most
    first = math.ceil(-math.log10((high - low) / 2))
    return min(first, most) if first >= 0 else min(first + 1, 0)


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _fixed(value: float, places: int, sign: bool) -> str:
    text = f"{round(value, places):{'+' if sign else ''}.{max(places, 0)}f}"
    return (text.lstrip("+-") if float(text) == 0 else text).replace("-", "−")
