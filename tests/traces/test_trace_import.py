"""Imported traces: what each format becomes, what is counted, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ruamel.yaml import YAML

from simstrag.analysis.pages.page_footer import log_period
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.records.profiles import steps_of
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from simstrag.traces.importers import FORMATS, import_trace
from simstrag.traces.of_loads import utilisation
from simstrag.traces.of_operations import bytedance_straggler, kineto
from simstrag.traces.of_pai import alibaba_pai_minibatch
from simstrag.traces.provenance import Labelled, origin_of, scenario_of
from tests.records.test_logs import KINDS
from tests.support.ranks import Ranks, ranks
from tools.make_example_logs import FOLDER

__all__ = ["ranks"]

RECORDS = Path(__file__).parents[1] / "data/records"
WITH_LOGS = [
    *dict.fromkeys([*KINDS.values(), "alibaba-pai-minibatch", "bytedance-straggler", "sacct"])
]
"""Formats of which there is a log here."""


def values(trace: Trace, node: int, resource: str, kind: str) -> list[tuple[float, float]]:
    return trace.series(node, resource, kind)


def said(found: Labelled, kind: str) -> str:
    return " ".join(note for note in found.notes if note.startswith(kind))


# -- labels


def test_the_label_stays_with_the_rows_and_the_account_lies_beside_them(tmp_path: Path) -> None:
    trace = Trace.from_rows([(0, 0, "gpu", "slowdown", 2.0), (9, 0, "gpu", "slowdown", 1.0)])
    for name in ("a.csv", "b.parquet"):
        page = Labelled(trace, "mine", notes=("Assumed: all.",)).write(tmp_path / name)
        assert Trace.read(tmp_path / name).rows == trace.rows
        assert origin_of(tmp_path / name) == "mine"
        assert page == (tmp_path / name).with_suffix(".md")
        assert "**Assumed:** all." in page.read_text()
    trace.write(tmp_path / "c.csv")
    assert origin_of(tmp_path / "c.csv") is None


def test_neither_trace_nor_page_is_written_over(tmp_path: Path) -> None:
    made = Labelled(Trace.from_rows([(0, 0, "gpu", "slowdown", 2.0)]), "mine")
    (tmp_path / "a.md").write_text("notes of mine")
    with pytest.raises(InputError, match=r"a\.md: exists and would be lost"):
        made.write(tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()


# -- alibaba-pai-minibatch

PAI = """,worker,gpu,time,batch_time_norm
0,0,25,1,500
1,1,25,1,400
2,0,25,11,600
3,1,25,11,440
4,1,25,11,480
5,0,25,21,1000
6,1,25,31,400
7,0,25,31,500
8,1,25,41,999
"""


def pai(tmp_path: Path, text: str = PAI, **options: Any) -> Labelled:
    path = tmp_path / "job_9_norm.csv"
    path.write_text(text)
    return alibaba_pai_minibatch(path, **options)


def test_a_pai_cell_is_a_slowdown_against_the_fastest_cell(tmp_path: Path) -> None:
    trace = pai(tmp_path).trace
    assert values(trace, 0, "step", "slowdown") == [(0, 1.25), (10, 1.5), (20, 2.5), (30, 1.25)]
    assert values(trace, 1, "step", "slowdown") == [(0, 1.0), (10, 1.2), (30, 1.0)]


def test_missing_and_repeated_pai_cells_are_counted(tmp_path: Path) -> None:
    found = pai(tmp_path)
    assert said(found, "Missing").startswith("Missing: 1 cells")  # worker 1 at 21 s
    assert said(found, "Dropped").startswith("Dropped: 1 cells given twice")  # 480 counts, not 440
    assert "1 rows outside" in said(found, "Dropped")  # 999 comes after the end of worker 0


def test_a_higher_clean_level_sets_the_cells_below_it_to_one(tmp_path: Path) -> None:
    found = pai(tmp_path, clean=0.5)
    assert values(found.trace, 0, "step", "slowdown")[0] == (0, 1.0)
    assert values(found.trace, 0, "step", "slowdown")[2] == (20, 2.0)
    assert "3 cells below it are set to 1" in said(found, "Derived")


def test_what_holds_when_the_last_worker_begins_is_kept(tmp_path: Path) -> None:
    text = ",worker,gpu,time,batch_time_norm\n" + "\n".join(
        f"0,{w},25,{t},{v}" for w, t, v in [(0, 1, 800), (0, 30, 400), (1, 11, 400), (1, 30, 400)]
    )
    trace = pai(tmp_path, text).trace
    assert values(trace, 0, "step", "slowdown") == [(0, 2.0), (19, 1.0)]


# -- bytedance-straggler


def operations(path: Path) -> Path:
    """Two replicas of two stages, three steps; communication takes what is left."""
    rows = []
    for step, slow in ((3, 5.0), (7, 6.0), (9, 5.0)):
        for replica in (0, 1):
            for stage in (0, 1):
                end = slow if (replica, stage) == (1, 0) else 2.0 + stage
                rows += [(replica, stage, step, "forward-compute", 0.0, 1.0)]
                rows += [(replica, stage, step, "backward-compute", 1.0, end - 1.0)]
                rows += [(replica, stage, step, "optimizer", end, slow + 0.6 - end)]
    names = ["dp_rank", "stage", "step", "optype", "start_ts", "duration"]
    pd.DataFrame(rows, columns=names).to_parquet(path)
    return path


def test_a_replica_is_ready_when_the_last_of_its_stages_is(tmp_path: Path) -> None:
    found = bytedance_straggler(operations(tmp_path / "trace.parquet"))
    assert [v for _, v in values(found.trace, 0, "step", "duration")] == [3.0, 3.0, 3.0]
    assert [v for _, v in values(found.trace, 1, "step", "duration")] == [5.0, 6.0, 5.0]


def test_the_lines_for_a_scenario_give_the_recorded_time_back(tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    found = bytedance_straggler(operations(tmp_path / "trace.parquet"))
    keys = YAML(typ="safe", pure=True).load("\n".join(found.lines("t.csv")))
    scenario = Scenario(**keys | {"trace": found.trace})
    assert simulate(scenario, "bsp").summary["makespan"] == pytest.approx(5.6 + 6.6 + 5.6)


# -- kineto


def event(kind: str, name: str, start: float, seconds: float) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start * 1e6, "dur": seconds * 1e6}


STEPS = [event("user_annotation", f"ProfilerStep#{k}", 10.0 * k, 10.0) for k in (2, 3)]


def test_waiting_inside_a_kernel_of_a_collective_is_not_local_time() -> None:
    found = steps_of(
        [*STEPS, event("kernel", "gemm", 20, 5), event("kernel", "ncclDevKernel_AllReduce", 23, 6),
         event("kernel", "gemm", 30, 9)]
    )  # fmt: skip
    assert found.exposed.tolist() == [pytest.approx(4), 0]  # 23 to 25 is hidden by the gemm
    assert found.span.tolist() == [pytest.approx(10), pytest.approx(10)]


def test_with_kernels_what_the_host_calls_does_not_count() -> None:
    found = steps_of(
        [*STEPS, event("kernel", "gemm", 20, 1), event("kernel", "gemm", 30, 1),
         event("user_annotation", "nccl:all_reduce", 21, 5), event("cpu_op", "aten::mm", 22, 5)]
    )  # fmt: skip
    assert found.exposed.tolist() == [0, 0]


def test_steps_of_the_device_reach_to_the_next_one() -> None:
    device = [event("gpu_user_annotation", f"ProfilerStep#{k}", 12.0 * k, 9.0) for k in (2, 3)]
    found = steps_of([*STEPS, *device, event("kernel", "gemm", 24, 9), event("kernel", "g", 36, 9)])
    assert found.span.tolist() == [pytest.approx(12), pytest.approx(9)]


def test_a_step_that_step_itself_opens_at_the_end_is_left_out() -> None:
    found = steps_of([*STEPS, event("cpu_op", "aten::mm", 21, 5)])
    assert found.number.tolist() == [2]


def chrome(path: Path, rank: int | None, slow: float = 1.0) -> Path:
    events = [*STEPS]
    for k in (2, 3):
        events += [event("kernel", "gemm", 10.0 * k, 4 * slow)]
        events += [event("kernel", "nccl", 10.0 * k + 4 * slow, 9.5 - 4 * slow)]
    data = {"traceEvents": events, "distributedInfo": {} if rank is None else {"rank": rank}}
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


def test_the_rank_is_the_one_that_the_file_names(tmp_path: Path) -> None:
    paths = [chrome(tmp_path / "a.json.gz", 1, slow=2.0), chrome(tmp_path / "b.json.gz", 0)]
    trace = kineto(*paths).trace
    assert [v for _, v in values(trace, 1, "step", "duration")] == pytest.approx([8.5, 8.5])
    assert [v for _, v in values(trace, 0, "step", "duration")] == pytest.approx([4.5, 4.5])


def test_without_a_rank_the_order_of_files_is_it_and_that_is_said(tmp_path: Path) -> None:
    paths = [chrome(tmp_path / "a.json.gz", None, slow=2.0), chrome(tmp_path / "b.json.gz", None)]
    found = kineto(*paths)
    assert [v for _, v in values(found.trace, 0, "step", "duration")] == pytest.approx([8.5, 8.5])
    assert "2 files name no rank" in said(found, "Assumed")


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [chrome(tmp_path / "a.json.gz", 1), chrome(tmp_path / "b.json.gz", 1)]
    with pytest.raises(InputError, match=r"b\.json\.gz: is of rank 1, like .*a\.json\.gz"):
        kineto(*paths)


LATE = 0.5
"""Seconds by which rank 1 is late in each step: long beside what a busy machine adds to one."""


def profiled(rank: int, world: int, folder: Path, how: str) -> None:
    """Three steps of a small model under PyTorch's profiler, whose file each rank leaves."""
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")  # what the profiler says of itself
    model = torch.nn.Linear(64, 64)
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, schedule=schedule) as profile:
        for _ in range(4):
            time.sleep(LATE * rank)  # the input of rank 1 is slow, and rank 0 waits for it
            model.zero_grad()
            model(torch.ones(8, 64)).sum().backward()
            if how != "ddp":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            profile.step()
    profile.export_chrome_trace(f"{folder}/rank{rank}.json")
    warnings.simplefilter("error")


@pytest.mark.parametrize("how", ["ddp", pytest.param("by hand", marks=pytest.mark.thorough)])
def test_a_real_profile_tells_the_slow_rank_from_the_one_that_waits(
    how: str, tmp_path: Path, ranks: Ranks
) -> None:
    pytest.importorskip("torch")
    ranks.run(profiled, 2, tmp_path, how)
    found = kineto(tmp_path / "rank0.json", tmp_path / "rank1.json")
    fast, slow = (sorted(v for _, v in values(found.trace, k, "step", "duration")) for k in (0, 1))
    assert len(fast) == len(slow) == 3
    assert min(slow) > LATE  # it slept for so long in each step
    assert fast[1] < LATE / 2  # the median: its steps took as long, but it was waiting
    assert [line.partition(":")[0] for line in found.scenario] == [
        "allreduce",
        "samples",
        "learner",
    ]


# -- utilisation

LOAD = """Timestamp,Hostname,GPU util (%),cpu_util,note
2026-01-31T10:00:00+01:00,gpu-b,80,10,x
2026-01-31T10:00:00+01:00,gpu-a,0,20,
2026-01-31T10:01:00+01:00,gpu-b,,30,
2026-01-31T10:01:30+01:00,gpu-a,100,40,
"""


def load(tmp_path: Path, text: str = LOAD, **options: Any) -> Labelled:
    path = tmp_path / "load.csv"
    path.write_text(text)
    return utilisation(path, **options)


def test_known_names_percent_and_dates_become_utilisation_from_zero_on(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert values(found.trace, 0, "gpu", "utilisation") == [(0.0, 0.8)]
    assert values(found.trace, 0, "host", "utilisation") == [(0.0, 0.1), (60.0, 0.3)]
    assert values(found.trace, 1, "gpu", "utilisation") == [(0.0, 0.0), (90.0, 1.0)]
    assert found.trace.names == {0: "gpu-b", 1: "gpu-a"}  # in order of appearance
    assert said(found, "Missing").startswith("Missing: 1 empty cells")


def test_columns_of_other_names_are_told(tmp_path: Path) -> None:
    text = "when,who,DCGM_FI_DEV_GPU_UTIL,eth0\n5,7,50,25\n9,3,0,0\n"
    found = load(tmp_path, text, columns={"time": "when", "node": "who", "net": "eth0"})
    assert values(found.trace, 7, "gpu", "utilisation") == [(0.0, 0.5)]  # numbers stay
    assert values(found.trace, 3, "net", "utilisation") == [(4.0, 0.0)]


def test_fractions_are_taken_as_they_are(tmp_path: Path) -> None:
    found = load(tmp_path, "time,node,gpu\n0,0,0.5\n", fraction=True)
    assert values(found.trace, 0, "gpu", "utilisation") == [(0.0, 0.5)]


def test_the_jobs_own_share_is_subtracted_and_nothing_is_negative(tmp_path: Path) -> None:
    found = load(tmp_path, own={"gpu": 0.5})
    assert values(found.trace, 0, "gpu", "utilisation") == [(0.0, pytest.approx(0.3))]
    assert values(found.trace, 1, "gpu", "utilisation") == [(0.0, 0.0), (90.0, 0.5)]
    assert values(found.trace, 0, "host", "utilisation")[0] == (0.0, 0.1)
    assert "1 values below it are 0" in said(found, "Assumed")


def test_values_that_look_like_fractions_are_called_doubtful(tmp_path: Path) -> None:
    assert said(load(tmp_path, "time,node,gpu\n0,0,0.5\n"), "Doubtful")
    assert not said(load(tmp_path), "Doubtful")


# -- mistakes

WRONG: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "a format that is none": ("kinetto", "", {}, "Did you mean 'kineto'?; known: alibaba"),
    "an option of another format": ("kineto", "{}", {"clean": 0.1}, "clean is no option of kineto"),
    "an empty sheet": ("utilisation", "", {}, "the file is empty"),
    "a sheet without rows": ("utilisation", "time,node,gpu\n", {}, "no rows below the header"),
    "another's sheet": ("alibaba-pai-minibatch", LOAD, {}, "no column 'worker'"),
    "a log": ("alibaba-pai-minibatch", "# nThread 1 nGpus 2\n# x, y\n", {}, "row 2: 2 fields"),
    "a negative time": (
        "alibaba-pai-minibatch", PAI.replace("25,11", "25,-11"), {},
        "row 4: time '-11' is negative",
    ),
    "no time in common": (
        "alibaba-pai-minibatch", "worker,time,batch_time_norm\n0,1,5\n0,2,5\n1,3,5\n1,4,5\n", {},
        "no time in common",
    ),
    "a word for a number": ("utilisation", "time,node,gpu\n0,0,high\n", {}, "row 2: gpu 'high'"),
    "more than all": (
        "utilisation", "time,node,gpu\n0,0,101\n", {},
        "row 2: gpu '101' must lie between 0 and 100",
    ),
    "percent as fractions": (
        "utilisation", "time,node,gpu\n0,0,50\n", {"fraction": True}, "percent need no --fraction",
    ),
    "a time of day": ("utilisation", "time,node,gpu\n10 o'clock,0,5\n", {}, "nor a date such as"),
    "two cards of a node": (
        "utilisation", "time,node,gpu\n0,a,5\n0,a,6\n", {}, "several cards need a node each",
    ),
    "two columns of one meaning": (
        "utilisation", "time,node,note,cpu,CPU %\n0,a,b,5,6\n", {}, "say which: --column host=cpu",
    ),
    "no column of load": ("utilisation", "time,node,temp\n0,a,5\n", {}, "gpu=temp, host=temp"),
    "a column that is not there": (
        "utilisation", LOAD, {"columns": {"gpu": "GPU utl (%)"}}, "Did you mean 'GPU util (%)'?",
    ),
    "a meaning that is none": (
        "utilisation", LOAD, {"columns": {"gpus": "x"}}, "Did you mean 'gpu'",
    ),
    "a share of nothing": (
        "utilisation", LOAD, {"own": {"net": 0.5}}, "the file has gpu, host only",
    ),
    "a share in percent": ("utilisation", LOAD, {"own": {"gpu": 60.0}}, "a share from 0 to 1"),
    "no JSON": ("kineto", "NCCL INFO ...", {}, "not a PyTorch profile (JSON): "),
    "another's JSON": ("kineto", "[1]", {}, "no list 'traceEvents'"),
    "a trace without steps": ("kineto", '{"traceEvents": []}', {}, "no annotation ProfilerStep#k"),
    "no parquet": ("bytedance-straggler", "time,node\n0,1\n", {}, "cannot be read as parquet"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_file_is_refused_in_one_line(mistake: str, tmp_path: Path) -> None:
    name, text, options, message = WRONG[mistake]
    (tmp_path / "given").write_text(text)
    with pytest.raises(InputError) as caught:
        import_trace(name, [tmp_path / "given"], **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"step": [1]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no column 'dp_rank'"):
        bytedance_straggler(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_not_there_is_missed_by_every_importer(name: str, tmp_path: Path) -> None:
    (tmp_path / "load.csv").write_text("")
    with pytest.raises(InputError, match=r"Did you mean 'load\.csv'\?"):
        import_trace(name, [tmp_path / "laod.csv"])


def test_a_second_file_is_taken_only_where_it_makes_sense(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="utilisation takes one file"):
        import_trace("utilisation", [tmp_path / "a.csv", tmp_path / "b.csv"])


# -- what is printed runs


def kineto_files(tmp_path: Path) -> list[str]:
    """Ranks 0 and 2, two steps of 2 s of computing each, and 1 s of a collective."""
    names = []
    for rank in (0, 2):
        events = [
            {"ph": "X", "cat": cat, "name": name, "ts": (4 * k + at) * 1e6, "dur": seconds * 1e6}
            for k in range(2)
            for cat, name, at, seconds in (
                ("user_annotation", f"ProfilerStep#{k}", 0, 4),
                ("kernel", "gemm", 0, 2),
                ("kernel", "ncclAllReduce", 2, 1),
            )
        ]
        data = {"traceEvents": events, "distributedInfo": {"rank": rank}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(data))
        names.append(f"rank{rank}.json")
    return names


def source(name: str, tmp_path: Path) -> list[str]:
    """Files of a format, in `tmp_path`."""
    if name == "kineto":
        return kineto_files(tmp_path)
    if name == "bytedance-straggler":
        return [operations(tmp_path / "trace.parquet").name]
    if name == "alibaba-pai-minibatch":
        (tmp_path / "job.csv").write_text(PAI)
        return ["job.csv"]
    if name == "utilisation":
        (tmp_path / "load.csv").write_text(LOAD)
        return ["load.csv"]
    if name == "sacct":
        (tmp_path / "sacct.txt").write_bytes((RECORDS / "sacct.txt").read_bytes())
        return ["sacct.txt"]
    log = next(log for log, kind in KINDS.items() if kind == name)
    logs = [path.name for path in sorted(FOLDER.glob(log.replace("gpu01-tag", "*-tag")))]
    for each in logs:
        (tmp_path / each).write_bytes((FOLDER / each).read_bytes())
    return logs


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("name", WITH_LOGS)
def test_what_an_importer_prints_and_writes_runs_unchanged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    files = source(name, tmp_path)
    assert cli("trace", "import", name, *files, "--out", "sub/t.csv") == 0
    printed, page = capsys.readouterr().out, (tmp_path / "sub" / "t.md").read_text()
    blocks = [
        re.search(r"that runs as it is:\n+((?: +.*\n)+)", text, re.I) for text in (printed, page)
    ]
    if name in ("prometheus", "utilisation"):
        assert blocks == [None, None]
        assert "needs a profile with a response of gpu" in " ".join(printed.split())
        return
    for block, folder in zip(blocks, ("", "sub"), strict=True):
        assert block is not None
        (tmp_path / folder / "s.yaml").write_text(block[1])
        scenario = Scenario.read(tmp_path / folder / "s.yaml")
        assert simulate(scenario, "bsp").summary["makespan"] > 0
    assert cli("compare", "s.yaml", "--seeds", "1", "-q") == 0


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("name", [name for name in WITH_LOGS if name not in KINDS.values()])
def test_the_command_after_an_import_runs_and_names_the_comparison(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes the numbers that the import printed; those that it assumed are placeholders."""
    monkeypatch.chdir(tmp_path)
    assert cli("trace", "import", name, *source(name, tmp_path), "--out", "a t.csv") == 0
    words = [""]
    while words[0] != "compare":  # an import without a response names another import
        last = capsys.readouterr().out.splitlines()[-1]
        program, *words = shlex.split(last.removeprefix("next: "))
        assert program == "simstrag"
        assert words[0] == "compare" or cli(*words) == 0
    case = Scenario.read(words[-1])
    (page,) = (p for p in tmp_path.glob("*.md") if scenario_of(p.with_suffix(".csv")))
    stated = YAML(typ="safe").load("\n".join(scenario_of(page.with_suffix(".csv"))))
    assert case.learner.batch == stated["learner"]["batch"]
    assert case.step is None or case.step.compute == stated["step"]["compute"]
    assert cli("compare", words[-1], "--seeds", "1", "-p", "bsp", "-p", "ssp", "-q") == 0


WHOLE = {
    "alibaba-pai-minibatch": "worker,time,batch_time_norm\n0,1,5\n1,1,5\n0,9,5\n1,9,5\n",
    "utilisation": "time,node,gpu\n0,a,70\n9,a,60\n",
}
"""Tables without gaps, repetitions and cells out of range."""


@pytest.mark.parametrize("name", WITH_LOGS)
def test_what_did_not_occur_is_not_counted_in_a_note(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = source(name, tmp_path)
    if name in WHOLE:
        Path(files[0]).write_text(WHOLE[name])
    own = {"own": {"gpu": 0.5}} if name == "utilisation" else {}
    notes = import_trace(name, files, **own).notes
    assert len(notes) >= 3
    assert not re.search(r"\b0 (cells|rows|steps|files|values|empty)", " ".join(notes))


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("name", ["bytedance-straggler", "kineto", "alibaba-pai-minibatch"])
def test_init_takes_the_tail_that_the_importer_wrote(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail of ByteDance's steps is 0.6 s, of 2 replicas; of the profiles' collectives 1 s.

    Without one, 100 MB at 10 Gbit are a placeholder: 80 ms and two hops.
    """
    monkeypatch.chdir(tmp_path)
    assert cli("trace", "import", name, *source(name, tmp_path), "--out", "t.csv", "-q") == 0
    assert cli("init", "t.csv", "-q") == 0
    scenario = Scenario.read("scenario.yaml")
    tail = scenario.inputs.allreduce.seconds([1, 1])
    assert tail == pytest.approx({"bytedance-straggler": 0.6, "kineto": 1.0}.get(name, 0.0801))
    assert ("allreduce.bytes" in scenario.placeholders) == (name == "alibaba-pai-minibatch")
    assert (scenario.inputs.step.noise is None) == (name != "alibaba-pai-minibatch")
    assert cli("compare", "scenario.yaml", "--seeds", "1", "--no-sensitivity", "-q") == 0


def cli(*arguments: str) -> int:
    """The exit code of a command."""
    from simstrag.cli import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["simstrag", *arguments])
        patch.setattr("sys.path", [*sys.path])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(str(ended.value.code))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "file",
    ["steps.csv", "episodes.csv", "utilisation.csv", "prometheus.json", "wandb-history.jsonl"],
)
def test_a_log_with_dates_says_when_it_was(file: str, suffix: str, tmp_path: Path) -> None:
    found = import_trace(re.split(r"\W", file)[0], [FOLDER / file])
    found.write(tmp_path / f"trace.{suffix}")
    read = Trace.read(tmp_path / f"trace.{suffix}")
    assert read.period == found.trace.period
    assert log_period(read).startswith("The log is from 2026-01-31 09:00:")
    assert log_period(read).endswith(" (UTC).")
    assert log_period(read.shift(1.0)) == log_period(read)


def test_the_zone_is_that_of_the_log_and_without_dates_nothing_is_said(tmp_path: Path) -> None:
    assert log_period(load(tmp_path).trace) == (
        "The log is from 2026-01-31 10:00:00 to 10:01:30 (UTC+01:00)."
    )
    bare = load(tmp_path, "time,node,gpu_util\n0,0,10\n5,0,50\n").trace
    assert log_period(bare) == log_period(None) == ""
