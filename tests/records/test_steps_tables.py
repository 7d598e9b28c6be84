"""Tables of steps in the shapes that people have: the record of each, and the trace made of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.records import slurm, steps
from simstrag.records.log_file import LogFile
from simstrag.records.record import Record
from simstrag.scenario.scenario import Scenario
from simstrag.statistics.startup import leading
from simstrag.traces.importers import import_trace, recognise
from simstrag.traces.of_steps import trace_of_steps
from simstrag.traces.provenance import Labelled
from simstrag.whatif.job_scenario import job_scenario
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay
from tests.support.damage import damaged, outcome
from tests.support.drawn_jobs import Job

RECORDS = Path(__file__).parents[1] / "data/records"
MUTATIONS = 15
RANKS, STEPS, SLOW = 3, 40, range(20, 30)


def seconds(rank: int, step: int) -> float:
    """Rank 2 takes twice as long for ten steps."""
    return 0.2 if rank == 2 and step in SLOW else 0.1


def table(header: str, cells: Callable[[int, int], str], ranks: int = RANKS) -> str:
    rows = (cells(rank, step) for step in range(STEPS) for rank in range(ranks))
    return "\n".join([header, *rows]) + "\n"


def wide(header: str, cells: Callable[[int], Iterable[object]], mark: str = ",") -> str:
    rows = (mark.join(map(str, cells(step))) for step in range(STEPS))
    return "\n".join([header, *rows]) + "\n"


def read(folder: Path, text: str | bytes, name: str = "log.csv") -> Record:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return steps.read([LogFile.open(path)])


def shape(record: Record) -> tuple[int, int]:
    return len(np.unique(record.rank)), len(np.unique(record.step))


def all_seconds() -> list[float]:
    return [seconds(rank, step) for step in range(STEPS) for rank in range(RANKS)]


LONG = table("rank,step,seconds", lambda r, k: f"{r},{k},{seconds(r, k)}")
OF_RANKS = [f"{seconds(r, 0)}" for r in range(RANKS)]
SHAPES: dict[str, str | bytes] = {
    "long": LONG,
    "milliseconds": table("rank,step,step_time_ms", lambda r, k: f"{r},{k},{1e3 * seconds(r, k)}"),
    "units in cells": table(
        "rank,step,step_time", lambda r, k: f"{r},{k},{1e3 * seconds(r, k)} ms"
    ),
    "decimal commas": table(
        "rank;step;seconds", lambda r, k: f"{r};{k};{seconds(r, k)}".replace(".", ",")
    ),
    "CRLF and a mark": b"\xef\xbb\xbf" + LONG.replace("\n", "\r\n").encode(),
    "gzipped": gzip.compress(LONG.encode()),
    "a cut last line": f"{LONG}0,4",
    "a header in between": LONG.replace("0,20,", "rank,step,seconds\n0,20,", 1),
    "seconds per iteration": table("rank,iter,s/it", lambda r, k: f"{r},{k},{seconds(r, k)}"),
    "iterations per second": table("rank,iter,it/s", lambda r, k: f"{r},{k},{1 / seconds(r, k)}"),
    "an area": table("rank,step,perf/step_time", lambda r, k: f"{r},{k},{seconds(r, k)}"),
    "rates of training": table(
        "rank,trainer/global_step,train_steps_per_sec", lambda r, k: f"{r},{k},{1 / seconds(r, k)}"
    ),
    "ranks by name": table("rank,step,seconds", lambda r, k: f"rank_{r},{k},{seconds(r, k)}"),
    "JSON": json.dumps(
        [{"rank": r, "step": k, "seconds": seconds(r, k)} for k in range(STEPS) for r in range(3)]
    ),
    "JSON lines, cut": "".join(
        json.dumps({"rank": r, "step": k, "seconds": seconds(r, k)}) + "\n"
        for k in range(STEPS)
        for r in range(RANKS)
    ) + '{"rank": 0, "st',
    "a column per rank": wide(
        "step,rank0,rank1,rank2", lambda k: [k, *(seconds(r, k) for r in range(3))]
    ),
    "with a unit": wide(
        "step,rank_0 (ms),rank_1 (ms),rank_2 (ms)",
        lambda k: [k, *(1e3 * seconds(r, k) for r in range(3))],
    ),
    "a pivot table": wide("step,0,1,2", lambda k: [k, *(seconds(r, k) for r in range(3))]),
    "a chart of one run": wide(
        '"Step",' + ",".join(
            f'"brisk-7 - step_time/rank_{r}{end}"'
            for r in range(3)
            for end in ("", "__MIN", "__MAX")
        ),
        lambda k: [k, *(x for r in range(3) for x in [seconds(r, k)] * 3)],
    ),
    "a name that begins with a bracket": table(
        "[rank],step,seconds", lambda r, k: f"{r},{k},{seconds(r, k)}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_is_the_same_record(name: str, tmp_path: Path) -> None:
    record = read(tmp_path, SHAPES[name])
    assert record.duration == pytest.approx(all_seconds())
    assert shape(record) == (RANKS, STEPS)
    file = LogFile.open(tmp_path / "log.csv")
    tools = [reader.name for reader in steps.READERS if reader.recognise(file)]
    assert tools == [record.form]


def test_a_column_per_stage_is_a_part_each(tmp_path: Path) -> None:
    text = table(
        "rank,step,data_ms,fwd_ms,bwd_ms,allreduce_ms,step_time_ms",
        lambda r, k: f"{r},{k},1,{1e3 * seconds(r, k)},20,{300 - 1e3 * seconds(r, k)},321",
    )
    record = read(tmp_path, text)
    assert record.kinds == ("input", "forward", "backward", "all-reduce")
    assert record.duration[:4] == pytest.approx([0.001, 0.1, 0.02, 0.2])
    assert record.is_timed
    assert slowed(import_trace("steps", [tmp_path / "log.csv"]))[2][0][1] == pytest.approx(
        0.221 / 0.121, abs=0.01
    )


def test_sparse_metrics_of_one_rank_say_that_it_is_one(tmp_path: Path) -> None:
    rows = [f"0,{k},{0.1 if k % 2 else ''},{'' if k % 2 else 1.5}" for k in range(STEPS)]
    record = read(tmp_path, "\n".join(["epoch,step,train/step_time,val_loss", *rows]) + "\n")
    assert (record.form, shape(record)) == ("Lightning CSVLogger", (1, STEPS // 2))
    assert record.unseen == (steps.ONE_RANK,)
    with pytest.raises(InputError, match=r"log\.csv: is of one rank, .* give the logs of all"):
        import_trace("steps", [tmp_path / "log.csv"])


def test_ranks_of_each_host_count_on(tmp_path: Path) -> None:
    text = table(
        "host,rank,step,seconds", lambda r, k: f"{'ab'[r // 2]},{r % 2},{k},{seconds(r, k)}", 4
    )
    record = read(tmp_path, text)
    assert shape(record) == (4, STEPS)
    assert record.hosts == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert any("ranks are numbered on each host anew" in note for note in record.notes)


@pytest.mark.parametrize("name", ["rank_{}", "metrics-rank{}", "run-rank{}-tag-perf_step_time"])
def test_files_are_of_the_ranks_in_their_names(name: str, tmp_path: Path) -> None:
    files = []
    for rank in (2, 10):
        path = tmp_path / f"{name.format(rank)}.csv"
        path.write_text("step,seconds\n" + "".join(f"{k},0.{rank}\n" for k in range(9)))
        files.append(LogFile.open(path))
    record = steps.read(files)
    assert np.unique(record.rank).tolist() == [2, 10]


def test_a_scalar_that_is_no_time_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "run-a-tag-loss.csv"
    path.write_text("Wall time,Step,Value\n1.5,0,2.3\n2.5,1,2.2\n")
    assert not any(reader.recognise(LogFile.open(path)) for reader in steps.READERS)


def test_times_in_whole_seconds_are_no_steps_twice(tmp_path: Path) -> None:
    text = table(
        "time,rank,step,seconds",
        lambda r, k: f"2026-11-20 10:00:0{k // 10},{r},{k},{seconds(r, k)}",
    )
    (tmp_path / "log.csv").write_text(text)
    found = import_trace("steps", [tmp_path / "log.csv"])
    assert slowed(found)[2][0] == (pytest.approx(2.0), 2.0)


def test_numbers_without_a_header_ask_for_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no header; write one, such as rank,step,seconds"):
        read(tmp_path, "0,0,0.1\n1,0,0.2\n")


def test_a_backward_without_its_collective_is_said_to_hide_ranks() -> None:
    record = steps.read([LogFile.open(RECORDS / "backward-hides.csv")])
    assert record.unseen == (steps.HIDDEN,)
    found = trace_of_steps(record)
    assert any(text.startswith("Not seen: a rank whose own backward") for text in found.cautions)


# -- steps recorded twice


def attempts(*stretches: range, ranks: int = 2) -> str:
    rows = [f"{r},{k},0.1" for stretch in stretches for k in stretch for r in range(ranks)]
    rows = [f"{row}{k % 7}" for k, row in enumerate(rows)]
    return "\n".join(["rank,step,seconds", *rows]) + "\n"


def test_of_steps_done_twice_the_last_time_counts(tmp_path: Path) -> None:
    record = read(tmp_path, attempts(range(20), range(10, 16), range(12, 40)))
    assert np.unique(record.step).tolist() == [*range(40)]
    assert record.missing[0].startswith(
        "the job was restarted 2 times, after which 14 steps (of 10 to 19) were done again: "
    )


def test_a_rank_that_a_restart_moved_is_on_its_last_host(tmp_path: Path) -> None:
    first = [f"{r},{k},0.1{k % 7},a{r}" for k in range(20) for r in range(2)]
    then = [f"{r},{k},0.2{k % 7},{'ab'[r]}{r}" for k in range(10, 40) for r in range(2)]
    record = read(tmp_path, "\n".join(["rank,step,seconds,host", *first, *then]) + "\n")
    assert record.hosts == {0: "a0", 1: "b1"}
    assert "rank 1 was on several hosts; here it is on its last one" in record.missing


def test_numbers_that_begin_anew_count_on(tmp_path: Path) -> None:
    record = read(tmp_path, attempts(range(10), range(10), range(10)))
    assert np.unique(record.step).tolist() == [*range(30)]
    assert any("step numbers begin anew 2 times" in note for note in record.notes)


def test_a_step_twice_is_no_restart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 10: step '3' has compute of rank 0 twice, after ro"):
        read(tmp_path, attempts(range(4), range(3, 4)).replace("0,3,0.11", "0,3,0.9", 1))
    lines = attempts(range(9), ranks=1) + "".join(f"0,{k},9\n" for k in range(9))
    text = lines.replace("rank,", "who,")
    with pytest.raises(InputError, match="does another column name the rank"):
        read(tmp_path, text)


# -- known truths


def imported(name: str, kind: str = "steps") -> Labelled:
    return import_trace(kind, [RECORDS / name])


def slowed(found: Labelled) -> dict[int, list[tuple[float, float]]]:
    """Times and slowdowns of the nodes that are ever slowed."""
    series = {n: found.trace.series(n, "step", "slowdown") for n in found.trace.nodes}
    return {n: rows for n, rows in series.items() if any(value > 1 for _, value in rows)}


def clean(found: Labelled) -> float:
    return float(found.scenario[0].partition("compute: ")[2].partition(",")[0].partition("}")[0])


def test_the_slow_rank_of_a_log_with_hosts_is_called_by_its_host() -> None:
    found = imported("steps-with-hosts.csv")
    ((node, rows),) = slowed(found).items()
    assert found.trace.names[node] == "node-1/2"
    assert rows[0] == (16.0, pytest.approx(1.8, abs=0.02))


def test_throughput_stands_for_seconds() -> None:
    found = imported("throughput.csv")
    ((node, rows),) = slowed(found).items()
    assert found.trace.names[node] == "gpu01"
    assert rows[0] == (200.0, pytest.approx(1.82, abs=0.02))
    assert rows[1] == (400.0, 1.0)
    assert any("a step here is 10000 of what 'samples_per_second'" in n for n in found.notes)


def test_hostile_names_stay_as_they_are() -> None:
    found = imported("names.csv")
    assert list(slowed(found)) == [0]
    assert found.trace.names[2] == "b\x1b[2Jc"


def test_a_restarted_job_is_slow_since_its_restart() -> None:
    path = RECORDS / "cases/13-restarted-job/steps.csv"
    record = steps.read([LogFile.open(path)])
    assert shape(record) == (4, 180)
    assert (
        "20 steps (of 80 to 99) were done again: their first time, 8.139 s of lost"
        in (record.missing[0])
    )
    found = imported("cases/13-restarted-job/steps.csv")
    assert list(slowed(found)) == [2]
    assert slowed(found)[2][0] == (
        pytest.approx(80 * 0.409, rel=0.02),
        pytest.approx(1.5, abs=0.02),
    )
    assert any("8.139 s of lost work" in note for note in found.notes)


def test_compiling_is_a_start_and_slows_nothing_after() -> None:
    found = imported("cases/14-first-steps-compile/steps.csv")
    assert not slowed(found)
    assert any("the first 2 steps are start-up" in note for note in found.notes)
    assert clean(found) == pytest.approx(0.35, rel=0.01)


def test_a_slow_node_slows_all_its_ranks() -> None:
    found = imported("cases/16-whole-node-slow/steps.csv")
    assert list(slowed(found)) == [*range(16, 24)]
    assert found.trace.names[16] == "gpu02/16"


def test_the_doubt_of_equal_walls_is_a_caution() -> None:
    found = imported("steps-equal-walls.csv")
    assert any("in each step all ranks take equally long" in text for text in found.cautions)


# -- groups of ranks


def two_kinds(folder: Path, ranks: int, fast: int, slow: float = 0.4) -> Labelled:
    luck = np.random.default_rng(1)
    text = table(
        "rank,step,seconds",
        lambda r, k: f"{r},{k},{(0.267 if r < fast else slow) * luck.normal(1, 0.02):.5f}",
        ranks,
    )
    (folder / "log.csv").write_text(text)
    return import_trace("steps", [folder / "log.csv"])


@pytest.mark.parametrize(("ranks", "fast"), [(4, 2), (8, 3), (8, 6), (2, 1)])
def test_clean_is_what_the_fastest_group_does(ranks: int, fast: int, tmp_path: Path) -> None:
    found = two_kinds(tmp_path, ranks, fast)
    assert clean(found) == pytest.approx(0.267, rel=0.01)
    assert list(slowed(found)) == [*range(fast, ranks)]
    for rows in slowed(found).values():
        assert rows[0] == (0.0, pytest.approx(1.5, abs=0.03))
    assert any("ranks are of 2 groups by their own clean steps" in note for note in found.notes)


@pytest.mark.parametrize(("ranks", "fast", "slow"), [(4, 2, 0.4), (8, 3, 0.4), (4, 3, 0.32)])
def test_the_trace_and_the_record_agree_on_what_a_policy_gains(
    ranks: int, fast: int, slow: float, tmp_path: Path
) -> None:
    found = two_kinds(tmp_path, ranks, fast, slow)
    found.write(tmp_path / "t.csv")
    (tmp_path / "t.yaml").write_text("\n".join(found.lines("t.csv")))
    record = steps.read([LogFile.open(tmp_path / "log.csv")])
    replay = JobReplay.of(Layout.of(record))
    (of_record,) = job_scenario(record, replay, ["lb_bsp"], gpus=ranks).readings
    gains = []
    for scenario in (Scenario.read(tmp_path / "t.yaml"), of_record):
        seconds = [simulate(scenario, name).summary["makespan"] for name in ("bsp", "lb_bsp")]
        gains.append(1 - seconds[1] / seconds[0])
    assert gains[0] == pytest.approx(gains[1], abs=0.01)


def test_noise_makes_no_groups() -> None:
    """At a level of 1 % of logs."""
    split = 0
    for seed in range(40):
        seconds = 0.267 * np.random.default_rng(seed).normal(1, 0.02, (16, STEPS))
        notes = trace_of_steps(Job(seconds).record).notes
        split += any("groups by their own" in note for note in notes)
    assert split <= 2


@pytest.mark.parametrize(
    ("first", "count"),
    [([60.0, 12.0], 2), ([0.3, 60.0], 0), ([60.0] * 5, 0), ([0.6, 0.6], 0), ([], 0)],
)
def test_leading_steps_are_start_up_if_few_and_long(first: list[float], count: int) -> None:
    each = np.tile([*first, *[0.3] * (20 - len(first))], (4, 1))
    each[0] *= 1.1
    each[1, 3] = np.nan
    assert leading(each) == count


# -- jobs of Slurm

SACCT = (RECORDS / "sacct.txt").read_text()


def jobs(folder: Path, text: str, **columns: str) -> Record:
    (folder / "sacct.txt").write_text(text)
    file = LogFile.open(folder / "sacct.txt")
    assert slurm.recognise(file)
    return slurm.read([file], columns)


def times(record: Record) -> list[tuple[Any, ...]]:
    return [(record.nodes[e.node], e.start, e.end, e.what[:8]) for e in record.episodes]


TRUTH = [
    ("gpu03", 1800.0, 3000.0, "job 1235"),
    ("gpu02", 4200.0, 5100.0, "job 1236"),
    ("gpu03", 4200.0, 5100.0, "job 1236"),
]


@pytest.mark.parametrize(
    "text",
    [
        SACCT,
        "\n".join("|".join([*reversed(line.split("|")), ""]) for line in SACCT.splitlines()),
        SACCT.replace("\n1235", "\n1234.batch|batch||gpu01|2026-11-20T10:00:00|Unknown|R|\n1235"),
        SACCT + "1299|late|gpu|None assigned|Unknown|Unknown|PENDING|\n1300|cut|gp",
    ],
)
def test_jobs_on_my_nodes_are_episodes(text: str, tmp_path: Path) -> None:
    record = jobs(tmp_path, text)
    assert times(record) == TRUTH
    assert (record.nodes, record.began) == (
        ("gpu01", "gpu02", "gpu03", "gpu04"),
        "2026-11-20T10:00:00",
    )
    assert recognise(tmp_path / "sacct.txt") == ("sacct", ())


def test_a_job_that_runs_lasts_to_the_latest_time_and_mine_may_be_stated(tmp_path: Path) -> None:
    text = SACCT.replace("2026-11-20T11:25:00", "Unknown")
    record = jobs(tmp_path, text, job="1236")
    assert times(record) == [(f"gpu0{k}", 0.0, 3000.0, "job 1234") for k in (2, 3)]
    assert any("jobs without an end last" in note for note in record.notes)
    with pytest.raises(InputError, match=r"no job 1263 has run\. Did you mean '1236'"):
        jobs(tmp_path, text, job="1263")


def test_what_sharing_cost_is_assumed_and_that_is_a_caution() -> None:
    found = imported("sacct.txt", "sacct")
    assert list(slowed(found)) == [1, 2]
    assert {found.trace.names[node] for node in slowed(found)} == {"gpu02", "gpu03"}
    (caution,) = found.cautions
    assert caution.startswith("Assumed: beside another job a step takes 1.5 times as long (3 of 3")
    assert found.trace.nodes == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SACCT.partition("\n")[2], "sacct with no header; leave out -n: sacct -P --format=JobID,"),
        (SACCT.replace("NodeList", "Nodes"), "no NodeList: sacct -P --format=JobID,JobName,NodeL"),
        (SACCT.replace("gpu[01-04]", "gpu[01-"), r"row 2: NodeList 'gpu\[01-' is no list of nod"),
        (SACCT.replace("01-04", "0-999999999"), "row 2: NodeList"),
        (SACCT.replace("2026-11-20T12", "2026-11-19T12"), "is before the start"),
    ],
)
def test_a_list_of_jobs_that_cannot_be_read_says_why(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        jobs(tmp_path, text)


# -- damaged files

READ: dict[str, Callable[[Path], object]] = {
    "steps": lambda path: import_trace("steps", [path]).page("t"),
    "sacct": lambda path: import_trace("sacct", [path]).page("t"),
    "the format": recognise,
}


@pytest.mark.parametrize("name", [*SHAPES, "sacct", "restart", "throughput"])
def test_a_damaged_table_is_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    more = {
        "sacct": SACCT, "restart": attempts(range(20), range(10, 30)),
        "throughput": (RECORDS / "throughput.csv").read_text()[:3000],
    }  # fmt: skip
    text = SHAPES[name] if name in SHAPES else more[name]
    path = tmp_path / "log.csv"
    for number in range(MUTATIONS):
        path.write_bytes(
            damaged(text.encode() if isinstance(text, str) else text, f"{name}{number}")
        )
        for read_one in READ.values():
            message = outcome(lambda read_one=read_one: read_one(path))  # type: ignore[misc]
            assert "\n" not in message, number
            assert not message or str(path) in message, number
