"""Records of jobs: what every format gives, and the one line that says why a file gives nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.records.read import read_record
from simstrag.records.record import Record
from simstrag.records.steps import absent_ranks
from simstrag.scenario.scenario import Scenario
from simstrag.whatif.metrics import Metrics, metrics
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay
from tests.support.job_records import keep, pipeline, write_parquet


def analysed(record: Record) -> Metrics:
    return metrics(JobReplay.of(Layout.of(record)))


# -- operations of a pipeline


def test_a_parquet_of_operations_is_the_record_that_was_written(tmp_path: Path) -> None:
    path = write_parquet(pipeline(), tmp_path / "trace-mine.parquet")
    (tmp_path / "meta-mine.yaml").write_text("trial_name: mine\nworld_size: 16\n")
    record = read_record(path)
    assert analysed(record).slowdown == analysed(pipeline()).slowdown
    assert record.gpus == 16
    assert record.notes == record.missing == ()


def test_columns_that_are_derived_give_the_same_and_that_is_said(tmp_path: Path) -> None:
    path = write_parquet(pipeline(), tmp_path / "t.parquet", without=("seq_id", "mc", "gmc"))
    record = read_record(path)
    assert analysed(record).slowdown == analysed(pipeline()).slowdown
    assert [note.partition(":")[0] for note in record.notes] == [
        "Derived",
        "Assumed",
        "Assumed",
        "Assumed",
    ]


def test_32_bits_stay_32_bits(tmp_path: Path) -> None:
    narrow = replace(pipeline(), start=pipeline().start.astype(np.float32))
    assert read_record(write_parquet(narrow, tmp_path / "t.parquet")).start.dtype == np.float32


def test_the_record_of_some_steps_has_their_times_as_they_were() -> None:
    record = replace(pipeline(steps=4), step_seconds=np.array([1.0, 2.0, 3.0, 4.0]))
    steps = np.unique(record.step)[[1, 3]]
    part, whole = analysed(record.of_steps(steps)), analysed(record)
    assert part.step == tuple(steps)
    assert part.recorded.tolist() == [2.0, 4.0]
    assert part.replayed == pytest.approx(whole.replayed[[1, 3]])


def test_steps_that_lack_an_operation_are_dropped() -> None:
    record = pipeline(steps=3)
    layout = Layout.of(keep(record, np.arange(len(record)) != len(record) - 1))
    assert (layout.step.tolist(), layout.dropped.tolist()) == ([0, 1], [2])


def test_replicas_that_do_other_operations_are_refused() -> None:
    with pytest.raises(InputError, match="dp_rank 1 has 10 operations in step 0, dp_rank 0 12"):
        Layout.of(keep(pipeline(), np.arange(24) < 22))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optype": "backwards-compute"}, "unknown operation 'backwards-compute'. Did you mean"),
        ({"duration": -1.0}, "row 1: start_ts 0 and duration -1 are no times in seconds"),
        ({"start_ts": np.nan}, "row 1: start_ts nan and duration 3 are no times"),
        ({"dp_rank": 0.5}, "row 1: dp_rank is 0.5, and no whole number from 0 on"),
        ({"seq_id": 2**40}, "row 1: seq_id is 1.09951e\\+12, and no whole number from 0 on"),
        ({"stage": 7}, "no row is of stage 2; the record needs all stages, from 0"),
        ({}, "no column 'stage'; a record of operations has dp_rank"),
    ],
)
def test_an_impossible_cell_or_a_missing_column_is_named(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    without = () if change else ("stage",)
    path = write_parquet(pipeline(), tmp_path / "t.parquet", without=without, first=change)
    with pytest.raises(InputError, match=message):
        read_record(path)


def test_a_receive_without_a_send_is_refused() -> None:
    record = pipeline()
    kept = record.kind != record.kinds.index("forward-send")
    with pytest.raises(InputError, match="forward transfer 0 from stage 0 has 1 end, not two"):
        JobReplay.of(Layout.of(keep(record, kept)))


# -- seconds of ranks

Read = Callable[[str], Record]
SECONDS = "rank,step,stage,seconds\n" + "".join(
    f"{rank},{step},{stage},{seconds}\n"
    for step in (7, 8)
    for rank, compute in ((0, 2.0), (1, 4.0))
    for stage, seconds in (("input", 1), ("forward", compute), ("comm", 4.5 - compute))
)


@pytest.fixture
def mine(tmp_path: Path) -> Read:
    """Reads a record of this text."""

    def read(text: str) -> Record:
        (tmp_path / "mine.csv").write_text(text)
        return read_record(tmp_path / "mine.csv")

    return read


def test_a_csv_of_parts_is_a_maximum_over_ranks_and_a_transfer(mine: Read) -> None:
    """A step is 1 + 4 + .5; ideal 1 + 3 + the median transfer (.5): 4.5."""
    record = mine(SECONDS)
    found = analysed(record)
    assert record.kinds == ("input", "forward", "all-reduce")
    assert found.replayed.tolist() == found.recorded.tolist() == [5.5, 5.5]
    assert found.slowdown == pytest.approx(5.5 / 4.5)
    assert found.by_replica.whole == pytest.approx({"0": 1, "1": 5.5 / 4.5})
    numbered = mine(SECONDS.replace("forward", "run-2026112600"))  # ten digits are of a name
    assert analysed(numbered).slowdown == pytest.approx(5.5 / 4.5)


def test_a_csv_without_a_collective_says_what_is_unknown(mine: Read) -> None:
    record = mine("rank,step,seconds\n0,0,1\n1,0,3\n0,1,1\n1,1,3\n0,2,1\n")
    assert not record.is_timed
    assert [line.partition(",")[0] for line in record.missing] == [
        "no stage is all-reduce",
        "steps whose ranks or stages are not those of most are left out: 1",
    ]
    assert analysed(record).slowdown == 1.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank,step\n0,0\n", "is CSV with columns rank, step, which no reader knows; the nearest"),
        ("rank,step,seconds\n0,0,-1\n", "row 2: seconds '-1' is less than 0"),
        ("rank,step,seconds\n0,0,0\n1,0,0\n", "all seconds of computing are 0"),
        ("rank,step,seconds\n0.5,0,1\n", "row 2: rank '0.5' is no whole number from 0"),
        ("rank,step,seconds\n0,0,1\n0,1,1\n0,0,2\n", "row 4: step '0' has compute of rank 0 twice"),
        ("rank,step,seconds\n0,0,1\n1e21,0,2\n", "row 3: rank '1e21' is too large"),
        ("rank,step,seconds\n0,0,3e9\n", "row 2: seconds '3e9' is too large; the most is 1e\\+09"),
        ("rank,step,seconds,tokens\n0,0,1,-4\n", "row 2: tokens '-4' is less than 0"),
        ("rank,step,seconds\n0,0,1\n1,1,1\n", "no step has seconds of all 2 ranks"),
        ("rank,step,stage,seconds\n0,0,a,1\n1,0,b,1\n", "rank 0 has no stage 'b'; all ranks must"),
        ("rank,step,stage,seconds\n0,0,comm,1\n", "computing is missing"),
        ("", "is empty; give logs of steps"),
    ],
)
def test_a_csv_that_is_no_record_gets_one_line(text: str, message: str, mine: Read) -> None:
    with pytest.raises(InputError, match=message):
        mine(text)


# -- folders of simstrag.ddp.record


def rank_file(folder: Path, rank: int, steps: int = 2, end: str = "") -> Path:
    rows = "".join(f"{rank},{step},{1 + rank}\n" for step in range(steps))
    path = folder / f"rank-{rank}.csv"
    path.write_text(f"rank,step,seconds\n{rows}{end}")
    return path


def test_a_row_that_a_full_disk_cut_off_is_left_out(tmp_path: Path) -> None:
    for rank, end in ((0, "0,2,1\n"), (1, "1,2,0.")):
        rank_file(tmp_path, rank, end=end)
    record = read_record(tmp_path)
    assert np.unique(record.step).tolist() == [0, 1]
    assert record.missing[-1] == "steps whose ranks or stages are not those of most are left out: 1"


def test_files_of_ranks_may_be_gzipped(tmp_path: Path) -> None:
    for rank in (0, 1):
        path = rank_file(tmp_path, rank)
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert analysed(read_record(tmp_path)).slowdown == pytest.approx(2 / 1.5)


def test_a_rank_without_a_step_is_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        rank_file(tmp_path, rank, steps=1 - rank)
    with pytest.raises(InputError, match=r"rank-1\.csv: has no step; the first three are left out"):
        read_record(tmp_path)


def test_two_records_in_a_folder_are_refused(tmp_path: Path) -> None:
    rank_file(tmp_path, 0)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"two records, of which run\.json and rank-0\.csv are"):
        read_record(tmp_path)


def test_of_a_job_of_a_trillion_ranks_the_first_without_a_file_are_named() -> None:
    (line,) = absent_ranks([0, 2], 10**12)
    assert line.startswith("rank 1, 3, 4, 5, 6, ... of 1000000000000 has no file")


# -- run directories


def run_folder(folder: Path, policy: str, **more: object) -> Path:
    scenario = Scenario(
        workers=3, updates=20, step={"compute": 0.1}, allreduce={"alpha": 0.01, "bytes": 0}, **more
    )
    return simulate(scenario, policy, record_steps=True).write(folder)


def test_a_run_directory_is_a_record_of_its_steps(tmp_path: Path) -> None:
    slow = [{"time": 0.0, "node": 1, "resource": "step", "kind": "slowdown", "value": 1.5}]
    found = analysed(read_record(run_folder(tmp_path / "run", "bsp", trace=slow)))
    assert found.replay_error == pytest.approx(1)
    assert found.by_replica.whole["1"] == pytest.approx(found.slowdown)
    assert found.slowdown == pytest.approx((0.15 + 0.04) / (0.35 / 3 + 0.04))


@pytest.mark.parametrize("policy", ["asgd", "local_sgd:h=2", "streaming_diloco:h=4"])
def test_a_run_whose_ranks_do_not_step_together_is_refused(policy: str, tmp_path: Path) -> None:
    server = {"service": 0.001, "push": 0.001, "pull": 0.001}
    folder = run_folder(tmp_path / "run", policy, server=server)
    with pytest.raises(InputError, match=f"under {policy} ranks do not step together"):
        read_record(folder)


# -- PyTorch profiles


def profiles(folder: Path, ranks: tuple[int, ...] = (0, 1, 2), ahead: float = 0.0) -> Path:
    """Three steps of 4 s; rank 1 computes 3 s of each, the others 1 s; rank 2's clock is ahead."""
    for rank in ranks:
        computes, clock = (3.0 if rank == 1 else 1.0), (ahead if rank == 2 else 0.0)
        events = [
            {"ph": "X", "cat": cat, "name": name, "ts": 1e6 * (4 * k + at + clock),
             "dur": 1e6 * seconds}
            for k in range(3)
            for cat, name, at, seconds in (
                ("user_annotation", f"ProfilerStep#{k}", 0.0, 4.0),
                ("kernel", "gemm", 0.0, computes),
                ("kernel", "ncclAllReduce", computes, 4 - computes),
            )
        ]  # fmt: skip
        data = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 3}}
        (folder / f"rank{rank}.json").write_text(json.dumps(data))
    return folder


def test_profiles_are_a_record_of_computing_and_a_collective(tmp_path: Path) -> None:
    record = read_record(profiles(tmp_path))
    found = analysed(record)
    assert found.slowdown == pytest.approx((3 + 1) / (5 / 3 + 1))
    assert found.by_replica.whole["1"] == pytest.approx(found.slowdown)
    assert record.missing == ()


def test_a_rank_without_a_file_is_named(tmp_path: Path) -> None:
    record = read_record(profiles(tmp_path, ranks=(0, 2)))
    assert [line.partition(":")[0] for line in record.missing] == ["rank 1 of 3 has no file"]


def test_a_clock_that_is_a_second_ahead_is_said_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "off").mkdir()
    (tmp_path / "right").mkdir()
    record = read_record(profiles(tmp_path / "off", ahead=1.0))
    assert [note for note in record.notes if "clocks" in note] == [
        "Derived: at the ends of collectives, clocks are rank 2 1.000 s ahead of rank 0; steps are "
        "aligned there."
    ]
    other = analysed(read_record(profiles(tmp_path / "right")))
    assert analysed(record).slowdown == pytest.approx(other.slowdown)


def test_an_empty_profile_is_named(tmp_path: Path) -> None:
    (profiles(tmp_path) / "rank1.json").write_text("")
    with pytest.raises(InputError, match=r"rank1\.json: is empty; record the rank again"):
        read_record(tmp_path)


def test_a_folder_without_a_record_says_what_one_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no record of a job in this folder; give logs of steps"):
        read_record(tmp_path)


def test_one_profile_alone_does_not_show_the_others(tmp_path: Path) -> None:
    record = read_record(profiles(tmp_path) / "rank0.json")
    assert set(record.rank.tolist()) == {0}
    assert any(each.hides_ranks for each in record.unseen)


def test_a_file_that_is_damaged_parquet_or_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        read_record(path)
    pyarrow.parquet.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="no column 'dp_rank'"):
        read_record(path)


@pytest.mark.parametrize(
    ("steps", "told"),
    [([0, 1, 2, 5, 6], True), ([0, 10, 20, 30], False), ([0, 3, 7, 12], False)],
)
def test_steps_that_no_rank_has_are_told(steps: list[int], told: bool, mine: Read) -> None:
    rows = "".join(f"{rank},{step},1\n" for step in steps for rank in (0, 1))
    missing = mine("rank,step,seconds\n" + rows).missing
    words = "steps are missing of all ranks: 2 between 0 and 6, the first after step 2"
    assert any(each.startswith(words) for each in missing) == told
    assert (len(missing) == 2) == told


def test_ranks_that_wait_twice_in_a_step_are_waited_for_twice(mine: Read) -> None:
    """Rank 0 takes 3 and 1 s, rank 1 takes 1 and 3: 6 s, though each computes 4; .5 for each wait.

    An evaluation adds a wait to step 2, which is left out.
    """
    rows = [
        f"{rank},{step},{stage}-{k},{seconds}\n"
        for step in range(3)
        for rank, computing in ((0, (3, 1)), (1, (1, 3)))
        for k, own in enumerate(computing + (1,) * (step == 2), start=1)
        for stage, seconds in (("forward", own), ("all-reduce", (1 if k == 3 else 3) - own + 0.5))
    ]
    record = mine("rank,step,stage,seconds\n" + "".join(rows))
    found = analysed(record)
    assert found.replayed.tolist() == found.recorded.tolist() == [7, 7]
    assert found.ideal.tolist() == [5, 5]
    assert record.missing == ("steps whose ranks or stages are not those of most are left out: 1",)
