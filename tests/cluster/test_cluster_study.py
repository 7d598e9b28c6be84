"""What a cluster study says of jobs, and how mistakes in it are answered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simstrag.cluster.runs import ClusterResults
from simstrag.cluster.simulate import simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.errors import InputError
from tests.cluster.test_cluster import SMALL, WORKLOAD
from tests.support.commands import Call

JOB = {"workload": "small", "workers": 2, "samples": 3200}
TEXT = """\
nodes: [{count: 2, gpus: 2, cores: 1, nic_in: 1.0e+9, nic_out: 1.0e+9}]
workloads:
  small:
    scenario: {step: {compute: 0.2, host_share: 0.5}, allreduce: {bytes: 1.0e+6}}
jobs:
  - {workload: small, workers: 2, samples: 3200}
"""


def with_rows(tmp_path: Path, rows: str, **section: Any) -> ClusterStudy:
    (tmp_path / "jobs.csv").write_text(rows, encoding="utf-8")
    changes = section.pop("study", {})
    arrivals = {"arrivals": {"file": "jobs.csv", **section}}
    return ClusterStudy.of(SMALL | {"jobs": []} | arrivals | changes, "mine.yaml", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("workload: small", "workload: smal", "jobs.0.workload names 'smal', which is no"),
        ("workers: 2", "workers: 9", "jobs.0.workers is 9, but the nodes have room"),
        ("nic_in: 1.0e+9", "nic_in: 0", "nodes.0.nic_in is 0: must be more than 0"),
        ("nic_in", "nic_inn", "unknown key 'nodes.0.nic_inn'. Did you mean 'nic_in'?"),
        ("compute", "computer", "workloads.small: unknown key 'step.computer'. Did"),
        ("step:", "trace: slow.csv, step:", "workloads.small: scenario.trace: contention"),
        ("jobs:", "trace: [{time: 0, node: 0, resource: net, kind: delay, value: 1}]\njobs:",
         "trace: delays of messages are not modelled where jobs share nodes"),
        ("step:", "failures: {mtbf: 9, on_fault: restart}, step:",
         "workloads.small: scenario.failures: what the nodes of a failed rank do"),
        ("step:", "learner: {kind: real, task: digits}, step:",
         "workloads.small: scenario.learner.kind: jobs of a cluster train no model"),
        ("jobs:", "placers: [star_]\njobs:", "there is no placer 'star_'; known: packed,"),
        ("jobs:", "policies: [{smal: asgd}]\njobs:", "policies names 'smal', which is no"),
        ("3200}", "3200, policy: bps}", "jobs.0: there is no policy 'bps'; known:"),
        ("3200}", "32000000000000000000}", "jobs.0.samples is 32000000000000000000: must be"),
        ("3200}", "3200, arrival: 1.7e+9}", "jobs.0.arrival is 1700000000.0: must be"),
        ("jobs:", "policies: [{small: asgd}, asgd, {small: asgd}]\njobs:",
         "policies names small=asgd twice"),
        ("jobs:", "placers: [packed, packed]\njobs:", "placers names packed twice"),
        ("jobs:", "trace: [{time: 1, node: 7, resource: gpu, kind: slowdown, value: 2}]\njobs:",
         "trace names node 7, but the study's nodes are 0 to 1; add nodes"),
        ("jobs:", "seeds: [3, 3]\njobs:", "seeds names 3 twice"),
        ("jobs:", "interval: 1e-320\njobs:", "interval is 1e-320: must be 0.001 or more"),
    ],
)  # fmt: skip
def test_a_wrong_study_is_answered_in_one_line(
    call: Call, tmp_path: Path, old: str, new: str, answer: str
) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    code, out, err = call("cluster", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {tmp_path / 'mine.yaml'}: {answer}")


def test_the_command_line_may_give_other_seeds(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT, encoding="utf-8")
    asked = ("cluster", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out"), "-j", "1")
    assert call(*asked, "--seeds", "2", "-q")[0] == 0
    assert [run.seed for run in ClusterResults.read(tmp_path / "out").runs] == [0, 1]


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        ("submitt,gpus,duration\n", "no column submit. Did you mean 'submitt'?"),
        ("submit,gpus,duration\n0,2,x\n", "row 2: duration is 'x', but must be"),
        ("submit,gpus,duration\n0,1.5,9\n", "row 2: gpus is '1.5', but must be a whole"),
        ("submit,gpus,duration\n0,64,9\n", "row 2: gpus is 64, but the nodes have"),
        ("submit,gpus,duration\n0,2,\n", "row 2: give samples or duration"),
        ("submit,gpus,duration,workload\n0,2,9,smal\n", "row 2: workload 'smal' is not in"),
        ("submit,gpus,duration,policy\n0,2,9,asgdd\n", "row 2: there is no policy 'asgdd'"),
        ("submit,gpus,duration,name\n0,2,9,a\n1,2,9,a\n", "row 3: name 'a' is that of row 2"),
        ('submit,gpus,duration\n0,2,"9\n1,2,9\n', "row 2: not CSV: a quote"),
        ("submit,gpus,duration\n", "no row is left"),
        ("submit,gpus,samples\n0,2,1e30\n", "samples is '1e30', but must be a whole"),
        ("submit;gpus;duration\n0,5;2;9\n", "the header is 'submit;gpus;duration'; put commas"),
        ("submit,gpus,duration,polcy\n", "column 'polcy' is not read. Did you mean 'policy'?"),
        ("submit,gpus,duration,Workload\n", "'Workload' is not read. Did you mean 'workload'?"),
        ("submit,submit_s,gpus,duration\n", "column submit stands twice"),
        ("submit,gpus,duration\n0,2,-9\n", "must be a number of seconds above 0"),
        ("submit,gpus,duration\n-1,2,9\n", "must be a number of seconds from 0 on"),
        ("submit,gpus,duration\n1.7e9,2,9\n", "row 2: submit is 1700000000, over 1e+09 seconds"),
        ("submit,gpus,duration\n0,2,1e300\n", "row 2: duration is 1e+300, over 1e+09 seconds"),
    ],
)  # fmt: skip
def test_a_wrong_row_of_arrivals_is_named(tmp_path: Path, rows: str, answer: str) -> None:
    with pytest.raises(InputError, match=re.escape(answer)) as raised:
        with_rows(tmp_path, rows)
    assert str(raised.value).startswith(str(tmp_path / "jobs.csv"))


def test_arrivals_that_are_not_text_or_no_file_are_refused(tmp_path: Path) -> None:
    with_rows(tmp_path, "submit,gpus,duration,name\n0,2,9,a\n")
    (tmp_path / "jobs.csv").write_bytes(b"submit,gpus,duration,name\n0,2,9,M\xfcller\n")
    for file, message in (
        ("jobs.csv", r"jobs\.csv: not text in UTF-8"),
        (".", r"is no file; arrivals\.file names a CSV file"),
    ):
        with pytest.raises(InputError, match=message):
            ClusterStudy.of(SMALL | {"arrivals": {"file": file}}, "mine.yaml", tmp_path)


def test_a_study_of_another_kind_names_its_command(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT, encoding="utf-8")
    (tmp_path / "one.yaml").write_text("workers: 2\n", encoding="utf-8")
    for command, name, right in (
        ("compare", "mine.yaml", "cluster"), ("sweep", "mine.yaml", "cluster"),
        ("cluster", "one.yaml", "compare"),
    ):  # fmt: skip
        _, _, err = call(command, str(tmp_path / name))
        assert f"`simstrag {right} {tmp_path / name}` runs it" in err


def test_a_duration_is_that_of_the_job_alone_under_bsp(tmp_path: Path) -> None:
    """An update of 4 workers takes 0.2 s, and 2 (n-1) hops of 1 ms with 1.5 MB at 1 GB/s."""
    (job,) = with_rows(tmp_path, "submit_s,duration_s,gpus\n7,20.75,4\n").arriving("bsp", seed=0)
    seconds = 0.2 + 6e-3 + 1.5e-3
    assert job.samples == round(20.75 / seconds) * 4 * WORKLOAD["scenario"]["learner"]["batch"]


@pytest.mark.parametrize(
    ("times", "section", "arrivals"),
    [
        ((10, 110, 310), {"first": 100, "seconds": 300, "compress": 10}, [1.0, 21.0]),
        ((1_700_000_005,), {"first": 1_700_000_000}, [5.0]),  # of the epoch
    ],
)
def test_times_of_arrivals_are_compressed_and_begin_at_the_first(
    times: tuple[int, ...], section: dict[str, float], arrivals: list[float], tmp_path: Path
) -> None:
    rows = "submit,gpus,samples\n" + "".join(f"{time},1,100\n" for time in times)
    study = with_rows(tmp_path, rows, **section)
    assert [job.arrival for job in study.arriving("bsp", seed=0)] == arrivals


def test_workloads_are_drawn_by_their_weights_and_by_the_seed(tmp_path: Path) -> None:
    rows = "submit,gpus,samples\n" + "0,1,100\n" * 200
    two = {"workloads": {"small": WORKLOAD, "other": WORKLOAD}}
    study = with_rows(tmp_path, rows, workloads={"small": 3, "other": 1}, study=two)
    drawn = [[job.workload for job in study.arriving("bsp", seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 120 < drawn[0].count("small") < 180


def test_jobs_of_one_workload_have_different_names() -> None:
    study = ClusterStudy.of(SMALL | {"jobs": [JOB, JOB | {"count": 2}]})
    assert [job.name for job in study.arriving("bsp", 0)] == ["small-0", "small-1", "small-2"]


def test_other_columns_of_a_recorded_trace_may_stand_beside_those_that_are_read(
    tmp_path: Path,
) -> None:
    rows = "submit,gpus,duration,job_name,user,vc,gpu_type\n0,2,9,a,b,c,d\n"
    assert [job.name for job in with_rows(tmp_path, rows).arriving("bsp", 0)] == ["job-00000"]


def test_no_limit_may_be_written_as_it_is_printed() -> None:
    """The defaults of the format's table: `.inf`."""
    nodes = [node | {"nic_in": float("inf")} for node in SMALL["nodes"]]
    study = ClusterStudy.of(SMALL | {"nodes": nodes, "horizon": float("inf")})
    assert study.horizon == study.each_node[0].nic_in == float("inf")
    with pytest.raises(InputError, match="horizon is nan"):
        ClusterStudy.of(SMALL | {"horizon": float("nan")})


def test_two_jobs_of_one_name_are_refused(tmp_path: Path) -> None:
    """`small-1` is the second of two jobs without a name, too; and a row's name."""
    named = JOB | {"name": "small-1"}
    with pytest.raises(InputError, match=r"cluster: 2 jobs are named 'small-1'; rename one"):
        ClusterStudy.of(SMALL | {"jobs": [JOB | {"count": 2}, named]})
    rows = "submit,gpus,samples,name\n0,1,8,small-1\n"
    with pytest.raises(InputError, match="2 jobs are named 'small-1'"):
        with_rows(tmp_path, rows, study={"jobs": [named]})


def test_a_workload_may_say_what_its_links_inside_a_node_are() -> None:
    """Which ranks share a node is not known before a job is placed."""
    reduce = {"algorithm": "hierarchical", "bytes": 1e8, "bandwidth": 1e9, "intra_bandwidth": 1e11}
    scenario = {"step": {"compute": 0.1}, "allreduce": reduce, "learner": {"batch": 8}}
    study = ClusterStudy.of({
        "nodes": [{"count": 2, "gpus": 4, "cores": 8}],
        "workloads": {"one": {"scenario": scenario}},
        "jobs": [{"workload": "one", "workers": 4, "samples": 320}],
    })  # fmt: skip
    packed, spread = (simulate_cluster(study, placer=name).jobs[0] for name in ("packed", "spread"))
    assert packed["run_time"] < spread["run_time"]
