"""`simstrag sweep` and `simstrag schema`: what a user types, what comes back, what is left."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simstrag import Sweep, sweep
from simstrag.cli.json_schema import schema_of
from simstrag.cli.progress import Count
from tests.experiments.test_sweep import RUNS, STUDY, TABLES, tables
from tests.processes.test_processes import COMMAND, alive, until
from tests.support.commands import Call, refusal

Done = subprocess.CompletedProcess[str]
LONG = STUDY | {
    "scenario": {"samples": 40_000_000, "step": {"compute": 0.1, "cv": 0.1}},
    "policies": ["asgd"],
    "seeds": 3,
}
"""Runs of half a second or so."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "study.yaml").write_text(json.dumps(STUDY))
    (tmp_path / "long.yaml").write_text(json.dumps(LONG))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Done:
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def started(*arguments: str) -> subprocess.Popen[str]:
    """A sweep of the long study in a session of its own, of which some runs are finished."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "sweep", "long.yaml", "--out", "s", *arguments],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert until(lambda: len(list(Path("s").glob("runs/*.json"))) >= 2)
    return process


def test_it_says_how_many_are_finished_and_where_the_results_are(folder: Path, call: Call) -> None:
    said = f"{RUNS} of {RUNS} runs are finished, 0 failed\nresults: reports/study/results.parquet\n"
    page = "report: reports/study/report.html\n"
    assert call("sweep", "study.yaml", "--jobs", "1") == (0, said + page, "")
    assert call("sweep", "study.yaml", "--status") == (0, said, "")
    quiet = call("sweep", "study.yaml", "--jobs", "1", "--quiet")
    assert quiet == (0, "reports/study/results.parquet\n", "")


def test_shards_and_collecting_make_the_tables_of_the_whole(folder: Path, call: Call) -> None:
    asked = ("sweep", "study.yaml", "--jobs", "1", "--out")
    assert call(*asked, "parts", "--shard", "2/2")[1] == (
        f"{RUNS // 2} of {RUNS // 2} runs are finished, 0 failed\nresults: parts\n"
    )
    code, out, _ = call("sweep", "study.yaml", "--collect", "--out", "parts")
    assert code == 1
    assert out.startswith(f"{RUNS // 2} of {RUNS} runs are finished, 0 failed\n")
    assert call(*asked, "parts", "--shard", "1/2")[0] == 0
    call(*asked, "whole")
    assert tables(folder / "parts") == tables(folder / "whole")


def test_what_failed_is_told_with_its_message_and_exit_code_1(folder: Path, call: Call) -> None:
    study = STUDY | {"policies": ["bsp", "backup:b=4"], "seeds": 1}
    (folder / "study.yaml").write_text(json.dumps(study))
    code, out, err = call("sweep", "study.yaml", "--jobs", "1")
    assert (code, err) == (1, "")
    assert out.startswith("6 of 8 runs are finished, 2 failed\nfailed: point 0, backup:b=4, seed 0")
    document = json.loads(call("sweep", "study.yaml", "--jobs", "1", "--json")[1])
    assert (document["runs"], document["finished"], len(document["failed"])) == (8, 6, 2)
    assert document["tables"] == [f"reports/study/{name}" for name in TABLES]


def test_a_gain_that_one_point_does_not_state_is_told_beside_the_others(
    folder: Path, call: Call
) -> None:
    grid = {"step.amp_ratio": [1.5, None]}
    study = STUDY | {"policies": ["bsp", "amp_all"], "grid": grid, "seeds": 1}
    (folder / "study.yaml").write_text(json.dumps(study))
    code, out, err = call("sweep", "study.yaml", "--jobs", "1")
    assert (code, err) == (1, "")
    assert out.startswith(
        "3 of 4 runs are finished, 1 failed\nfailed: point 1, amp_all, seed 0: policy amp_all uses "
        "reduced precision, but its gain is unknown: give step.amp_ratio or a profile that "
        "measured it, or leave amp_all out\n"
    )


def test_a_study_of_fewer_seeds_continues_with_all(folder: Path, call: Call) -> None:
    asked = ("sweep", "study.yaml", "--jobs", "1", "--out")
    shown = call(*asked, "few", "--seeds", "1")[1]
    assert shown.startswith(f"{RUNS // 2} of {RUNS // 2} runs are finished, 0 failed\n")
    assert set(Sweep.read("few").frame()["seed"]) == {0}
    first = {path: path.stat().st_mtime_ns for path in Path("few").glob("runs/*.json")}
    call(*asked, "few")
    assert {path: path.stat().st_mtime_ns for path in first} == first
    call(*asked, "whole")
    assert tables(folder / "few") == tables(folder / "whole")


@pytest.mark.parametrize("asked", ["--status", "--collect"])
@pytest.mark.parametrize(
    "option",
    [
        ("--shard", "1/2"),
        ("--seeds", "2"),
        ("--backend", "processes"),
        ("--jobs", "1"),
        ("--address", "here:1"),
    ],
)
def test_who_runs_nothing_is_told_of_an_option_that_is_for_runs(
    folder: Path, call: Call, asked: str, option: tuple[str, str]
) -> None:
    said = f"error: {' '.join(option)}: {asked} runs nothing and shows all parts; leave it out\n"
    assert call("sweep", "study.yaml", asked, *option) == (2, "", said)


def test_a_folder_tells_how_far_it_is_without_the_study(folder: Path, call: Call) -> None:
    sweep(STUDY, "s", jobs=1, shard=(1, 2))
    (folder / "study.yaml").unlink()
    for asked, code in (("--status", 1), ("--collect", 1)):
        found, out, err = call("sweep", "study.yaml", asked, "--out", "s")
        assert (found, err) == (code, "")
        assert out.startswith(f"{RUNS // 2} of {RUNS} runs are finished, 0 failed\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("study.yml",), "study.yml: no such file or folder. Did you mean 'study.yaml'?"),
        (("study.yaml", "--shard", "1"), "--shard 1: write i/k, such as 1/16 for the first of 16"),
        (("study.yaml", "--shard", "3/2"), "shard 3/2: must be 1/2 to 2/2"),
        (("study.yaml", "--backend", "das"), "there is no backend 'das'; known: processes, dask, "),
        (("study.yaml", "--backend", "dask"), "backend dask needs the address of a cluster, such"),
        (
            ("study.yaml", "--address", "here:1"),
            "address here:1: only clusters have an addr",
        ),
        (
            ("study.yaml", "--backend", "dask", "--address", "127.0.0.1:9"),
            "no dask cluster at 127.0.0.1:9: [Errno",
        ),
        (
            ("study.yaml", "--backend", "ray", "--address", "nowhere"),
            "no ray cluster at nowhere: write it as host:port",
        ),
        (("study.yaml", "--backend", "ray", "--jobs", "2"), "backend ray uses all workers of its"),
        (("study.yml", "--status"), "study.yml: no such file or folder. Did you mean 'study.yaml'"),
        (("study.yaml", "--status"), "reports/study: not a sweep: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(
    folder: Path, call: Call, arguments: tuple[str, ...], message: str
) -> None:
    assert refusal(call("sweep", *arguments)).startswith(f"error: {message}")


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_package_that_is_missing_is_named_with_what_brings_it(
    folder: Path, call: Call, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def find_no_cluster(name: str, *package: str) -> Any:
        return None if name in ("distributed", "ray") else find(name, *package)

    monkeypatch.setattr("importlib.util.find_spec", find_no_cluster)
    code, _, err = call("sweep", "study.yaml", "--backend", backend, "--address", "here:1")
    assert code == 2
    assert err.endswith(f"pip install 'simstrag[{backend}]'\n")


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_who_is_killed_leaves_no_process_loses_no_run_and_goes_on(folder: Path) -> None:
    process = started("--jobs", "2")
    process.kill()
    process.communicate(timeout=300)
    assert until(lambda: not alive(process.pid)), alive(process.pid)
    kept = {path: path.stat().st_mtime_ns for path in Path("s").glob("runs/*.json")}
    assert 2 <= len(Sweep.read("s").outcomes()) == len(kept) < 12
    assert run("sweep", "long.yaml", "--out", "s").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert run("sweep", "long.yaml", "--out", "whole").returncode == 0
    assert tables(Path("s")) == tables(Path("whole"))


def test_ctrl_c_is_answered_in_one_line_that_says_what_is_kept(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt_third(show: Count, done: int, total: int, item: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Count, "__call__", interrupt_third)
    said = f"3 of {RUNS} runs are finished and kept in s; the same command goes on from there"
    asked = ("sweep", "study.yaml", "--jobs", "1", "--out", "s")
    assert call(*asked) == (130, "", f"interrupted; {said}\n")


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_all_processes_is_answered_in_one_line_that_says_what_is_kept(
    folder: Path, number: int, code: int
) -> None:
    process = started("--jobs", "2")
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=300)
    kept = len(Sweep.read("s").outcomes())
    said = f"{kept} of 12 runs are finished and kept in s; the same command goes on from there"
    assert (process.returncode, err) == (code, f"interrupted; {said}\n")
    assert until(lambda: not alive(process.pid)), alive(process.pid)


@pytest.mark.parametrize("what", ["scenario", "study"])
def test_the_schema_is_printed(folder: Path, call: Call, what: str) -> None:
    assert json.loads(call("schema", what)[1]) == schema_of(what)


def test_a_study_and_a_scenario_are_recognised_in_each_other_s_place(
    folder: Path, call: Call
) -> None:
    code, _, err = call("compare", "study.yaml")
    assert (code, err.strip()) == (
        2, "error: study.yaml: is a study, not a scenario; `simstrag sweep study.yaml` runs it",
    )  # fmt: skip
    (folder / "case.yaml").write_text(json.dumps({"workers": 2, "samples": 100}))
    code, _, err = call("sweep", "case.yaml")
    assert (code, err.strip()) == (
        2, "error: case.yaml: is a scenario, not a study; `simstrag compare case.yaml` runs it",
    )  # fmt: skip
