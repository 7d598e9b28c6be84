"""A CSV file read as text; errors name file, row and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simstrag.documents.file_io import require_path
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

HEADER_SHOWN = 100
"""Letters of a header in a message."""
EMPTY = frozenset({"", "nan", "null", "none", "n/a", "-"})
"""Words of exporters for a cell that was not measured."""


@dataclass(frozen=True, slots=True)
class CsvTable:
    """The columns of a CSV file as text.

    source: the file, for messages.
    lines: number of the line of each row.

    >>> table = CsvTable.of("node,load\\na,1\\n\\nb,2\\n", "load.csv")
    >>> table.columns["node"], table.lines, table.numbers("load")
    (['a', 'b'], [2, 4], array([1., 2.]))
    """

    source: str
    lines: list[int]
    columns: dict[str, list[str]]

    @classmethod
    def read(cls, path: str | Path, needed: Sequence[str] = ()) -> CsvTable:
        """From a file. Raises `InputError` if it is no CSV or lacks a needed column."""
        try:
            text = require_path(path).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a text file in UTF-8; a CSV file is needed") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        table = cls.of(text, str(path))
        for name in needed:
            table.column(name)
        return table

    @classmethod
    def of(cls, text: str, source: str) -> CsvTable:
        """From its text; blank lines are left out."""
        lines: list[int] = []
        rows: list[list[str]] = []
        reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if not any(header):
                raise InputError(f"{source}: the file is empty; a CSV file with a header is needed")
            if len(set(header)) < len(header):
                twice = next(name for name in header if header.count(name) > 1)
                raise InputError(f"{source}: more than one column '{twice}'; rename one of them")
            for row in filter(any, reader):
                if len(row) != len(header):
                    raise InputError(
                        f"{source}, row {reader.line_num}: {len(row)} fields, but the header "
                        f"names {len(header)} columns; is it CSV with commas?"
                    )
                rows.append(row)
                lines.append(reader.line_num)
        except csv.Error as error:
            raise InputError(f"{source}, row {reader.line_num}: not CSV: {error}") from None
        if not rows:
            raise InputError(f"{source}: no rows below the header")
        columns = [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
        return cls(source, lines, dict(zip(header, columns, strict=True)))

    def column(self, name: str) -> list[str]:
        """The cells of a column. Raises `InputError` for an unknown name."""
        if name not in self.columns:
            known = ", ".join(self.columns)
            known = known if len(known) <= HEADER_SHOWN else known[: HEADER_SHOWN - 3] + "..."
            raise InputError(
                f"{self.source}: no column '{name}'{nearest(name, self.columns)}; it has {known}"
            )
        return self.columns[name]

    def numbers(self, name: str, gaps: bool = False) -> npt.NDArray[np.float64]:
        """The cells of a column as finite numbers; with `gaps`, NaN for a cell not measured.

        Raises `InputError`, with the row, for any other cell.
        """
        numbers: list[float] = []
        for k, cell in enumerate(self.column(name)):
            if gaps and cell.lower() in EMPTY:
                numbers.append(math.nan)
                continue
            try:
                numbers.append(float(cell))
            except ValueError:
                numbers.append(math.nan)
            if not math.isfinite(numbers[-1]):
                raise self.mistake(k, name, "is not a number")
        return np.array(numbers)

    def mistake(self, k: int, name: str, why: str) -> InputError:
        """An error about the k-th cell of a column."""
        return InputError(
            f"{self.source}, row {self.lines[k]}: {name} '{self.columns[name][k]}' {why}"
        )
