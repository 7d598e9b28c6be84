"""Tables of a run: arrow columns in memory, or in parquet files that are read when asked for.

A run hands over its rows in record batches.  A `Storage` keeps or writes them, and gives a
`RunTable` at the end.
"""

from __future__ import annotations

import abc
import operator
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from simstrag.arrays import Array, Bools
from simstrag.documents.file_io import write_atomically
from simstrag.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


ROWS, VALUES = 1 << 17, 1 << 18
"""Rows, or values in their lists, that are written at once."""
CHUNK = 4096
"""Values that are converted to Python's at once."""
SHOWN = 6
"""Values in the representation of a column."""
UNITS = {
    **dict.fromkeys(("time", "start", "finish", "wait", "communication"), "s"),
    **dict.fromkeys(("staleness_mean", "staleness_max"), "updates"),
    "progress": "noise-free updates", "weight": "share", "batch": "share",
}  # fmt: skip
"""The unit of each column whose name does not say it."""
MEMBERS, RANK_SET = "members", "members_set"
"""Columns of a batch of updates: ranks; or in their place the number of a rank set, else -1."""
RANK_SETS = "rank_sets"
"""Batches of lists of ranks that many updates have in common; each has the next number from 0."""

RankSets = list[npt.NDArray[np.int32]]


# -- columns ------------------------------------------------------------------------------------


class Column(Sequence[Any]):
    """An arrow array, equal to the list of its values; `numpy.asarray` makes a numpy array of it.

    A slice is a column, too.  unit: of its values; empty where its name says it.

    >>> progress = Column(numbers(np.array([0.5, np.nan]), missing=np.array([False, True])))
    >>> progress == [0.5, None], progress[-1], np.asarray(progress).tolist()
    (True, None, [0.5, nan])
    """

    def __init__(self, array: pa.Array, unit: str = "") -> None:
        self.array, self.unit = array, unit

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers, missing ones among them."""
        return bool(pa.types.is_primitive(self.array.type))

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1:
                return Column(self.arrow(slice(start, stop)), self.unit)
            rows = numbers(np.arange(start, stop, step))
            return Column(self.arrow(slice(None)).take(rows), self.unit)
        row = operator.index(at)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self._values(slice(row, row + 1))[0]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), CHUNK):
            yield from self._values(slice(start, start + CHUNK))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Column, list)):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = f", ... {len(self)} values" if len(self) > SHOWN else ""
        unit = f" {self.unit}" if self.unit else ""
        return f"[{', '.join(map(reprlib.repr, self[:SHOWN]))}{more}]{unit}"

    if not TYPE_CHECKING:  # where an unknown name is an error already

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"a column has no '{name}': index it as a list, take numpy.asarray(column), or "
                "let its table make a DataFrame, as in run.updates.frame()"
            )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.is_numeric:
            values = values_of(self.array)
        elif pa.types.is_dictionary(self.array.type):
            values = np.array(self.array.dictionary.to_pylist(), dtype=np.str_)
            values = values[values_of(self.array.indices)]
        else:
            values = np.empty(len(self), dtype=object)
            values[:] = list(self)
        return np.asarray(np.array(values, dtype=dtype, copy=copy))

    @property
    def sizes(self) -> Array:
        """Values in the list of each row, shape (n,); 0 where it is no list."""
        if not pa.types.is_list(self.array.type):
            return np.zeros(len(self), dtype=np.int64)
        return np.asarray(np.diff(values_of(self.array.offsets)).astype(np.int64))

    def arrow(self, rows: slice) -> pa.Array:
        """Some of its rows as an arrow array."""
        return self.array[rows]

    def _values(self, rows: slice) -> list[Any]:
        array = self.arrow(rows)
        kind = array.type
        if not array.null_count:  # a fraction of the time of `to_pylist`
            if pa.types.is_integer(kind) or pa.types.is_floating(kind):
                return list(values_of(array).tolist())
            if pa.types.is_dictionary(kind):
                known = array.dictionary.to_pylist()
                return [known[code] for code in values_of(array.indices).tolist()]
        values: list[Any] = array.to_pylist()
        if pa.types.is_list(kind):
            return [None if value is None else tuple(value) for value in values]
        return values


class MembersColumn(Column):
    """The ranks of each update: a list of its own, or the rank set that it names.

    array: the lists.  numbers: each update's rank set, below 0 where the list counts.
    """

    def __init__(self, array: pa.Array, numbers: pa.Array, sets: RankSets) -> None:
        super().__init__(array)
        self.numbers, self.sets = numbers, sets

    @property
    def sizes(self) -> Array:
        lengths = np.array([*map(len, self.sets), 0])  # the last one is for -1: no set
        return np.asarray(super().sizes + lengths[values_of(self.numbers)])

    def arrow(self, rows: slice) -> pa.Array:
        own, named = self.array[rows], values_of(self.numbers[rows])
        used, at = np.unique(named, return_inverse=True)
        unnamed = np.count_nonzero(used < 0)
        sets = lists([self.sets[number] for number in used[unnamed:].tolist()], np.int32)
        place = np.where(named < 0, np.arange(len(own)), len(own) + at - unnamed)
        return pa.concat_arrays([own, sets]).take(numbers(place))


class RunTable(Mapping[str, Column]):
    """Columns by name; a column is put together or read when it is first asked for, then kept.

    `frame()` makes a DataFrame of it.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._columns: dict[str, Column] = {}

    @abc.abstractmethod
    def load(self, name: str) -> Column:
        """Put a column together, or read it."""

    @abc.abstractmethod
    def count(self) -> int:
        """Number of rows."""

    def head(self) -> Mapping[str, Sequence[Any]]:
        """The first values of each column, for its representation."""
        return {name: self[name][:SHOWN] for name in self}

    def frame(self) -> pd.DataFrame:
        """The table as a DataFrame; units in `.attrs["units"]`."""
        return frame(self)

    def __repr__(self) -> str:
        rows, width = self.count(), max(map(len, self))
        more = ", ..." if rows > SHOWN else ""
        lines = [f"{rows} row{'s' * (rows != 1)}; frame() makes a DataFrame"]
        for name, values in self.head().items():
            shown = ", ".join(
                f"{value:.6g}" if isinstance(value, float) else reprlib.repr(value)
                for value in values
            )
            unit = f" {UNITS[name]}" if name in UNITS else ""
            lines.append(f"  {name:{width}}  [{shown}{more}]{unit}")
        return "\n".join(lines)

    def __getitem__(self, name: str) -> Column:
        if name not in self._names:
            raise KeyError(f"{name!r}: the columns are {', '.join(self._names)}; frame() has rows")
        if name not in self._columns:
            self._columns[name] = self.load(name)
            self._columns[name].unit = UNITS.get(name, "")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class BatchTable(RunTable):
    """A table in memory, in record batches of equal columns; sets: rank sets that updates name."""

    def __init__(self, batches: Sequence[pa.RecordBatch], sets: RankSets) -> None:
        names = batches[0].schema.names
        super().__init__(name for name in names if name != RANK_SET)
        self._parts = {name: [batch.column(name) for batch in batches] for name in names}
        self._sets = sets
        self._count: int = sum(batch.num_rows for batch in batches)

    def count(self) -> int:
        """Number of rows."""
        return self._count

    def load(self, name: str) -> Column:
        array = _joined(self._parts.pop(name))
        if name == MEMBERS and RANK_SET in self._parts:
            return MembersColumn(array, _joined(self._parts.pop(RANK_SET)), self._sets)
        return Column(array)


class ParquetTable(RunTable):
    """A table in a parquet file.  Raises `InputError` where the file is not there any more."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._path = path
        super().__init__(pyarrow.parquet.read_schema(path).names)

    def count(self) -> int:
        """Number of rows; no column is read."""
        import pyarrow.parquet

        with self._reading():
            return int(pyarrow.parquet.read_metadata(self._path).num_rows)

    def head(self) -> Mapping[str, Sequence[Any]]:
        """The first values of each column; no column is read whole."""
        import pyarrow.parquet

        with self._reading(), pyarrow.parquet.ParquetFile(self._path) as file:
            batch = next(file.iter_batches(SHOWN), None)
        return {name: [] if batch is None else Column(batch.column(name)) for name in self}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn an error of the file into an `InputError`."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error).splitlines()[0]
            raise InputError(f"{self._path}: cannot be read: {reason}") from None

    def load(self, name: str) -> Column:
        import pyarrow.parquet

        with self._reading():
            table = pyarrow.parquet.read_table(self._path, columns=[name], read_dictionary=[name])
        column = table.column(name)
        if pa.types.is_null(column.type):
            column = column.cast(pa.float64())
        array = column.combine_chunks()
        if pa.types.is_list(array.type):  # parquet calls its values "element", arrow "item"
            parts = {"offset": array.offset, "children": [array.values]}
            kind = pa.list_(array.type.value_type)
            array = pa.Array.from_buffers(kind, len(array), array.buffers()[:2], **parts)
        return Column(array)


def frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Columns as a DataFrame; units in `.attrs["units"]`."""
    import pandas as pd

    found = pd.DataFrame(
        {
            name: np.asarray(values)
            if isinstance(values, Column) and values.is_numeric
            else list(values)
            for name, values in columns.items()
        }
    )
    found.attrs["units"] = {name: UNITS[name] for name in found.columns if name in UNITS}
    return found


def read_table(folder: Path, name: str) -> RunTable | None:
    """A table of a run directory, None where it has none."""
    path = _path(folder, name)
    return ParquetTable(path) if path.exists() else None


def write_table(folder: Path, name: str, table: Mapping[str, Any]) -> None:
    """A table as a file of a run directory; a column may be any sequence."""
    columns = {
        key: c if isinstance(c := table[key], Column) else Column(pa.array(c)) for key in table
    }
    write_atomically(_path(folder, name), lambda part: _append(None, part, columns).close())


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _weight(columns: Mapping[str, Column]) -> int:
    """Values of a table, as `VALUES` counts them: a row as several, and those in its lists."""
    rows = len(next(iter(columns.values())))
    return int(rows * (VALUES // ROWS) + sum(column.sizes.sum() for column in columns.values()))


def _append(writer: Any, path: Path, columns: Mapping[str, Column]) -> Any:
    """Write rows below those before, about `VALUES` at once; returns the writer."""
    import pyarrow.parquet

    rows = len(next(iter(columns.values())))
    at_once = max(1, rows * VALUES // max(_weight(columns), 1))
    for start in range(0, max(rows, 1), at_once):
        part = slice(start, start + at_once)
        table = pa.table({name: _stored(column.arrow(part)) for name, column in columns.items()})
        if writer is None:
            writer = pyarrow.parquet.ParquetWriter(path, table.schema, **_packing(table.schema))
        writer.write_table(table)
    return writer


def _stored(array: pa.Array) -> pa.Array:
    """Words as strings, and whole numbers in lists with 64 bits."""
    if pa.types.is_dictionary(array.type):
        return array.cast(pa.string())
    of_ints = pa.types.is_list(array.type) and pa.types.is_integer(array.type.value_type)
    return array.cast(pa.list_(pa.int64())) if of_ints else array


def _packing(schema: pa.Schema) -> dict[str, Any]:
    """How columns become small: whole numbers by their differences, words by a dictionary."""
    ints = [f.name for f in schema if pa.types.is_integer(f.type)]
    ints += [f"{f.name}.list.element" for f in schema if f.type == pa.list_(pa.int64())]
    return {
        "compression": "zstd",
        "use_dictionary": [f.name for f in schema if pa.types.is_string(f.type)],
        "column_encoding": dict.fromkeys(ints, "DELTA_BINARY_PACKED"),
    }


# -- arrow arrays from and to buffers: `pyarrow.array` and `Array.to_numpy` import pandas -------


def values_of(array: pa.Array) -> Array:
    """Numbers as a numpy array, NaN where one is missing."""
    start, stop = array.offset, array.offset + len(array)
    present, data = array.buffers()
    kind = array.type.to_pandas_dtype()
    values = np.frombuffer(data, kind)[start:stop] if len(array) else np.zeros(0, kind)
    if not array.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(present, np.uint8), bitorder="little")
    return np.where(bits[start:stop], values, np.nan)


def numbers(rows: Array, missing: Bools | None = None) -> pa.Array:
    """Numbers, shape (n,), of which some are missing; they share memory with contiguous `rows`."""
    rows = np.ascontiguousarray(rows)
    buffers = [None if missing is None else _present(missing), pa.py_buffer(rows)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(rows.dtype), len(rows), buffers)


def words(codes: Array, vocabulary: Sequence[str]) -> pa.Array:
    """Few different words: which of the vocabulary each is, shape (n,)."""
    encoded = [word.encode() for word in vocabulary]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    buffers = pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    strings = pa.StringArray.from_buffers(len(encoded), *buffers)
    return pa.DictionaryArray.from_arrays(numbers(codes.astype(np.int8)), strings)


def lists(values: Sequence[Sequence[float] | Array | None], kind: type) -> pa.Array:
    """Lists of numbers, None among them.

    >>> Column(lists([(1, 3), None, ()], np.int32))
    [(1, 3), None, ()]
    """
    sizes = [0 if value is None else len(value) for value in values]
    those = [np.zeros(0, kind), *(value for value in values if value is not None)]
    flat: Array = np.concatenate(those, dtype=kind, casting="unsafe")
    return lists_of(flat, np.array(sizes), np.array([value is None for value in values], np.bool_))


def lists_of(flat: Array, sizes: Array, missing: Bools | None = None) -> pa.Array:
    """Lists of numbers that stand one after another; sizes: length of each list, shape (n,)."""
    ends = np.append(0, np.cumsum(sizes)).astype(np.int32)
    buffers = [None if missing is None else _present(missing), pa.py_buffer(ends)]
    child = numbers(flat)
    return pa.Array.from_buffers(pa.list_(child.type), len(sizes), buffers, children=[child])


def concatenate(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of batches with the same columns, one below another."""
    names = batches[0].schema.names
    return pa.RecordBatch.from_arrays(
        [_joined([batch.column(name) for batch in batches]) for name in names], names=names
    )


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def take(batch: pa.RecordBatch, rows: Bools) -> pa.RecordBatch:
    """The rows where a mask is true; a copy."""
    return batch.take(numbers(np.flatnonzero(rows)))


def _present(missing: Bools) -> pa.Buffer | None:
    """A bit for each value that there is; None where nothing is missing."""
    return pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None


# -- where rows go while a run goes on ----------------------------------------------------------


class Storage(Protocol):
    """Where the rows of a run go while it goes on."""

    def add(self, name: str, batch: pa.RecordBatch) -> None:
        """Take rows of a table, below those before, or rank sets that updates name."""

    def table(self, name: str) -> Mapping[str, Any] | None:
        """All rows at the end, None for a table without a batch; no more can be added."""

    @property
    def excerpt(self) -> dict[str, Any] | None:
        """The value of `Run.excerpt`; None if all rows are kept."""


class InMemory:
    """Keeps every row."""

    def __init__(self) -> None:
        self.sets: RankSets = []
        self.batches: dict[str, list[pa.RecordBatch]] = {}

    def add(self, name: str, batch: pa.RecordBatch) -> None:
        """Keep the rows."""
        if name == RANK_SETS:
            self.sets += [values_of(ranks.values) for ranks in batch.column(0)]
        else:
            self.batches.setdefault(name, []).append(batch)

    def table(self, name: str) -> RunTable | None:
        """All rows that were kept."""
        return BatchTable(self.batches.pop(name), self.sets) if name in self.batches else None

    @property
    def excerpt(self) -> dict[str, Any] | None:
        """None: all rows are kept."""
        return None


class OnDisk(InMemory):
    """Writes `NAME.parquet` files into a folder; only rows that wait for others are in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._weight: dict[str, int] = {}
        self._writers: dict[str, Any] = {}

    def add(self, name: str, batch: pa.RecordBatch) -> None:
        """Write the rows, or wait for more of them."""
        super().add(name, batch)
        if name != RANK_SETS:
            weight = _weight(BatchTable([batch], self.sets))
            self._weight[name] = self._weight.get(name, 0) + weight
            if self._weight[name] >= VALUES:
                self._write(name)

    def table(self, name: str) -> RunTable | None:
        """The rows written."""
        if name not in self.batches:
            return None
        self._write(name)
        self._writers.pop(name).close()
        return ParquetTable(_path(self._folder, name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files, complete or not."""
        for writer in self._writers.values():
            writer.close()

    def _write(self, name: str) -> None:
        if batches := self.batches[name]:
            self.batches[name], self._weight[name] = [], 0
            path, table = _path(self._folder, name), BatchTable(batches, self.sets)
            self._writers[name] = _append(self._writers.get(name), path, table)
