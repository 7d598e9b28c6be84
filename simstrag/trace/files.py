"""Files of traces, CSV and parquet: read as whole columns if all is valid, else row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.errors import InputError
from simstrag.trace.row_validation import COLUMNS, KIND_NAMES, RESOURCES, Columns, encode, validate

FORMATS = f"a trace is CSV, or parquet in a file named *.parquet, with columns {', '.join(COLUMNS)}"
SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""What spreadsheets write instead of commas."""
SMALL = 1 << 18
"""Bytes up to which reading a CSV file row by row is faster than loading Arrow."""


def read_rows(data: bytes, path: Path) -> Iterator[tuple[int, Sequence[Any]]]:
    """The rows of a file, each with its number in messages.

    Raises `InputError` for a file that is neither CSV nor parquet, or lacks a column.
    """
    if path.suffix == ".parquet":
        table = _parquet(data, path)
        columns = [table.column(k).to_pylist() for k in _places(table.column_names, path)]
        return enumerate(zip(*columns, strict=True), start=1)
    return _csv_rows(data, path)


def read_columns(data: bytes, path: Path) -> Columns | None:
    """The same rows as columns; None for a file that has to be read row by row."""
    if path.suffix == ".parquet":
        return _parquet_columns(data, path)
    return _csv_columns(data, path) if len(data) >= SMALL else None


def _csv_columns(data: bytes, path: Path) -> Columns | None:
    """Read by Arrow, which sees what `csv` sees if lines are rows and nothing is quoted."""
    lines = data.rstrip(b"\r\n").count(b"\n")
    is_odd = b'"' in data or b"\0" in data or data.count(b"\r") != data.count(b"\r\n")
    if not lines or is_odd or not _is_text(data):
        return None
    import pyarrow
    from pyarrow import csv as arrow

    end = data.index(b"\n")
    header = next(csv.reader([data[:end].decode("utf-8-sig")], skipinitialspace=True), [])
    places = [str(place) for place in _places([name.strip() for name in header], path)]
    names = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    types = (pyarrow.float64(), pyarrow.float64(), names, names, pyarrow.float64())
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
    return _from_arrow([table.column(place) for place in places], first_line=2)


def _is_text(data: bytes) -> bool:
    try:
        return data.isascii() or bool(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return False


def _parquet_columns(data: bytes, path: Path) -> Columns | None:
    import pyarrow.types as kinds

    table = _parquet(data, path)
    columns = [table.column(place) for place in _places(table.column_names, path)]
    for k, (column, name) in enumerate(zip(columns, COLUMNS, strict=True)):
        of_names = name in ("resource", "kind")
        allowed = (
            (kinds.is_string, kinds.is_large_string)
            if of_names
            else (kinds.is_floating, kinds.is_integer)
        )
        if column.null_count or not any(is_kind(column.type) for is_kind in allowed):
            return None
        columns[k] = column.dictionary_encode() if of_names else column
    return _from_arrow(columns, first_line=1)


def _from_arrow(columns: list[Any], first_line: int) -> Columns | None:
    """Columns of Arrow, those of names as dictionaries; None for rows that are not valid."""
    time, node, resource, kind, value = columns
    try:
        codes = _encode(resource, RESOURCES), _encode(kind, KIND_NAMES)
    except KeyError:
        return None
    numbers = (column.to_numpy().astype(np.float64) for column in (time, node, value))
    seconds, nodes, values = numbers
    lines = np.arange(first_line, first_line + len(time))
    return validate(seconds, nodes, *codes, values, lines)


def _encode(column: Any, known: Sequence[str]) -> Any:
    """Names as their numbers. Raises `KeyError` for an unknown one."""
    of_chunks = [
        encode((name.strip() for name in chunk.dictionary.to_pylist()), known)[
            chunk.indices.to_numpy()
        ]
        for chunk in column.chunks
    ]
    return np.concatenate([np.zeros(0, np.int8), *of_chunks])


def _csv_rows(data: bytes, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of `COLUMNS` with the number of their last line; blank lines are left out."""
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            places = _places(header, path)
            for fields in filter(any, reader):
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


def _parquet(data: bytes, path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(pyarrow.BufferReader(data))
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read as parquet: {reason}") from None


def _places(header: Sequence[str], path: Path) -> list[int]:
    """The places of `COLUMNS` in a header."""
    names = ", ".join(header)
    if not names:
        raise InputError(f"{path}: the file is empty; {FORMATS}")
    for mark, what in SEPARATORS.items():
        if len(header) == 1 and mark in names:
            raise InputError(
                f"{path}: its columns are separated by {what}; save it as CSV with commas, and "
                "with decimal points"
            )
    if not names.isprintable():
        raise InputError(f"{path}: not a text file in UTF-8; {FORMATS}")
    for name in COLUMNS:
        if header.count(name) != 1:
            problem = "no column" if name not in header else "more than one column"
            short = names if len(names) <= 100 else names[:97] + "..."
            raise InputError(
                f"{path}: {problem} '{name}'; a trace has {', '.join(COLUMNS)}, this file {short}"
            )
    return [list(header).index(name) for name in COLUMNS]
