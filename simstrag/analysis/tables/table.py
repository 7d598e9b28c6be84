"""One table: the terminal, the page, the notebook and the saved CSV file show the same rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simstrag.analysis.text.number_format import MISSING, estimate, number, percent
from simstrag.experiments.paired_statistics import Estimate
from simstrag.runs.run import plain

MOST = 10_000
"""Most rows of a saved table; a limit to the size of a page."""

Value = str | float | int | None
"""A field of a CSV file; None is an empty field."""


class Number(str):
    """The text of a number in a table, with the unrounded number in the unit of its column.

    value: NaN where the text is a dash.
    ends: low and high end of the interval, None without one.

    >>> Number("12.3", 12.3456), Number("12.3", 12.3456).value
    ('12.3', 12.3456)
    """

    value: float
    ends: tuple[float, float] | None

    def __new__(
        cls, text: str, value: float | None, ends: tuple[float, float] | None = None
    ) -> Number:
        cell = super().__new__(cls, text)
        cell.value = math.nan if value is None else float(value)
        cell.ends = ends
        return cell

    @classmethod
    def of(cls, value: float | int | None, digits: int = 3) -> Number:
        """A number with `digits` significant digits.

        >>> Number.of(1234.56), Number.of(1234.56).value
        ('1235', 1234.56)
        """
        return cls(number(value, digits), value)

    @classmethod
    def percent(cls, value: float | None) -> Number:
        """A share in percent.

        >>> Number.percent(0.12345), Number.percent(0.12345).value
        ('12.3', 12.345)
        """
        return cls(percent(value), None if value is None else 100 * value)

    @classmethod
    def estimate(cls, e: Estimate, percent: bool = False, sign: bool = False) -> Number:
        """An estimate with its interval.

        >>> Number.estimate(Estimate(0.5, 0.25, 0.75), percent=True).ends
        (25.0, 75.0)
        """
        text, scale = estimate(*e, percent=percent, sign=sign), 100.0 if percent else 1.0
        return cls(text, scale * e.value, (scale * e.low, scale * e.high))


@dataclass(frozen=True, slots=True)
class Table:
    """Headers with units, rows of cells, and notes.

    rows: text, `Number`s, or bare numbers where only a CSV file shows the table.
    words: number of leading columns that hold words; the others hold numbers.
    controls: last rows, which are of no policy that was compared.
    notes: sentences below the table.
    wraps: the column that wraps in a narrow terminal.
    least: columns that a narrow terminal leaves out, the first of them first.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    words: int = 1
    controls: tuple[tuple[Any, ...], ...] = ()
    notes: tuple[str, ...] = ()
    title: str = ""
    wraps: int = 0
    least: tuple[str, ...] = ()

    def trimmed(self) -> Table:
        """The table without its empty columns.

        >>> Table(("batch", "lag 1"), (("8", ""),), wraps=1, least=("lag 1",)).trimmed().headers
        ('batch',)
        """
        columns = range(len(self.headers))
        kept = [k for k in columns if any(row[k] not in ("", MISSING) for row in self.rows)]
        headers = tuple(self.headers[k] for k in kept)
        return replace(
            self, headers=headers, rows=tuple(tuple(row[k] for k in kept) for row in self.rows),
            wraps=kept.index(self.wraps) if self.wraps in kept else 0,
            least=tuple(name for name in self.least if name in headers),
        )  # fmt: skip

    def fields(self) -> list[tuple[str, list[Value]]]:
        """Unrounded columns with their headers; an estimate has two more, the ends of its interval.

        >>> table = Table(("policy", "time (s)"), (("bsp", Number("1.2", 1.234, (1.2, 1.3))),))
        >>> dict(table.fields())
        {'policy': ['bsp'], 'time (s)': [1.234], 'time (s), low': [1.2], 'time (s), high': [1.3]}
        """
        rows = (*self.rows, *self.controls)
        found: list[tuple[str, list[Value]]] = []
        for k, header in enumerate(self.headers):
            cells = [row[k] for row in rows]
            found.append((header or "name", [_value(cell, k >= self.words) for cell in cells]))
            if any(isinstance(cell, Number) and cell.ends for cell in cells):
                ends = [(isinstance(c, Number) and c.ends) or (None, None) for c in cells]
                for word, column in zip(("low", "high"), zip(*ends, strict=True), strict=True):
                    found.append((f"{header}, {word}", list(column)))
        return found


def csv_data(tables: Mapping[str, Table | None], most: int = MOST) -> dict[str, Any]:
    """The fields of tables as JSON, by the name of the CSV file that a page saves.

    A table of more than `most` rows is cut to its first ones, and its name says so.  Infinity
    becomes a word, because JSON has no number for it.

    >>> csv_data({"times": Table(("policy", "s"), (("bsp", math.nan),)), "none": None})
    {'times': {'columns': ['policy', 's'], 'rows': [['bsp', None]]}}
    >>> list(csv_data({"ranks": Table(("rank",), ((0,), (1,), (2,)))}, most=2))
    ['ranks-first-2-rows']
    """
    found = {}
    for name, table in tables.items():
        if table is None:
            continue
        cut = len(table.rows) > most
        kept = replace(table, rows=table.rows[:most]) if cut else table
        headers, columns = zip(*kept.fields(), strict=True)
        rows = [
            [f"{v:g}" if isinstance(v, float) and math.isinf(v) else v for v in row]
            for row in zip(*columns, strict=True)
        ]
        label = f"{name}-first-{most}-rows" if cut else name
        found[label] = plain({"columns": headers, "rows": rows})
    return found


def _value(cell: Any, numeric: bool) -> Value:
    if isinstance(cell, Number):
        return cell.value
    if isinstance(cell, str):
        return None if numeric and not cell else str(cell)
    return cell  # type: ignore[no-any-return]
