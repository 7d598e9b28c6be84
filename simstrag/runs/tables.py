"""Tables of a run: kept in memory, or written to parquet block by block and read when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError
from simstrag.runs.columns import Column, Lists, Numbers, Table, Words, chosen, joined

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["InMemory", "OnDisk", "Storage", "Written", "read_table", "write_table"]

ROWS, VALUES = 1 << 17, 1 << 18
"""How many rows, or values of their lists, are written at once."""


class Storage(Protocol):
    """Where the tables of a run go while it goes on."""

    def add(self, name: str, block: Table) -> None:
        """Take rows of a table, below those before; the block is not used by anybody else."""

    def table(self, name: str) -> Mapping[str, Any] | None:
        """All rows at the end, None of a table that got no block."""

    @property
    def excerpt(self) -> dict[str, Any] | None:
        """What it keeps of steps and updates, as `Run.excerpt` has it; None where that is all."""


class InMemory:
    """Keeps every row: 8 bytes a number."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[Table]] = {}

    def add(self, name: str, block: Table) -> None:
        """Keep the rows."""
        self.blocks.setdefault(name, []).append(block)

    def table(self, name: str) -> Mapping[str, Any] | None:
        """All rows that were kept; no more can be added."""
        return Gathered(self.blocks.pop(name)) if name in self.blocks else None

    @property
    def excerpt(self) -> dict[str, Any] | None:
        """It keeps all."""
        return None


class OnDisk:
    """Writes `NAME.parquet` files into a folder, in rows enough to be worth it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, list[Table]] = {}
        self._rows: dict[str, int] = {}
        self._writers: dict[str, Any] = {}

    def add(self, name: str, block: Table) -> None:
        """Write the rows, or wait for more of them."""
        self._waiting.setdefault(name, []).append(block)
        self._rows[name] = self._rows.get(name, 0) + _weight(block)
        if self._rows[name] >= ROWS:
            self._write(name)

    def table(self, name: str) -> Mapping[str, Any] | None:
        """What was written, to be read when asked for; nothing can be added any more."""
        if name not in self._waiting:
            return None
        self._write(name)
        self._writers.pop(name).close()
        return Written(_path(self._folder, name))

    @property
    def excerpt(self) -> dict[str, Any] | None:
        """It writes all."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the files, whole or not."""
        for writer in self._writers.values():
            writer.close()

    def _write(self, name: str) -> None:
        block = joined(self._waiting[name]) if self._waiting[name] else None
        self._waiting[name], self._rows[name] = [], 0
        if block is not None:
            self._writers[name] = _append(self._writers.get(name), _path(self._folder, name), block)


class Gathered(Mapping[str, Any]):
    """A table in blocks, of which a column is joined when it is asked for."""

    def __init__(self, blocks: list[Table]) -> None:
        self._names, self._blocks = tuple(blocks[0]), blocks
        self._joined: Table = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._joined:
            first, *others = (block.pop(name) for block in self._blocks)
            self._joined[name] = first.joined(others)
        return self._joined[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Written(Mapping[str, Any]):
    """A table in a parquet file; a column is read when it is asked for, and then kept.

    Raises `InputError` where the file is not there any more.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._path = path
        self._names: tuple[str, ...] = tuple(pyarrow.parquet.read_schema(path).names)
        self._read: Table = {}

    def __getitem__(self, name: str) -> Column:
        import pyarrow.parquet

        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            try:
                table = pyarrow.parquet.read_table(self._path, columns=[name])
            except OSError as error:
                reason = error.strerror or str(error).splitlines()[0]
                raise InputError(f"{self._path}: cannot be read: {reason}") from None
            self._read[name] = _of_arrow(table.column(name))
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_table(folder: Path, name: str) -> Written | None:
    """A table of a run directory, None where it has none."""
    path = _path(folder, name)
    return Written(path) if path.exists() else None


def write_table(folder: Path, name: str, table: Mapping[str, Any]) -> None:
    """A table as a file of a run directory."""
    _append(None, _path(folder, name), {key: _column(table[key]) for key in table}).close()


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _weight(block: Table) -> int:
    """Rows of a block, or more where it has long lists."""
    values = sum(int(c.sizes.sum()) for c in block.values() if isinstance(c, Lists))
    return max(_rows(block), values * ROWS // VALUES)


def _rows(block: Table) -> int:
    return len(next(iter(block.values())))


def _append(writer: Any, path: Path, block: Table) -> Any:
    """Write rows below those before, in parts of `VALUES` at most; gives the writer."""
    import pyarrow as pa
    import pyarrow.parquet

    sizes = sum(c.sizes for c in block.values() if isinstance(c, Lists))
    share = np.cumsum(sizes + np.full(_rows(block), VALUES // ROWS)) // VALUES
    ends = [*np.flatnonzero(np.diff(share)).tolist(), _rows(block) - 1]
    start = 0
    for end in ends:
        part = block if len(ends) == 1 else chosen(block, slice(start, end + 1))
        arrow = pa.table({name: _to_arrow(column) for name, column in part.items()})
        writer = writer or pyarrow.parquet.ParquetWriter(path, arrow.schema, **_packing(part))
        writer.write_table(arrow)
        start = end + 1
    return writer


def _packing(block: Table) -> dict[str, Any]:
    """How columns become small: whole numbers by their differences, words by a dictionary."""
    whole = [f"{n}.list.element" for n, c in block.items() if _whole(c) and isinstance(c, Lists)]
    whole += [n for n, c in block.items() if _whole(c) and isinstance(c, Numbers)]
    return {
        "compression": "zstd",
        "use_dictionary": [n for n, c in block.items() if isinstance(c, Words)],
        "column_encoding": dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
    }


def _whole(column: Column) -> bool:
    values = getattr(column, "flat", getattr(column, "rows", None))
    return values is not None and values.dtype.kind == "i"


# -- arrow: of buffers, since what makes it of objects loads pandas -----------------------------


def _to_arrow(column: Column) -> pa.Array:
    import pyarrow as pa

    if isinstance(column, Numbers):
        return _numbers(column.rows, column.missing if column.gaps else None)
    if isinstance(column, Words):
        words = [word.encode() for word in column.words]
        ends = np.cumsum([0, *map(len, words)]).astype(np.int32)
        of_words = pa.py_buffer(ends), pa.py_buffer(b"".join(words))
        strings = pa.StringArray.from_buffers(len(words), *of_words)
        return pa.DictionaryArray.from_arrays(_numbers(column.codes), strings).cast(pa.string())
    assert isinstance(column, Lists)
    values = column.values()
    of = _numbers(values if values.dtype.kind == "f" else values.astype(np.int64))
    ends = np.append(0, np.cumsum(column.sizes)).astype(np.int32)
    buffers = [_present(column.length < 0), pa.py_buffer(ends)]
    return pa.Array.from_buffers(pa.list_(of.type), len(column), buffers, children=[of])


def _numbers(rows: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    import pyarrow as pa

    rows = np.ascontiguousarray(rows)
    gaps = None if missing is None else _present(missing)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(rows.dtype), len(rows), [gaps, pa.py_buffer(rows)]
    )


def _present(missing: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """A bit for each value that there is; none where nothing is missing."""
    import pyarrow as pa

    return pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None


def _of_arrow(values: pa.ChunkedArray) -> Column:
    import pyarrow as pa

    array = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if pa.types.is_null(array.type):
        return Numbers(np.full(len(array), np.nan), gaps=True)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        coded = array.dictionary_encode()
        return Words(coded.indices.to_numpy(), tuple(coded.dictionary.to_pylist()))
    if pa.types.is_list(array.type):
        gone = array.is_null().to_numpy(zero_copy_only=False)
        ends = array.offsets.to_numpy().astype(np.int64)
        flat = array.values.to_numpy(zero_copy_only=False)
        return Lists(ends[:-1], np.where(gone, -1, np.diff(ends)), flat)
    return Numbers(array.to_numpy(zero_copy_only=False), gaps=array.null_count > 0)


def _column(values: Any) -> Column:
    """A column as it is, and a list that somebody put in its place as one."""
    import pyarrow as pa

    return values if isinstance(values, Column) else _of_arrow(pa.chunked_array([pa.array(values)]))
