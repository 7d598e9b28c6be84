"""CSV files of others, read as text, with messages that name the file, the row and the column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simstrag.documents.paths import expect
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

__all__ = ["Sheet"]

Floats = npt.NDArray[np.float64]
SHOWN = 100
"""Letters of a header in a message."""
EMPTY = frozenset({"", "nan", "null", "none", "n/a", "-"})
"""What exporters write for a cell that was not measured."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The columns of a CSV file as text, and the number of the line of each row.

    >>> sheet = Sheet.of("node,load\\na,1\\n\\nb,2\\n", "load.csv")
    >>> sheet.columns["node"], sheet.lines, sheet.numbers("load")
    (['a', 'b'], [2, 4], array([1., 2.]))
    """

    source: str
    lines: list[int]
    columns: dict[str, list[str]]

    @classmethod
    def read(cls, path: str | Path, needed: Sequence[str] = ()) -> Sheet:
        """A file with at least the columns `needed`.

        Raises `InputError` where it is missing, empty, no CSV, or lacks one of them.
        """
        try:
            text = expect(path).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a text file in UTF-8; a CSV file is needed") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        sheet = cls.of(text, str(path))
        for name in needed:
            sheet.column(name)
        return sheet

    @classmethod
    def of(cls, text: str, source: str) -> Sheet:
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
            for row in reader:
                if not any(row):
                    continue
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
        """The cells of a column. Raises `InputError` where there is none of this name."""
        if name not in self.columns:
            found = ", ".join(self.columns)
            found = found if len(found) <= SHOWN else found[: SHOWN - 3] + "..."
            raise InputError(
                f"{self.source}: no column '{name}'{nearest(name, self.columns)}; it has {found}"
            )
        return self.columns[name]

    def numbers(self, name: str, gaps: bool = False) -> Floats:
        """The cells of a column as finite numbers; with `gaps`, NaN where one is not measured.

        Raises `InputError` that names the row of a cell that is none.
        """
        cells = self.column(name)
        found = np.empty(len(cells))
        for k, cell in enumerate(cells):
            if gaps and cell.lower() in EMPTY:
                found[k] = math.nan
                continue
            try:
                found[k] = float(cell)
            except ValueError:
                found[k] = math.nan
            if not math.isfinite(found[k]):
                raise self.wrong(k, name, "is not a number")
        return found

    def wrong(self, k: int, name: str, why: str) -> InputError:
        """What is wrong with the k-th cell of a column."""
        return InputError(
            f"{self.source}, row {self.lines[k]}: {name} '{self.columns[name][k]}' {why}"
        )
