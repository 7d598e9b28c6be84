"""Traces: read, checked row by row, written, and begun somewhere else."""

from __future__ import annotations

import hashlib
import math
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.errors import InputError
from simstrag.trace import read_files
from simstrag.trace import row_validation as trace_rows
from simstrag.trace.trace import COLUMNS, RESOURCES, Row, Trace

HEADER = "time,node,resource,kind,value"
GOOD = "60,3,gpu,slowdown,2.5"


@pytest.fixture(params=["row by row", "by column"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files large and small are told apart by their size only: all tests hold for both."""
    way = str(request.param)
    monkeypatch.setattr(read_files, "SMALL", 1 << 30 if way == "row by row" else 0)
    return way


def refused(path: Path) -> str:
    """The message, after the file's name: one line, whatever is wrong."""
    with pytest.raises(InputError) as caught:
        Trace.read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def of_csv(file: Path, *lines: str) -> Trace:
    file.write_text("\n".join(lines) + "\n")
    return Trace.read(file)


# -- reading


def test_a_csv_file_becomes_rows_in_order_of_time(file: Path) -> None:
    trace = of_csv(file, HEADER, GOOD, "90,3,gpu,slowdown,1", "30,0,net,slowdown,4")
    assert trace.rows == (
        Row(30.0, 0, "net", "slowdown", 4.0),
        Row(60.0, 3, "gpu", "slowdown", 2.5),
        Row(90.0, 3, "gpu", "slowdown", 1.0),
    )
    assert (trace.end, trace.nodes, trace.source) == (90.0, (0, 3), str(file))


@pytest.mark.parametrize(
    "text",
    [
        "node,value,kind,resource,time,note\n3,2.5,slowdown,gpu,60,hello\n",  # one more
        "time, node, resource, kind, value\n60, 3, gpu, slowdown, 2.5\n",
        "\ufefftime,node,resource,kind,value\r\n60,3,gpu,slowdown,2.5\r\n",  # as Excel writes it
        "time,node,resource,kind,value\n\n60.0,3.0,gpu,slowdown,2.5e0\n\n,,,,\n",  # blank lines
    ],
)
def test_order_of_columns_spaces_and_blank_lines_do_not_matter(file: Path, text: str) -> None:
    file.write_bytes(text.encode())
    assert Trace.read(file).rows == (Row(60.0, 3, "gpu", "slowdown", 2.5),)


def test_rows_of_equal_time_keep_their_order(file: Path) -> None:
    trace = of_csv(file, HEADER, *(f"5,{node},gpu,slowdown,{node + 1}" for node in (2, 0, 1)))
    assert [row.node for row in trace.rows] == [2, 0, 1]


def test_nodes_may_follow_each_other_in_the_file(file: Path) -> None:
    trace = of_csv(file, HEADER, "9,0,gpu,slowdown,2", "1,1,gpu,slowdown,3", "4,0,net,slowdown,5")
    assert [row.time for row in trace.rows] == [1, 4, 9]


def test_the_hash_is_that_of_the_file(file: Path) -> None:
    first = of_csv(file, HEADER, GOOD).sha256
    second = of_csv(file, HEADER, GOOD).sha256
    other = of_csv(file, HEADER, GOOD + "0").sha256
    assert first == second != other
    assert len(first) == 64


DECIMALS = st.one_of(
    st.floats(0, 1e300).map(repr),
    st.from_regex(r"[0-9]{1,25}\.[0-9]{1,25}", fullmatch=True),
    st.from_regex(r"[0-9]{1,3}(\.[0-9]*)?[eE][-+]?[0-9]{1,3}", fullmatch=True),
    st.from_regex(r" ?\+?[0-9_]{1,4}\.?[0-9]{0,4} ?", fullmatch=True),
)


@given(text=DECIMALS)
def test_a_number_is_what_python_reads(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "number.csv"
    path.write_text(f"{HEADER}\n{text},0,gpu,slowdown,2\n")
    try:
        expected = float(text)
    except ValueError:
        expected = math.nan
    if math.isfinite(expected):
        assert Trace.read(path).rows[0].time == expected
    else:
        refused(path)


def test_a_file_of_plain_rows_is_not_read_row_by_row(
    file: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "row by row":
        return
    monkeypatch.delattr(trace_rows, "check_each")
    lines = [HEADER, *(f"{k},{k % 7},gpu,slowdown,{1 + k / 8}" for k in range(2000))]
    trace = of_csv(file, *lines)
    trace.write(file.with_suffix(".parquet"))
    assert Trace.read(file.with_suffix(".parquet")).rows == trace.rows
    assert Trace.from_rows([row._asdict() for row in trace.rows]).rows == trace.rows
    assert Trace.from_rows(trace.rows).rows == trace.rows


# -- bad files


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "nope.csv") == ": no such file or folder"


@pytest.mark.parametrize("name", ["folder", "folder.parquet"])
def test_a_directory_is_no_trace(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert refused(tmp_path / name) == ": cannot be read as a trace: Is a directory"


@pytest.mark.parametrize(("mark", "what"), [(";", "semicolons"), ("\t", "tabs")])
def test_what_a_spreadsheet_writes_instead_of_commas_is_named(
    tmp_path: Path, mark: str, what: str
) -> None:
    path = tmp_path / "slow.csv"
    path.write_text(f"time{mark}node{mark}resource{mark}kind{mark}value\n", "utf-8-sig")
    assert refused(path) == (
        f": its columns are separated by {what}; save it as CSV with commas, and with decimal "
        "points"
    )


def test_where_a_row_stood_is_known_in_a_trace_that_begins_elsewhere() -> None:
    rows = [(9, 0, "gpu", "slowdown", 2), (3, 1, "gpu", "slowdown", 0.5)]
    trace = Trace.from_rows(rows, "slow.csv", first_line=2).shift(5.0)
    found = trace.find_first(lambda rows: rows.speeds_up)
    assert found == ("slow.csv, row 3", Row(3.0, 1, "gpu", "slowdown", 0.5))


def test_a_trace_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(frame: pd.DataFrame, path: Path, index: bool) -> None:
        path.write_text("time,node")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", half)
    with pytest.raises(InputError, match=r"slow\.csv: cannot be written: No space left"):
        Trace.from_rows([(0, 0, "gpu", "slowdown", 2)]).write(tmp_path / "slow.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_may_come_through_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = "time,node,resource,kind,value\n0,1,gpu,slowdown,2\n"
    writer = threading.Thread(target=path.write_text, args=(text,))
    writer.start()
    trace = Trace.read(path)
    writer.join()
    assert trace.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("text", ["", "\n", "\n\n"])
def test_an_empty_file_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    assert refused(file) == (
        ": the file is empty; a trace is CSV, or parquet in a file named *.parquet, "
        "with columns time, node, resource, kind, value"
    )


def test_a_header_alone_is_no_trace(file: Path) -> None:
    file.write_text(HEADER + "\n")
    assert refused(file) == ": the trace is empty; leave `trace` out for no contention"


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x01\x02\x03", b"\xff\xfe\x00a", b"\x89PNG\r\n\x1a\n\x00", "zeit".encode("utf-16")],
)
@pytest.mark.parametrize("name", ["garbage.csv", "garbage.parquet", "garbage"])
def test_binary_garbage_is_refused(tmp_path: Path, name: str, garbage: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(garbage)
    message = refused(path)
    if name.endswith(".parquet"):
        assert message.startswith(": cannot be read as parquet: ")
    else:
        assert message.startswith(
            ": not a text file in UTF-8; a trace is CSV, or parquet in a file named"
        )


def test_any_garbage_is_refused_in_one_line(tmp_path: Path) -> None:
    for name in ("garbage.csv", "garbage.parquet"):
        for size in (1, 10, 1000, 5000):
            (tmp_path / name).write_bytes(random.Random(size).randbytes(size))
            assert len(refused(tmp_path / name)) < 300


def test_garbage_after_a_good_header_is_refused(file: Path) -> None:
    file.write_bytes(f"{HEADER}\n{GOOD}\n".encode() + b"\x00\xff\xfe\x00")
    assert refused(file).startswith(": not a text file")


def test_a_parquet_file_needs_its_name(tmp_path: Path) -> None:
    Trace.from_rows([(60, 3, "gpu", "slowdown", 2.5)]).write(tmp_path / "good.parquet")
    (tmp_path / "good.parquet").rename(tmp_path / "good.dat")
    assert "parquet in a file named *.parquet" in refused(tmp_path / "good.dat")


@pytest.mark.parametrize("missing", COLUMNS)
def test_a_missing_column_is_named(file: Path, missing: str) -> None:
    names = [name for name in COLUMNS if name != missing]
    file.write_text(",".join(names) + "\n1,1,1,1\n")
    assert refused(file) == (
        f": no column '{missing}'; a trace has time, node, resource, kind, value, "
        f"this file {', '.join(names)}"
    )


def test_a_log_in_place_of_a_trace_names_the_command(file: Path) -> None:
    file.write_text("timestamp,hostname,gpu_util\n0,a,60\n")
    assert refused(file).endswith(
        f"this file timestamp, hostname, gpu_util; `simstrag diagnose {file}` reads logs"
    )


def test_a_column_named_twice_is_refused(file: Path) -> None:
    file.write_text("time,node,resource,kind,value,time\n")
    assert refused(file).startswith(": more than one column 'time'; a trace has")


@pytest.mark.parametrize("line", ["60,3,gpu,slowdown", "60,3,gpu,slowdown,2.5,9"])
def test_a_row_with_too_few_or_too_many_fields_is_refused(file: Path, line: str) -> None:
    file.write_text(f"{HEADER}\n{GOOD}\n{line}\n")
    count = len(line.split(","))
    assert refused(file) == f", row 3: {count} fields, but the header names 5 columns"


# -- bad rows


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("6O,3,gpu,slowdown,2", "time '6O' is not a number; it is in seconds from the start"),
        (",3,gpu,slowdown,2", "time '' is not a number; it is in seconds from the start"),
        ("60,3,gpu,slowdown,two", "value 'two' is not a number"),
        ("60,3,gpu,slowdown,nan", "value is nan; it must be a finite number"),
        ("60,3,gpu,slowdown,inf", "value is inf; it must be a finite number"),
        ("nan,3,gpu,slowdown,2", "time is nan; it must be a finite number"),
        ("inf,3,gpu,slowdown,2", "time is inf; it must be a finite number"),
        ("-1,3,gpu,slowdown,2", "time -1 is negative; a trace begins at 0"),
        ("60,3,gpu,slowdown,-2", "slowdown -2 must be 1 or more"),
        ("60,3,gpu,slowdown,0", "slowdown 0 must be 1 or more"),
        ("60,3,gpu,utilisation,1.5", "utilisation 1.5 must lie between 0 and 1"),
        ("60,3,step,duration,0", "duration 0 must be positive seconds"),
        ("60,3,gpu,duration,1", "a duration is of resource step, not gpu"),
        (
            "60,three,gpu,slowdown,2",
            "node 'three' is not a number; it is the number of a node, from 0 on",
        ),
        ("60,1.5,gpu,slowdown,2", "node '1.5' must be a whole number, 0 or more"),
        ("60,-1,gpu,slowdown,2", "node '-1' must be a whole number, 0 or more"),
        (
            "60,3,gpus,slowdown,2",
            "unknown resource 'gpus'. Did you mean 'gpu'?; allowed: gpu, host, net, step",
        ),
        (
            "60,3,gpu,slow-down,2",
            "unknown kind 'slow-down'. Did you mean 'slowdown'?; "
            "allowed: slowdown, utilisation, duration, delay",
        ),
        ("60,3,,slowdown,2", "unknown resource ''; allowed: gpu, host, net, step"),
    ],
)
def test_a_bad_row_is_named_with_its_line_field_value_and_the_way_out(
    file: Path, line: str, message: str
) -> None:
    file.write_text(f"{HEADER}\n\n{GOOD}\n{line}\n")  # a blank line does not shift the numbers
    assert refused(file) == f", row 4: {message}"


def test_time_that_goes_backwards_is_refused(file: Path) -> None:
    file.write_text(f"{HEADER}\n{GOOD}\n59,0,gpu,slowdown,2\n59.5,3,gpu,slowdown,1\n")
    assert refused(file) == (
        ", row 4: time 59.5 goes backwards, the row before of node 3, gpu slowdown is at 60; "
        "sort the rows by time"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"time": 1, "node": 0, "resource": "gpu", "kind": "slowdown"},
            "no 'value'; a row has time",
        ),
        (
            {"time": 1, "node": 0, "resorce": "gpu", "kind": "slowdown", "value": 2},
            "unknown column 'resorce'. Did you mean 'resource'?",
        ),
        ((1, 0, "gpu", "slowdown"), "(1, 0, 'gpu', 'slowdown') is not a row of time, node"),
        ("abcde", "'abcde' is not a row of time, node"),
        ((True, 0, "gpu", "slowdown", 2), "time is True; it must be a finite number"),
        ((None, 0, "gpu", "slowdown", 2), "time None is not a number"),
    ],
)
def test_a_bad_inline_row_is_named_by_its_number(row: Any, message: str) -> None:
    good = {"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2}
    with pytest.raises(InputError) as caught:
        Trace.from_rows([good, row], source="here.yaml: trace")
    assert str(caught.value).startswith(f"here.yaml: trace, row 2: {message}")


def test_a_bad_row_of_a_parquet_file_is_counted_from_one(tmp_path: Path) -> None:
    frame = pd.DataFrame([(0.0, 0, "gpu", "slowdown", 2.0), (1.0, 0, "gpu", "slowdown", math.nan)])
    frame.columns = list(COLUMNS)
    frame.to_parquet(tmp_path / "trace.parquet")
    assert refused(tmp_path / "trace.parquet").startswith(", row 2: value")


# -- writing

ROWS = st.lists(
    st.tuples(
        st.floats(0, 1e9),
        st.integers(0, 10_000),
        st.sampled_from(RESOURCES),
        st.just("slowdown"),
        st.floats(1, 1e6),
    ),
    min_size=1,
    max_size=30,
).map(sorted)


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
@given(rows=ROWS)
def test_what_is_written_is_read_back_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    trace = Trace.from_rows(rows)
    trace.write(path)
    assert Trace.read(path).rows == trace.rows


@pytest.mark.parametrize("name", ["nowhere/trace.csv", "nowhere/trace.parquet"])
def test_a_folder_that_does_not_exist_cannot_be_written_to(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InputError) as caught:
        Trace.from_rows([(60, 3, "gpu", "slowdown", 2.5)]).write(path)
    assert str(caught.value).startswith(f"{path}: cannot be written: ")


def test_a_trace_becomes_a_data_frame_with_its_columns() -> None:
    frame = Trace.from_rows([(60, 3, "gpu", "slowdown", 2.5)]).to_frame()
    assert frame.to_dict("records") == [
        {"time": 60.0, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 2.5}
    ]


# -- beginning somewhere else


def test_a_shifted_trace_says_so_and_keeps_the_hash_of_its_file() -> None:
    trace = Trace.from_rows([(0, 0, "gpu", "slowdown", 2), (60, 0, "gpu", "slowdown", 1)])
    shifted = trace.shift(12.5)
    assert shifted.source == "inline trace from 12.5 s on"
    assert shifted.sha256 == trace.sha256


def test_a_trace_of_constants_is_the_same_wherever_it_begins() -> None:
    trace = Trace.from_rows([(0, 0, "gpu", "slowdown", 2)])
    assert trace.shift(0.0) is trace


# -- names


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_names_of_nodes_stay_with_a_trace(name: str, tmp_path: Path) -> None:
    text = "time,node,resource,kind,value,host\n0,3,gpu,slowdown,2,gpu03\n5,0,gpu,slowdown,1,\n"
    (tmp_path / "given.csv").write_text(text)
    given = Trace.read(tmp_path / "given.csv")
    assert given.names == {3: "gpu03"}
    given.write(tmp_path / name)
    again = Trace.read(tmp_path / name)
    assert (again.names, again.rows) == (given.names, given.rows)
    assert again.shift(1.0).names == again.without_contention([0]).names == given.names


def test_a_frame_may_name_its_nodes() -> None:
    frame = pd.DataFrame([(0, 3, "gpu", "slowdown", 2.0, "gpu03")], columns=[*COLUMNS, "host"])
    assert Trace.from_frame(frame).names == {3: "gpu03"}
    assert Trace.from_frame(frame.drop(columns="host")).names == {}


def test_a_node_with_two_names_is_refused(tmp_path: Path) -> None:
    text = "time,node,resource,kind,value,host\n0,3,gpu,slowdown,2,a\n5,3,gpu,slowdown,1,b\n"
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=r"t\.csv: node 3 is called 'a' and 'b'"):
        Trace.read(tmp_path / "t.csv")


def test_a_trace_without_names_is_written_as_ever(tmp_path: Path) -> None:
    trace = Trace.from_rows([(0, 0, "gpu", "slowdown", 2)])
    trace.write(tmp_path / "t.csv")
    assert trace.names == {}
    assert (tmp_path / "t.csv").read_text().startswith("time,node,resource,kind,value\n")
    assert trace.sha256 == replace(trace, names={0: "gpu00"}).sha256
