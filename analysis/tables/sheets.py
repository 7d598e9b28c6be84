"""The numbers of a report as sheets that its page can save as CSV files, unrounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simstrag.analysis.tables.cells import Cell
from simstrag.analysis.tables.comparison_tables import Table
from simstrag.runs.run import plain

__all__ = ["Sheet", "Value", "data_of", "sheet_of"]

Value = str | float | int | None
"""What a field of a CSV file may hold; None is empty."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a CSV file will hold. name: of the file, without its ending."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


def sheet_of(name: str, table: Table) -> Sheet:
    """A table with its numbers unrounded; an estimate takes three columns, its ends the last two.

    >>> from simstrag.analysis.tables.cells import Cell
    >>> table = Table(("policy", "makespan (s)"), (("bsp", Cell("1.2", 1.234, (1.2, 1.3))),))
    >>> sheet_of("times", table).columns
    ('policy', 'makespan (s)', 'makespan (s), low', 'makespan (s), high')
    """
    rows = [row for row in (*table.rows, table.control) if row]
    columns, fields = [], []
    for k, header in enumerate(table.headers):
        cells = [row[k] for row in rows]
        columns.append(header or "name")
        fields.append([_value(cell, numeric=k >= table.words) for cell in cells])
        if any(isinstance(cell, Cell) and cell.ends for cell in cells):
            columns += [f"{header}, low", f"{header}, high"]
            fields += [[_end(cell, side) for cell in cells] for side in (0, 1)]
    return Sheet(name, tuple(columns), tuple(zip(*fields, strict=True)))


def data_of(sheets: Iterable[Sheet]) -> Mapping[str, Any]:
    """Sheets by name in the types of JSON; what is no number is None.

    >>> data_of([Sheet("times", ("policy", "s"), (("bsp", math.nan),))])
    {'times': {'columns': ['policy', 's'], 'rows': [['bsp', None]]}}
    """
    return {
        sheet.name: plain({"columns": sheet.columns, "rows": _rows(sheet.rows)}) for sheet in sheets
    }


def _rows(rows: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """Infinity is a word, since JSON has no number for it."""
    infinite = {math.inf: "inf", -math.inf: "-inf"}
    return [
        [infinite.get(value, value) if isinstance(value, float) else value for value in row]
        for row in rows
    ]


def _value(cell: str, numeric: bool) -> Value:
    if isinstance(cell, Cell):
        return cell.value
    return None if numeric and not cell else str(cell)


def _end(cell: str, side: int) -> Value:
    return cell.ends[side] if isinstance(cell, Cell) and cell.ends else None
