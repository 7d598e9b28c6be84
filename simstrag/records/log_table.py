"""A log as a table of text, from CSV or JSON; errors name file, row and column."""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.documents.csv_rows import read_rows
from simstrag.documents.file_io import require_path
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

HEADER_SHOWN = 100
"""Letters of a header, and of a cell, in a message."""
EMPTY = frozenset({"", "nan", "null", "none", "n/a", "-", "undefined"})
"""Words of exporters for a cell that was not measured."""
COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+(e[-+]?\d+)?\s*%?", re.IGNORECASE)
"""A number with a decimal comma, and points between thousands if any."""
NO_UNITS: Mapping[str, float] = {}
GZIP = b"\x1f\x8b"
SEPARATORS = ",;\t"


@dataclass(frozen=True, slots=True)
class LogTable:
    """The columns of a log as text.

    source: the file, for messages.
    lines: number of the line of each row, or of its entry in a JSON document.
    unit: what `lines` counts.
    commas: columns whose numbers had decimal commas.

    >>> table = LogTable.of("node,load\\na,1\\n\\nb,2\\n", "load.csv")
    >>> table.columns["node"], table.lines, table.numbers("load")
    (['a', 'b'], [2, 4], array([1., 2.]))
    """

    source: str
    lines: list[int]
    columns: dict[str, list[str]]
    unit: str = "row"
    commas: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: str | Path, needed: Sequence[str] = ()) -> LogTable:
        """From a CSV file. Raises `InputError` if it is none, or lacks a needed column."""
        try:
            text = read_bytes(path).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a text file in UTF-8; a CSV file is needed") from None
        table = cls.of(text, str(path))
        for name in needed:
            table.column(name)
        return table

    @classmethod
    def of(cls, text: str, source: str) -> LogTable:
        """From the text of a CSV file; blank lines are left out.

        Where columns are separated by semicolons or tabs, 12,5 is 12.5.
        """
        first = text.partition("\n")[0]
        separator = max(SEPARATORS, key=first.count)
        whole, mark, last = text.rpartition("\n")
        if mark and (last.count(separator) < first.count(separator) or last.count('"') % 2):
            text = whole  # a last line that was cut off
        file, hint = io.StringIO(text, newline=""), "; is it CSV with commas?"
        rows = read_rows(file, source, separator, hint)
        _, header = next(rows)
        if not any(header):
            raise InputError(f"{source}: the file is empty; a CSV file with a header is needed")
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise InputError(f"{source}: more than one column '{twice}'; rename one of them")
        numbered = [row for row in rows if row[1] != header]  # a restarted job may repeat it
        if not numbered:
            raise InputError(f"{source}: no rows below the header")
        lines, cells = zip(*numbered, strict=True)
        columns = [[cell.strip() for cell in column] for column in zip(*cells, strict=True)]
        table = cls(source, list(lines), dict(zip(header, columns, strict=True)))
        return table if separator == "," else table._with_decimal_points()

    def _with_decimal_points(self) -> LogTable:
        """Decimal commas as points. Raises `InputError` for a column with both."""
        columns, commas = dict(self.columns), set[str]()
        for name, cells in self.columns.items():
            if not any(map(COMMA.fullmatch, cells)):
                continue
            mixed = (k for k, c in enumerate(cells) if re.fullmatch(r"[-+]?\d*\.\d+", c))
            if (k := next(mixed, None)) is not None:
                raise self.mistake(k, name, "has a point, where other rows have a decimal comma")
            columns[name] = [
                c.replace(".", "").replace(",", ".") if COMMA.fullmatch(c) else c for c in cells
            ]
            commas.add(name)
        return replace(self, columns=columns, commas=frozenset(commas))

    @classmethod
    def of_records(
        cls, records: Iterable[tuple[int, Mapping[str, Any]]], source: str, unit: str = "entry"
    ) -> LogTable:
        """From mappings with their numbers; a key that one of them lacks is an empty cell.

        >>> LogTable.of_records([(1, {"a": 1}), (2, {"b": None})], "log.json").columns
        {'a': ['1', ''], 'b': ['', '']}
        """
        pairs = list(records)
        names = dict.fromkeys(name for _, record in pairs for name in record)
        if not names:
            raise InputError(f"{source}: holds no values")
        columns = {
            name: ["" if (cell := record.get(name)) is None else str(cell) for _, record in pairs]
            for name in names
        }
        return cls(source, [number for number, _ in pairs], columns, unit)

    def first(self, rows: int | None) -> LogTable:
        """The first rows of the table; all for None."""
        if rows is None:
            return self
        columns = {name: cells[:rows] for name, cells in self.columns.items()}
        return replace(self, lines=self.lines[:rows], columns=columns)

    def column(self, name: str) -> list[str]:
        """The cells of a column. Raises `InputError` for an unknown name."""
        if name not in self.columns:
            raise InputError(
                f"{self.source}: no column '{name}'{nearest(name, self.columns)}; "
                f"it has {self.header}"
            )
        return self.columns[name]

    @property
    def header(self) -> str:
        """The names of its columns, shortened, for messages."""
        return shorten(", ".join(self.columns))

    def numbers(
        self,
        name: str,
        gaps: bool = False,
        unit: float = 1.0,
        units: Mapping[str, float] = NO_UNITS,
    ) -> Floats:
        """The cells of a column as finite numbers; with `gaps`, NaN for a cell not measured.

        unit: what a bare number is multiplied by.
        units: what a number with one of these words after it is multiplied by instead.

        A percent sign after a number is left out.
        Raises `InputError`, with the row, for any other cell.
        """
        numbers: list[float] = []
        for k, cell in enumerate(self.column(name)):
            if gaps and cell.lower() in EMPTY:
                numbers.append(math.nan)
                continue
            word = cell.lstrip("+-.0123456789eE") if units else ""
            try:
                number = float(cell.removesuffix("%" if word.strip() not in units else word))
                numbers.append(number * units.get(word.strip(), unit))
            except ValueError:
                numbers.append(math.nan)
            if not math.isfinite(numbers[-1]):
                raise self.mistake(k, name, "is not a number")
        return np.array(numbers)

    def mistake(self, k: int, name: str, why: str) -> InputError:
        """An error about the k-th cell of a column."""
        cell = shorten(self.columns[name][k])
        return InputError(f"{self.source}, {self.unit} {self.lines[k]}: {name} '{cell}' {why}")


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file, unpacked if it is gzipped. Raises `InputError`."""
    try:
        raw = require_path(path).read_bytes()
        return gzip.decompress(raw) if raw[:2] == GZIP else raw
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}") from None


def shorten(text: str) -> str:
    """Text of at most `HEADER_SHOWN` letters in one line, for messages."""
    text = " ".join(text.split())
    return text if len(text) <= HEADER_SHOWN else text[: HEADER_SHOWN - 3] + "..."
