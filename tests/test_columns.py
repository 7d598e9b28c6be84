"""Columns: what a list of the same values is, in 8 bytes a value."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from simstrag.errors import InputError
from simstrag.runs.columns import Column, Lists, Numbers, Words, chosen, joined, lists
from simstrag.runs.tables import ROWS, VALUES, OnDisk, Written, read_table, write_table

RING = [np.array([0, 1, 2]), np.array([3, 4])]
COLUMNS: list[tuple[Column, list[Any]]] = [
    (Numbers(np.array([0.5, 1.25, -3.0, 0.0])), [0.5, 1.25, -3.0, 0.0]),
    (Numbers(np.array([7, -1, 0, 2])), [7, -1, 0, 2]),
    (Numbers(np.array([0.5, np.nan, 2.0, np.nan]), gaps=True), [0.5, None, 2.0, None]),
    (Numbers(np.array([7, -1, 0, 2]), gaps=True), [7, None, 0, 2]),
    (Words(np.array([1, 0, 0, 1], np.int8), ("full", "amp")), ["amp", "full", "full", "amp"]),
    (lists([(4, 2), None, (), (1,)], np.int32), [(4, 2), None, (), (1,)]),
    (lists([None, (0.5, 1.5), None, None], np.float64), [None, (0.5, 1.5), None, None]),
    (
        Lists(np.array([-2, 0, -1, 1]), np.array([2, 1, 3, 2]), np.array([9, 8, 7]), RING),
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
    assert column[1:] == values[1:]
    assert column != values[:3]
    assert column != [*values[:3], "else"]
    assert [type(value) for value in column] == [type(value) for value in values]


@EACH
def test_there_is_nothing_beyond_the_ends(column: Column, values: list[Any]) -> None:
    for row in (4, -5):
        with pytest.raises(IndexError, match=f"row {row} of 4"):
            column[row]


@EACH
@pytest.mark.parametrize(
    "rows", [np.array([True, False, False, True]), np.array([2, 0]), slice(1, 3), slice(0, 0)]
)
def test_rows_are_chosen_as_numpy_chooses_them(
    column: Column, values: list[Any], rows: Any
) -> None:
    objects = np.empty(4, dtype=object)
    objects[:] = values
    assert column.chosen(rows) == objects[rows].tolist()
    assert column.chosen(rows).chosen(slice(0, 1)) == objects[rows].tolist()[:1]


@EACH
def test_rows_are_joined_in_order(column: Column, values: list[Any]) -> None:
    head, tail = column.chosen(slice(0, 3)), column.chosen(slice(3, 4))
    assert joined([{"a": tail}, {"a": head}, {"a": column}])["a"] == [
        *values[3:], *values[:3], *values,
    ]  # fmt: skip


@EACH
def test_a_column_comes_back_from_a_file_and_from_another_process(
    column: Column, values: list[Any], tmp_path: Any
) -> None:
    assert pickle.loads(pickle.dumps(column)) == values
    write_table(tmp_path, "t", {"a": column})
    assert Written(tmp_path / "t.parquet")["a"] == values


def test_words_of_blocks_that_have_others_are_joined() -> None:
    first, second = Words(np.array([0]), ("server",)), Words(np.array([0, 1]), ("leader", "server"))
    assert first.joined([second]) == ["server", "leader", "server"]


def test_a_column_shows_its_first_values() -> None:
    assert repr(Numbers(np.arange(3))) == "[0, 1, 2]"
    assert repr(Numbers(np.arange(9))) == "[0, 1, 2, 3, 4, 5, ... 9 values]"


def test_numpy_takes_a_column_as_an_array() -> None:
    gaps = Numbers(np.array([4, -1]), gaps=True)
    assert np.array_equal(np.asarray(gaps), [4, np.nan], equal_nan=True)
    assert np.asarray(Numbers(np.arange(3))).dtype == np.int64
    assert np.asarray(Words(np.array([1]), ("full", "amp"))).tolist() == ["amp"]


def test_choosing_lists_lets_go_of_all_others() -> None:
    column = lists([tuple(range(1000)), (5,)], np.int32).chosen([1])
    assert isinstance(column, Lists)
    assert column.flat.tolist() == [5]


# -- tables on disk


def block(start: int, rows: int, members: int) -> dict[str, Column]:
    at = np.full(rows, -1)
    ring = [np.arange(members, dtype=np.int32)]
    return {
        "version": Numbers(np.arange(start, start + rows)),
        "members": Lists(at, np.full(rows, members), np.zeros(0, np.int32), ring),
    }


@pytest.mark.parametrize(("rows", "members"), [(ROWS // 4, 1), (8, VALUES // 4)])
def test_what_is_written_in_blocks_is_read_as_one_table(
    tmp_path: Any, rows: int, members: int
) -> None:
    with OnDisk(tmp_path) as files:
        for start in range(0, 10 * rows, rows):
            files.add("t", block(start, rows, members))
        table = files.table("t")
    assert table is not None
    assert table["version"] == list(range(10 * rows))
    assert np.array_equal(table["members"].values().reshape(-1, members)[-1], np.arange(members))
    groups = pyarrow.parquet.ParquetFile(tmp_path / "t.parquet").metadata
    sizes = [groups.row_group(k).num_rows for k in range(groups.num_row_groups)]
    assert len(sizes) > 1
    assert max(sizes) <= ROWS + rows
    assert max(sizes) * members <= max(VALUES, ROWS + rows)


def test_a_table_without_rows_is_written_with_its_columns(tmp_path: Any) -> None:
    with OnDisk(tmp_path) as files:
        files.add("t", chosen(block(0, 1, 3), slice(0, 0)))
        table = files.table("t")
        assert files.table("never added") is None
    assert table == {"version": [], "members": []}


def test_a_column_is_read_when_it_is_asked_for(tmp_path: Any) -> None:
    write_table(tmp_path, "t", block(0, 4, 2))
    table = read_table(tmp_path, "t")
    assert table is not None
    assert table["version"] == [0, 1, 2, 3]
    (tmp_path / "t.parquet").unlink()
    assert table["version"] == [0, 1, 2, 3]
    with pytest.raises(InputError, match=r"t\.parquet: cannot be read: "):
        table["members"]
    assert read_table(tmp_path, "t") is None
