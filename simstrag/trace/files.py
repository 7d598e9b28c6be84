"""Files of traces: CSV and parquet, as whole columns where they are plain, else row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.errors import InputError
from simstrag.trace.rows import COLUMNS, KIND_NAMES, RESOURCES, Columns, codes, right

__all__ = ["FORMATS", "columns", "rows"]

FORMATS = f"a trace is CSV, or parquet in a file named *.parquet, with columns {', '.join(COLUMNS)}"
SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""What spreadsheets write instead of commas."""
SMALL = 1 << 18
"""Bytes of a CSV file that are read row by row sooner than a reader of columns is loaded."""


def rows(data: bytes, path: Path) -> Iterator[tuple[int, Sequence[Any]]]:
    """The rows of a file with the numbers that messages give them.

    Raises `InputError` where it is neither CSV nor parquet, or lacks a column.
    """
    return _parquet_rows(data, path) if path.suffix == ".parquet" else _csv_rows(data, path)


def columns(data: bytes, path: Path) -> Columns | None:
    """The same as columns, where all of it is plain and right; None where it must be looked at."""
    return _parquet_columns(data, path) if path.suffix == ".parquet" else _csv_columns(data, path)


def _csv_columns(data: bytes, path: Path) -> Columns | None:
    """One row per line, nothing in quotes: then a reader of columns sees what `csv` sees."""
    lines = data.rstrip(b"\r\n").count(b"\n")
    odd = b'"' in data or b"\0" in data or data.count(b"\r") != data.count(b"\r\n")
    if len(data) < SMALL or not lines or odd or not _is_text(data):
        return None
    import pyarrow
    from pyarrow import csv as arrow

    end = data.index(b"\n")
    header = next(csv.reader([data[:end].decode("utf-8-sig")], skipinitialspace=True), [])
    places = [str(place) for place in _places([name.strip() for name in header], path)]
    words = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    types = (pyarrow.float64(), pyarrow.float64(), words, words, pyarrow.float64())
    try:
        table = arrow.read_csv(
            pyarrow.BufferReader(memoryview(data)[end + 1 :]),
            arrow.ReadOptions(column_names=[str(k) for k in range(len(header))]),
            convert_options=arrow.ConvertOptions(
                include_columns=places, null_values=[],
                column_types=dict(zip(places, types, strict=True)),
            ),
        )  # fmt: skip
    except pyarrow.ArrowException:
        return None
    if len(table) != lines:  # some are empty
        return None
    return _right([table.column(place) for place in places], first_line=2)


def _is_text(data: bytes) -> bool:
    try:
        return data.isascii() or bool(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return False


def _parquet_columns(data: bytes, path: Path) -> Columns | None:
    import pyarrow

    table = _parquet_table(data, path)
    found = [table.column(place) for place in _places(table.column_names, path)]
    of_names = (pyarrow.types.is_string, pyarrow.types.is_large_string)
    for column, name in zip(found, COLUMNS, strict=True):
        numeric = pyarrow.types.is_floating(column.type) or pyarrow.types.is_integer(column.type)
        named = any(is_kind(column.type) for is_kind in of_names)
        if column.null_count or not (named if name in ("resource", "kind") else numeric):
            return None
    return _right([c.dictionary_encode() if k in (2, 3) else c for k, c in enumerate(found)], 1)


def _right(found: list[Any], first_line: int) -> Columns | None:
    """Columns of Arrow, names as dictionaries, as those of a trace."""
    time, node, resource, kind, value = found
    try:
        return right(
            time.to_numpy().astype(np.float64), node.to_numpy().astype(np.float64),
            _numbered(resource, RESOURCES), _numbered(kind, KIND_NAMES),
            value.to_numpy().astype(np.float64), np.arange(first_line, first_line + len(time)),
        )  # fmt: skip
    except KeyError:
        return None


def _numbered(column: Any, known: Sequence[str]) -> Any:
    """Names by their number. Raises `KeyError` for one that is not known."""
    of_chunks = [
        codes((name.strip() for name in chunk.dictionary.to_pylist()), known)[
            chunk.indices.to_numpy()
        ]
        for chunk in column.chunks
    ]
    return np.concatenate([np.zeros(0, np.int8), *of_chunks])


def _csv_rows(data: bytes, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of `COLUMNS` with the number of the line they end on; blank lines are left out."""
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            places = _places(header, path)
            for fields in reader:
                if any(fields):
                    if len(fields) != len(header):
                        raise InputError(
                            f"{path}, row {reader.line_num}: {len(fields)} fields, "
                            f"but the header names {len(header)} columns"
                        )
                    yield reader.line_num, [fields[k] for k in places]
        except csv.Error as error:
            raise InputError(
                f"{path}, row {reader.line_num}: not CSV: {error}; {FORMATS}"
            ) from None


def _parquet_rows(data: bytes, path: Path) -> Iterator[tuple[int, tuple[Any, ...]]]:
    table = _parquet_table(data, path)
    places = _places(table.column_names, path)
    columns = [table.column(k).to_pylist() for k in places]
    yield from enumerate(zip(*columns, strict=True), start=1)


def _parquet_table(data: bytes, path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(pyarrow.BufferReader(data))
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read as parquet: {reason}") from None


def _places(header: Sequence[str], path: Path) -> list[int]:
    """Where each of `COLUMNS` stands."""
    found = ", ".join(header)
    if not found:
        raise InputError(f"{path}: the file is empty; {FORMATS}")
    for mark, what in SEPARATORS.items():
        if len(header) == 1 and mark in found:
            raise InputError(
                f"{path}: its columns are separated by {what}; save it as CSV with commas, and "
                "with decimal points"
            )
    if not found.isprintable():
        raise InputError(f"{path}: not a text file in UTF-8; {FORMATS}")
    for name in COLUMNS:
        if header.count(name) != 1:
            problem = "no column" if name not in header else "more than one column"
            short = found if len(found) <= 100 else found[:97] + "..."
            raise InputError(
                f"{path}: {problem} '{name}'; a trace has {', '.join(COLUMNS)}, this file {short}"
            )
    return [list(header).index(name) for name in COLUMNS]
