"""Sweeps on one machine: every run kept, none done twice, the same tables however they came."""

from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import simstrag
from simstrag import Sweep, sweep
from simstrag.experiments.study import Study
from simstrag.processes.pool import InProcess
from tests.support.refusals import message_of

CASE: dict[str, Any] = {
    "workers": 4,
    "samples": 5120,
    "target_progress": 3,
    "step": {"compute": 0.1, "amp_ratio": 1.6, "cv": 0.03},
}
STUDY: dict[str, Any] = {
    "scenario": CASE,
    "grid": {"workers": [4, 8], "server.service": [0.001, 0.01]},
    "policies": ["bsp", "asgd"],
    "seeds": 2,
}
RUNS = 2 * 2 * 2 * 2
TABLES = ("results.csv", "results.parquet")
MORTAL = """
import os, signal
from dataclasses import dataclass
from pathlib import Path

import simstrag


@dataclass(frozen=True)
class Mortal:
    times: int = 1

    def plan(self, view):
        for life in range(self.times if os.getpid() != int(os.environ["SPARED"]) else 0):
            try:
                Path(os.environ["GRAVES"], str(life)).open("x").close()
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        return simstrag.Plan()


class Breaks:
    def plan(self, view):
        return view.nope
"""
"""Policies whose process is killed, so many times in all, and one with a mistake.

The process of the tests is spared, where a comparison looks at the first plan.
"""


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `mortal.py` has policies, and where they note that they died."""
    (tmp_path / "mortal.py").write_text(MORTAL)
    (tmp_path / "graves").mkdir()
    monkeypatch.setenv("GRAVES", str(tmp_path / "graves"))
    monkeypatch.setenv("SPARED", str(os.getpid()))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nothing interrupted, in one process."""
    folder = tmp_path_factory.mktemp("whole")
    sweep(STUDY, folder, jobs=1)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "copied")


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


def stopped_after(count: int, folder: Path, **options: Any) -> None:
    """A sweep that Ctrl-C ends after so many runs."""

    def watch(done: int, total: int, what: str) -> None:
        if done == count:
            raise KeyboardInterrupt

    kept = rf"^{count} of {RUNS} runs are finished and kept in "
    with pytest.raises(KeyboardInterrupt, match=kept):
        sweep(STUDY, folder, on_progress=watch, **options)


def computed_by(folder: Path, study: dict[str, Any] = STUDY, **options: Any) -> int:
    """How many runs a sweep computes, of those it does not find."""
    said: list[str] = []
    sweep(study, folder, jobs=1, on_progress=lambda *given: said.append(given[2]), **options)
    return len([what for what in said if what not in ("reading", "found finished")])


def test_there_is_one_row_for_each_run_in_the_order_of_the_study(whole: Path) -> None:
    table = Sweep.read(whole).frame()
    assert list(table.columns[:7]) == [
        "point", "workers", "server.service", "policy", "seed", "error", "architecture",
    ]  # fmt: skip
    assert len(table) == RUNS
    assert [tuple(row) for row in table.iloc[:3, :5].to_numpy()] == [
        (0, 4, 0.001, "bsp", 0), (0, 4, 0.001, "bsp", 1), (0, 4, 0.001, "asgd", 0),
    ]  # fmt: skip
    assert table["error"].isna().all()


def test_a_row_is_what_the_run_alone_would_say(whole: Path) -> None:
    row = Sweep.read(whole).frame().iloc[-1]
    scenario = simstrag.Scenario.of(CASE | {"workers": 8, "server": {"service": 0.01}})
    summary = simstrag.simulate(scenario, "asgd", 1).summary
    for name in ("makespan", "time_to_target", "mean_staleness", "goodput"):
        assert row[name] == summary[name]


def test_the_tables_are_what_the_frame_is(whole: Path) -> None:
    table = Sweep.read(whole).frame()
    pd.testing.assert_frame_equal(pd.read_parquet(whole / "results.parquet"), table)
    assert pd.read_csv(whole / "results.csv")["makespan"].tolist() == table["makespan"].tolist()


def test_processes_make_the_same_tables_to_the_last_byte(whole: Path, tmp_path: Path) -> None:
    sweep(STUDY, tmp_path / "s", jobs=2)
    assert tables(tmp_path / "s") == tables(whole)


def test_what_is_finished_can_be_read_while_it_runs(tmp_path: Path) -> None:
    seen = []

    def watch(done: int, total: int, what: str) -> None:
        if done:
            seen.append((done, total, len(Sweep.read(tmp_path).frame())))

    sweep(STUDY, tmp_path, jobs=1, on_progress=watch)
    assert seen == [(done, RUNS, done) for done in range(1, RUNS + 1)]


def test_the_tables_are_made_anew_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simstrag.experiments.kept_runs.PAUSE", 0.0)
    monkeypatch.setattr("simstrag.experiments.kept_runs.SHARE", 0)
    stopped_after(4, tmp_path, jobs=1)
    assert len(pd.read_parquet(tmp_path / "results.parquet")) == 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_who_was_interrupted_goes_on_and_makes_the_same_tables(
    whole: Path, tmp_path: Path, jobs: int
) -> None:
    stopped_after(5, tmp_path, jobs=jobs)
    assert computed_by(tmp_path) == RUNS - 5
    assert tables(tmp_path) == tables(whole)


@pytest.mark.parametrize(
    ("changes", "new"),
    [
        ({}, 0),
        ({"seeds": 3}, 8),
        ({"seeds": 1}, 0),
        ({"policies": ["asgd", "bsp", "ssp"]}, 8),
        ({"grid": {"server.service": [0.01, 0.02, 0.001], "workers": [8, 4]}}, 8),
        ({"scenario": CASE | {"samples": 10240}}, RUNS),
    ],
)
def test_a_study_that_was_changed_finds_the_runs_that_are_the_same(
    copied: Path, tmp_path: Path, changes: dict[str, Any], new: int
) -> None:
    assert computed_by(copied, STUDY | changes) == new
    sweep(STUDY | changes, tmp_path / "t", jobs=1)
    assert tables(copied) == tables(tmp_path / "t")


@pytest.mark.parametrize("shard", [None, (1, 2)])
def test_a_sweep_that_goes_on_keeps_who_began_it(
    tmp_path: Path, shard: tuple[int, int] | None
) -> None:
    marker, made = tmp_path / "sweep.json", {"job": "first", "by": "a", "at": "2026-01-01"}
    sweep(STUDY, tmp_path, jobs=1, shard=(2, 2))
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"made": made}))
    assert sweep(STUDY, tmp_path, jobs=1, shard=shard).made == made


def test_a_run_that_cannot_be_read_is_done_again(whole: Path, copied: Path) -> None:
    next((copied / "runs").iterdir()).write_text('{"summary": ')
    assert computed_by(copied) == 1
    assert tables(copied) == tables(whole)


def test_a_run_says_what_it_can_be_made_again_from(whole: Path) -> None:
    run = Sweep.read(whole).runs[-1]
    kept = json.loads((whole / "runs" / f"{run.key}.json").read_text())
    assert set(kept) == {"policy", "seed", "error", "summary", "provenance", "warnings"}
    study = Study.of(json.loads((whole / "sweep.json").read_text())["study"])
    scenario = study.points()[run.point].scenario
    again = simstrag.simulate(scenario, kept["policy"], kept["seed"]).summary
    assert again["makespan"] == kept["summary"]["makespan"]


def test_a_run_is_a_few_kilobytes_however_long_the_trace_in_the_scenario_is(tmp_path: Path) -> None:
    rows = [
        {"time": 0.1 * k, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 1 + k % 2}
        for k in range(1000)
    ]
    (tmp_path / "case.yaml").write_text(json.dumps(CASE | {"trace": rows}))
    (tmp_path / "study.yaml").write_text("scenario: case.yaml\npolicies: [bsp]\n")
    sweep(tmp_path / "study.yaml", tmp_path / "s", jobs=1)
    (kept,) = (tmp_path / "s" / "runs").iterdir()
    assert kept.stat().st_size < 5000
    stated = json.loads((tmp_path / "s" / "sweep.json").read_text())["study"]["scenario"]
    assert stated["trace"] == rows


@pytest.mark.parametrize(
    "grid", [{"workers": [4, 4.0]}, {"server": [None, {}], "server.push": [1]}]
)
def test_points_that_are_the_same_scenario_are_refused(
    tmp_path: Path, grid: dict[str, Any]
) -> None:
    said = message_of(lambda: sweep(STUDY | {"grid": grid}, tmp_path / "s", jobs=1))
    same = r"grid: point 0 \(.*\) and point 1 \(.*\) are the same scenario; name it once"
    assert re.fullmatch(same, said)
    assert not (tmp_path / "s").exists()


def test_one_that_fails_is_told_and_the_others_go_on_and_it_is_tried_again(mortal: Path) -> None:
    study = STUDY | {"policies": ["bsp", "backup:b=4", "mortal:Breaks"], "seeds": 1}
    done = sweep(study, mortal / "s", jobs=1)
    table = done.frame()
    assert len(table) == 12
    errors = table.set_index(["workers", "policy"])["error"]
    assert errors.xs("bsp", level="policy").isna().all()
    assert errors[4, "backup:b=4"].str.contains("b=4").all()
    assert errors[8, "backup:b=4"].isna().all()
    assert errors[8, "mortal:Breaks"].str.contains("AttributeError").all()
    assert {run.policy for run in done.failed} == {"backup:b=4", "mortal:Breaks"}
    assert computed_by(mortal / "s", study) == len(done.failed) == 2 + 4


@pytest.mark.parametrize("policy", ["amp_all", "korel:W=5"])
def test_a_point_that_states_no_gain_fails_for_the_policies_that_need_it_alone(
    tmp_path: Path, policy: str
) -> None:
    """No rank is slowed, so korel would never have asked for reduced precision."""
    study = STUDY | {"policies": ["bsp", policy], "grid": {"step.amp_ratio": [1.5, None]}}
    done = sweep(study, tmp_path, jobs=1)
    assert {(run.point, run.policy) for run in done.failed} == {(1, policy)}
    assert set(done.failed.values()) == {
        f"policy {policy} uses reduced precision, but its gain is unknown: give step.amp_ratio or "
        f"a profile that measured it, or leave {policy} out"
    }
    assert len(done.frame()) == 2 * 2 * 2


def test_a_process_that_is_killed_costs_nothing_but_time(mortal: Path) -> None:
    study = STUDY | {"policies": ["bsp", "mortal:Mortal", "asgd"]}
    sweep(study, mortal / "killed", jobs=2)
    assert (mortal / "graves" / "0").exists()
    sweep(study, mortal / "serial", jobs=1)
    assert tables(mortal / "killed") == tables(mortal / "serial")


def test_a_run_that_kills_its_process_each_time_is_given_up_and_the_others_go_on(
    mortal: Path,
) -> None:
    study = STUDY | {"grid": {}, "policies": ["bsp", "mortal:Mortal:times=9", "asgd"], "seeds": 1}
    table = sweep(study, mortal / "s", jobs=2).frame().set_index("policy")
    assert len(list((mortal / "graves").iterdir())) == 3
    assert table.loc["mortal:Mortal:times=9", "error"].startswith("what computed it ended each")
    assert table.loc[["bsp", "asgd"], "error"].isna().all()


def test_shards_are_disjoint_and_make_the_whole(whole: Path, tmp_path: Path) -> None:
    parts = [sweep(STUDY, tmp_path, jobs=1, shard=(i, 3)) for i in (3, 1, 2)]
    assert sorted(len(part.runs) for part in parts) == [5, 5, 6]
    assert len({run for part in parts for run in part.runs}) == RUNS
    assert tables(tmp_path) == tables(whole)


def test_a_shard_that_is_not_the_last_makes_no_tables(tmp_path: Path) -> None:
    sweep(STUDY, tmp_path, jobs=1, shard=(1, 2))
    assert not any((tmp_path / name).exists() for name in TABLES)
    assert len(Sweep.read(tmp_path).frame()) == RUNS // 2


@pytest.mark.parametrize("shard", [(0, 3), (4, 3), (1, 0)])
def test_a_shard_that_is_none_is_refused(shard: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(simstrag.InputError, match=rf"shard {shard[0]}/{shard[1]}: "):
        sweep(STUDY, tmp_path, shard=shard)


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(simstrag.InputError, match="holds other files"):
        sweep(STUDY, tmp_path)
    with pytest.raises(simstrag.InputError, match="not a sweep"):
        Sweep.read(tmp_path)


def test_values_that_are_no_numbers_are_text(tmp_path: Path) -> None:
    rows = [{"time": 0.2, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 2.0}]
    study = STUDY | {"grid": {"trace": [None, rows], "trace_end": ["hold", "loop"]}, "seeds": 1}
    table = sweep(study, tmp_path, jobs=1).frame()
    assert sorted(set(table["trace"])) == [json.dumps(rows), "null"]
    assert sorted(set(table["trace_end"])) == ["hold", "loop"]


def test_workers_with_another_program_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = simstrag.experiments.kept_runs.needs()
    asked = iter([here, here | {"numpy": "1.0"}])  # by this process, and by the worker
    monkeypatch.setattr("simstrag.experiments.kept_runs.needs", lambda: next(asked))
    with pytest.raises(simstrag.InputError, match=r"a worker has numpy 1\.0, and .* is needed"):
        sweep(STUDY, tmp_path, jobs=1)


def test_a_backend_that_fails_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InProcess, "submit", lambda self, function, *given: _fails())
    with pytest.raises(simstrag.SimstragError, match=rf"^gone; 0 of {RUNS} runs are finished"):
        sweep(STUDY, tmp_path, jobs=1)


def _fails() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(ConnectionError("gone\nand more"))
    return future


@pytest.mark.thorough
def test_a_process_that_is_killed_costs_a_comparison_nothing_but_time_either(mortal: Path) -> None:
    scenario = simstrag.Scenario.of(CASE | {"policies": ["bsp", "mortal:Mortal"], "seeds": 2})
    killed = simstrag.compare(scenario, jobs=2)
    assert (mortal / "graves" / "0").exists()
    pd.testing.assert_frame_equal(killed.runs, simstrag.compare(scenario, jobs=1).runs)


@pytest.mark.thorough
def test_a_comparison_whose_process_is_killed_each_time_ends_in_one_line(mortal: Path) -> None:
    scenario = simstrag.Scenario.of(CASE | {"policies": ["bsp", "mortal:Mortal:times=9"]})
    with pytest.raises(simstrag.SimstragError, match="a process ended 3 times before its run did"):
        simstrag.compare(scenario, jobs=2)
