"""Files of traces, CSV and parquet: read as whole columns if all is valid, else row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.documents.csv_rows import read_rows
from simstrag.errors import InputError
from simstrag.trace.row_validation import (
    COLUMNS,
    HOST,
    KIND_NAMES,
    RESOURCES,
    Columns,
    validate,
)

FORMATS = f"a trace is CSV, or parquet in a file named *.parquet, with columns {', '.join(COLUMNS)}"
SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""Separators that spreadsheets write instead of commas."""
SMALL = 1 << 18
"""Bytes up to which reading a CSV file row by row is faster than loading Arrow."""


def read(data: bytes, path: Path) -> tuple[Columns | None, Iterator[tuple[int, Sequence[Any]]]]:
    """The rows of a file twice: as columns, and one by one, each with its number in messages.

    The columns are None for a file that has to be read row by row.
    Raises `InputError` for a file that is neither CSV nor parquet, or lacks a column.
    """
    if path.suffix == ".parquet":
        table = _parquet(data, path)
        columns = [table.column(k) for k in _places(table.column_names, path)]
        return _from_arrow(columns, first_line=1), _parquet_rows(columns)
    return _csv_columns(data, path) if len(data) >= SMALL else None, _csv_rows(data, path)


def read_names(data: bytes, path: Path) -> dict[int, str]:
    """The name of each node in the column `host`, of a file that `read` has accepted.

    Raises `InputError` for a node with two names.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet

        if HOST not in pyarrow.parquet.read_schema(pyarrow.BufferReader(data)).names:
            return {}
        table = _parquet(data, path)
        pairs: Iterable[tuple[Any, Any]] = zip(
            *(table.column(name).to_pylist() for name in ("node", HOST)), strict=True
        )
    else:
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
        rows = csv.reader(text, skipinitialspace=True)
        header = [name.strip() for name in next(rows)]
        if HOST not in header:
            return {}
        node, host = header.index("node"), header.index(HOST)
        pairs = ((row[node], row[host].strip()) for row in rows if any(row))
    return match_names(pairs, str(path))


def read_label(data: bytes, path: Path, name: str) -> str:
    """The first cell of a further column; empty without it."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        if name not in pyarrow.parquet.read_schema(pyarrow.BufferReader(data)).names:
            return ""
        labels = pyarrow.parquet.read_table(pyarrow.BufferReader(data), columns=[name])[name]
        return str(labels[0].as_py() or "") if len(labels) else ""
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    rows = csv.reader(text, skipinitialspace=True)
    cells = dict(zip([column.strip() for column in next(rows, [])], next(rows, []), strict=False))
    return cells.get(name, "").strip()


def match_names(pairs: Iterable[tuple[Any, Any]], source: str) -> dict[int, str]:
    """The name of each node of (node, name) pairs; an empty cell is no name.

    Raises `InputError` for a node with two names.
    """
    names: dict[int, str] = {}
    for number, name in dict.fromkeys(pairs):
        key = int(float(number))
        if name and isinstance(name, str) and names.setdefault(key, name) != name:
            raise InputError(
                f"{source}: node {key} is called '{names[key]}' and '{name}'; give it one {HOST}"
            )
    return dict(sorted(names.items()))


def _csv_columns(data: bytes, path: Path) -> Columns | None:
    """Read by Arrow, which sees what `csv` sees if lines are rows and nothing is quoted.

    Raises `UnicodeDecodeError`.
    """
    lines = data.rstrip(b"\r\n").count(b"\n")
    if not lines or b'"' in data or b"\0" in data or data.count(b"\r") != data.count(b"\r\n"):
        return None
    if not data.isascii():
        data.decode("utf-8")  # Arrow does not look at columns that are left out
    import pyarrow
    from pyarrow import csv as arrow

    end = data.index(b"\n")
    header = next(csv.reader([data[:end].decode("utf-8-sig")], skipinitialspace=True), [])
    places = [str(place) for place in _places([name.strip() for name in header], path)]
    number, name = pyarrow.float64(), pyarrow.string()
    types = dict(zip(places, (number, number, name, name, number), strict=True))
    try:
        table = arrow.read_csv(
            pyarrow.BufferReader(memoryview(data)[end + 1 :]),
            arrow.ReadOptions(column_names=[str(k) for k in range(len(header))]),
            convert_options=arrow.ConvertOptions(
                include_columns=places, null_values=[], column_types=types
            ),
        )
    except pyarrow.ArrowException:
        return None
    # With fewer rows than lines some lines are empty.
    return _from_arrow(table.columns, first_line=2) if len(table) == lines else None


def _from_arrow(columns: Sequence[Any], first_line: int) -> Columns | None:
    """Columns of Arrow; None if a type does not fit or a row is not valid."""
    import pyarrow.types as kinds
    from pyarrow import array, compute

    time, node, resource, kind, value = columns
    is_typed = all(
        kinds.is_floating(c.type) or kinds.is_integer(c.type) for c in (time, node, value)
    )
    is_typed &= all(
        kinds.is_string(c.type) or kinds.is_large_string(c.type) for c in (resource, kind)
    )
    if not is_typed or any(column.null_count for column in columns):
        return None
    codes = []
    for names, known in ((resource, RESOURCES), (kind, KIND_NAMES)):
        code = compute.index_in(compute.utf8_trim_whitespace(names), array(known, names.type))
        if code.null_count:
            return None
        codes.append(code.to_numpy().astype(np.int8))
    seconds, nodes, values = (c.to_numpy().astype(np.float64) for c in (time, node, value))
    lines = np.arange(first_line, first_line + len(seconds))
    return validate(seconds, nodes, codes[0], codes[1], values, lines)


def _parquet_rows(columns: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    yield from enumerate(zip(*(column.to_pylist() for column in columns), strict=True), start=1)


def _csv_rows(data: bytes, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of `COLUMNS` with the number of their first line; blank lines are left out."""
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="") as file:
        rows = read_rows(file, str(path))
        places = _places(next(rows)[1], path)
        for line, fields in rows:
            yield line, [fields[k] for k in places]


def _parquet(data: bytes, path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(pyarrow.BufferReader(data))
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read as parquet: {reason}") from None


def _places(header: Sequence[str], path: Path) -> list[int]:
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
            is_log = len({*COLUMNS} & {*header}) < 3
            hint = f"; `simstrag diagnose {path}` reads logs" if is_log else ""
            raise InputError(
                f"{path}: {problem} '{name}'; a trace has {', '.join(COLUMNS)}, this file {short}"
                f"{hint}"
            )
    return [list(header).index(name) for name in COLUMNS]
