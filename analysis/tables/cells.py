"""Cells of tables that know the number behind their text, to be sorted by and written to a file."""

from __future__ import annotations

import math

from simstrag.analysis.text.number_format import estimate, number, percent
from simstrag.experiments.paired_statistics import Estimate

__all__ = ["Cell", "estimated", "numbered", "shared"]


class Cell(str):
    """Text with the number that it shows, unrounded and in the unit of its column.

    value: NaN for a dash.  ends: of its interval, low and high, None where it has none.

    >>> Cell("12.3", 12.3456), Cell("12.3", 12.3456).value
    ('12.3', 12.3456)
    """

    value: float
    ends: tuple[float, float] | None

    def __new__(
        cls, text: str, value: float | None, ends: tuple[float, float] | None = None
    ) -> Cell:
        """None stands for no number."""
        cell = super().__new__(cls, text)
        cell.value = math.nan if value is None else float(value)
        cell.ends = ends
        return cell


def numbered(value: float | int | None, digits: int = 3) -> Cell:
    """A number as `formats.number` shows it.

    >>> numbered(1234.56), numbered(1234.56).value
    ('1235', 1234.56)
    """
    return Cell(number(value, digits), value)


def shared(value: float | None) -> Cell:
    """A share in percent, as `formats.percent` shows it.

    >>> shared(0.12345), shared(0.12345).value
    ('12.3', 12.345)
    """
    return Cell(percent(value), None if value is None else 100 * value)


def estimated(e: Estimate, scale: float = 1.0, sign: bool = False) -> Cell:
    """An estimate with its interval, as `formats.estimate` shows it.

    >>> estimated(Estimate(0.5, 0.25, 0.75), scale=100).ends
    (25.0, 75.0)
    """
    return Cell(
        estimate(*e, scale=scale, sign=sign), scale * e.value, (scale * e.low, scale * e.high)
    )
