"""Columns: what a list of the same values is, in 8 bytes a value."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from simstrag.errors import InputError
from simstrag.runs.tables import (
    MEMBERS,
    RANK_SET,
    RANK_SETS,
    ROWS,
    VALUES,
    BatchTable,
    Column,
    MembersColumn,
    OnDisk,
    concatenate,
    lists,
    numbers,
    read_table,
    take,
    words,
    write_table,
)

SETS = [np.array([0, 1, 2], np.int32), np.array([3, 4], np.int32)]
FLOATS = np.array([0.5, np.nan, 2.0, np.nan])
INTS = np.array([7, -1, 0, 2])
COLUMNS: list[tuple[Column, list[Any]]] = [
    (Column(numbers(np.array([0.5, 1.25, -3.0, 0.0]))), [0.5, 1.25, -3.0, 0.0]),
    (Column(numbers(INTS)), [7, -1, 0, 2]),
    (Column(numbers(FLOATS, np.isnan(FLOATS))), [0.5, None, 2.0, None]),
    (Column(numbers(INTS, INTS < 0)), [7, None, 0, 2]),
    (Column(words(np.array([1, 0, 0, 1]), ("full", "amp"))), ["amp", "full", "full", "amp"]),
    (Column(lists([(4, 2), None, (), (1,)], np.int32)), [(4, 2), None, (), (1,)]),
    (Column(lists([None, (0.5, 1.5), None, None], float)), [None, (0.5, 1.5), None, None]),
    (
        MembersColumn(
            lists([(), (9,), (), (8, 7)], np.int32), numbers(np.array([1, -1, 0, -1])), SETS
        ),
        [(3, 4), (9,), (0, 1, 2), (8, 7)],
    ),
]
EACH = pytest.mark.parametrize(("column", "values"), COLUMNS)


@EACH
def test_a_column_is_equal_to_the_list_of_its_values(column: Column, values: list[Any]) -> None:
    assert column == values
    assert values == column
    assert list(column) == values
    assert [column[k] for k in range(-4, 4)] == values + values
    for part in (slice(1, None), slice(1, 3), slice(3, 1), slice(None, None, -2), slice(9, None)):
        assert column[part] == values[part]
        assert np.asarray(column[part]).shape == (len(values[part]),)
    assert column != values[:3]
    assert column != [*values[:3], "else"]
    assert [type(value) for value in column] == [type(value) for value in values]


@EACH
def test_there_is_nothing_beyond_the_ends(column: Column, values: list[Any]) -> None:
    for row in (4, -5):
        with pytest.raises(IndexError, match=f"row {row} of 4"):
            column[row]


@EACH
def test_rows_are_taken_and_joined_in_order(column: Column, values: list[Any]) -> None:
    batch = pa.RecordBatch.from_arrays([column.arrow(slice(None))], names=["a"])
    some = take(batch, np.array([True, False, False, True]))
    both = concatenate([some, batch, take(some, np.array([False, True]))])
    assert Column(both.column("a")) == [values[0], values[3], *values, values[3]]


@EACH
def test_a_column_comes_back_from_a_file_and_from_another_process(
    column: Column, values: list[Any], tmp_path: Any
) -> None:
    assert pickle.loads(pickle.dumps(column)) == values
    write_table(tmp_path, "t", {"a": column})
    table = read_table(tmp_path, "t")
    assert table["a"] == values


def test_words_of_batches_that_have_others_are_joined() -> None:
    batches = [
        pa.RecordBatch.from_arrays([words(np.array(codes), known)], names=["way"])
        for codes, known in (([0], ["server"]), ([0, 1], ["leader", "server"]))
    ]
    assert Column(concatenate(batches).column("way")) == ["server", "leader", "server"]


def test_a_column_shows_its_first_values() -> None:
    assert repr(Column(numbers(np.arange(3)))) == "[0, 1, 2]"
    assert repr(Column(numbers(np.arange(9)))) == "[0, 1, 2, 3, 4, 5, ... 9 values]"
    assert repr(Column(numbers(np.array([0.5, 2.0, 3.0])), "s")[1:]) == "[2.0, 3.0] s"


def test_a_column_without_a_method_of_pandas_says_what_has_it() -> None:
    column = Column(numbers(np.arange(3)))
    way_out = r"a column has no 'iloc': .*numpy\.asarray\(column\).*run\.updates\.frame\(\)"
    with pytest.raises(AttributeError, match=way_out):
        _ = column.iloc  # type: ignore[attr-defined]
    assert (np.mean(column), np.max(column)) == (1.0, 2)
    assert not hasattr(column, "mean")


def test_a_table_shows_its_size_and_the_first_values_with_units(tmp_path: Any) -> None:
    write_table(tmp_path, "t", {"time": [k / 3 for k in range(9)], "members": [(0, 1)] * 9})
    table = read_table(tmp_path, "t")
    assert repr(table).splitlines() == [
        "9 rows; frame() makes a DataFrame",
        "  time     [0, 0.333333, 0.666667, 1, 1.33333, 1.66667, ...] s",
        "  members  [(0, 1), (0, 1), (0, 1), (0, 1), (0, 1), (0, 1), ...]",
    ]
    assert repr(table["time"][:2]) == "[0.0, 0.3333333333333333] s"


def test_showing_a_table_reads_no_column_whole(tmp_path: Any) -> None:
    write_table(tmp_path, "t", {"version": list(range(9))})
    table = read_table(tmp_path, "t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyarrow.parquet, "read_table", None)
        assert "[0, 1, 2, 3, 4, 5, ...]" in repr(table)


@pytest.mark.parametrize("rows", [0, 1])
def test_tables_of_memory_and_of_a_file_look_alike(rows: int, tmp_path: Any) -> None:
    batch = take(updates(0, 1), np.ones(1, np.bool_) if rows else np.zeros(1, np.bool_))
    table = BatchTable([batch], SETS)
    write_table(tmp_path, "t", table)
    assert repr(read_table(tmp_path, "t")) == repr(table)
    assert repr(table).startswith(f"{rows} row{'' if rows == 1 else 's'}; ")


def test_numpy_takes_a_column_as_an_array() -> None:
    missing = Column(numbers(np.array([4, -1]), np.array([False, True])))
    assert np.array_equal(np.asarray(missing), [4, np.nan], equal_nan=True)
    assert np.asarray(Column(numbers(np.arange(3)))).dtype == np.int64
    assert np.asarray(Column(words(np.array([1]), ("full", "amp")))).tolist() == ["amp"]


def test_taking_lists_frees_all_others() -> None:
    batch = pa.RecordBatch.from_arrays([lists([tuple(range(1000)), (5,)], np.int32)], names=["a"])
    assert take(batch, np.array([False, True])).column("a").values.to_pylist() == [5]


# -- tables on disk


def updates(start: int, rows: int) -> pa.RecordBatch:
    """Updates that all name rank set 0."""
    columns = {
        "version": numbers(np.arange(start, start + rows)),
        MEMBERS: lists([()] * rows, np.int32),
        RANK_SET: numbers(np.zeros(rows, np.int32)),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def rank_set(members: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([lists([range(members)], np.int32)], names=["ranks"])


@pytest.mark.parametrize(("rows", "members"), [(ROWS // 4, 1), (8, VALUES // 4)])
def test_what_is_written_in_batches_is_read_as_one_table(
    tmp_path: Any, rows: int, members: int
) -> None:
    with OnDisk(tmp_path) as files:
        files.add(RANK_SETS, rank_set(members))
        for start in range(0, 10 * rows, rows):
            files.add("t", updates(start, rows))
        table = files.table("t")
    assert table["version"] == list(range(10 * rows))
    assert table["members"][-1] == tuple(range(members))
    assert table["members"].sizes.tolist() == [members] * 10 * rows
    groups = pyarrow.parquet.ParquetFile(tmp_path / "t.parquet").metadata
    sizes = [groups.row_group(k).num_rows for k in range(groups.num_row_groups)]
    assert len(sizes) > 1
    assert max(sizes) <= ROWS + rows
    assert max(sizes) * members <= max(VALUES, ROWS + rows)


def test_a_table_without_rows_is_written_with_its_columns(tmp_path: Any) -> None:
    with OnDisk(tmp_path) as files:
        files.add("t", take(updates(0, 1), np.zeros(1, np.bool_)))
        table = files.table("t")
        assert files.table("never added") is None
    assert table == {"version": [], "members": []}


def test_a_column_is_read_when_it_is_asked_for(tmp_path: Any) -> None:
    write_table(tmp_path, "t", {"version": [0, 1, 2, 3], "members": [(0, 1)] * 4})
    table = read_table(tmp_path, "t")
    assert table["version"] == [0, 1, 2, 3]
    (tmp_path / "t.parquet").unlink()
    assert table["version"] == [0, 1, 2, 3]
    with pytest.raises(InputError, match=r"t\.parquet: cannot be read: "):
        table["members"]
    assert read_table(tmp_path, "t") is None
