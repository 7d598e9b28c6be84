"""Finished runs of an interrupted comparison: none is lost, none is taken for another."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simstrag
from simstrag import Scenario
from simstrag.experiments import runner
from simstrag.experiments.comparison import Comparison
from simstrag.experiments.runner import RunCache

CASE: dict[str, Any] = {
    "workers": 2,
    "samples": 400,
    "target_progress": 5.0,
    "step": {"compute": 0.5, "cv": 0.3},
    "learner": {"batch": 10, "noise_scale": 20},
    "policies": ["bsp", "asgd"],
    "seeds": 3,
}
RUNS = 2 * 3 + 3
"""Two policies, three seeds, and the clean control."""


def compared(folder: Path, stop_at: int | None = None, **changes: Any) -> tuple[Comparison, int]:
    """A comparison that keeps its runs, and how many of them it found there."""
    found = 0

    def watch(done: int, total: int, what: str) -> None:
        nonlocal found
        found += done if what == "found finished" and not found else 0
        if done == stop_at:
            raise KeyboardInterrupt

    scenario = Scenario.of(CASE | changes)
    return simstrag.compare(scenario, jobs=1, on_progress=watch, keep=folder), found


def contents(comparison: Comparison, folder: Path) -> dict[Path, bytes]:
    """The bytes of each file of a comparison's folder, written at a fixed time, by its path."""
    replace(comparison, made={"at": "noon"}).write(folder, "the same command")
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a comparison leaves that was interrupted after four runs."""
    folder = tmp_path_factory.mktemp("interrupted") / "c.partial"
    with pytest.raises(KeyboardInterrupt, match=rf"4 of {RUNS} runs are finished and kept in "):
        compared(folder, stop_at=4)
    return folder


@pytest.fixture
def left(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(interrupted, tmp_path / "c.partial")


def test_finished_runs_are_not_done_again(left: Path) -> None:
    assert compared(left)[1] == 4


@pytest.mark.usefixtures("no_page")
def test_a_comparison_that_was_resumed_is_the_same_to_the_last_byte(
    left: Path, tmp_path: Path
) -> None:
    whole = simstrag.compare(Scenario.of(CASE), jobs=1)
    resumed, _ = compared(left)
    assert contents(resumed, tmp_path / "resumed") == contents(whole, tmp_path / "whole")


@pytest.mark.parametrize(
    "changes",
    [{"samples": 800}, {"step": {"compute": 0.6, "cv": 0.3}}, {"target_progress": 5.5}],
)
def test_runs_of_another_scenario_are_not_taken(left: Path, changes: dict[str, Any]) -> None:
    assert compared(left, **changes)[1] == 0


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"policies": ["asgd", "bsp"]}, 4),
        ({"policies": ["bsp", "asgd", "ssp"]}, 4),
        ({"policies": ["asgd"]}, 4),  # bsp is the baseline whether it is asked for or not
        ({"seeds": 5}, 4),
        ({"seeds": 1}, 3),
        ({"seeds": [1, 0]}, 3),  # the first seed's steps are wanted, which were kept of seed 0
    ],
)
def test_runs_of_other_policies_and_seeds_are_taken_where_they_are_the_same(
    left: Path, tmp_path: Path, changes: dict[str, Any], same: int
) -> None:
    resumed, found = compared(left, **changes)
    assert found == same
    whole = simstrag.compare(Scenario.of(CASE | changes), jobs=1)
    assert contents(resumed, tmp_path / "resumed") == contents(whole, tmp_path / "whole")


def test_who_is_done_forgets_the_runs_that_nobody_asks_for_any_more(left: Path) -> None:
    done, _ = compared(left, policies=["ssp"], seeds=1)
    RunCache.of(left, done.scenario).clear()
    assert not left.exists()


def test_runs_under_another_trace_are_not_taken(tmp_path: Path) -> None:
    trace, found = tmp_path / "slow.csv", []
    for value in (2.0, 3.0, 3.0):
        trace.write_text(f"time,node,resource,kind,value\n0,1,gpu,slowdown,{value}\n")
        found.append(compared(tmp_path / "c.partial", trace=str(trace))[1])
    assert found[:2] == [0, 0]
    assert found[2] >= RUNS


def test_runs_of_a_policy_whose_file_changed_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = (
        "import simstrag\nclass All:\n    def plan(self, view):\n        return simstrag.Plan()\n"
    )
    (tmp_path / "kept_policy.py").write_text(source)
    asked = {"policies": ["kept_policy:All"], "target_progress": None}
    compared(tmp_path / "c.partial", **asked)
    assert compared(tmp_path / "c.partial", **asked)[1] == RUNS
    (tmp_path / "kept_policy.py").write_text(source + "# another thought\n")
    assert compared(tmp_path / "c.partial", **asked)[1] == RUNS - 3


def test_a_run_that_cannot_be_read_is_done_again(left: Path) -> None:
    next(left.glob("*/*.json")).write_text('{"row": ')
    assert compared(left)[1] == 3


def test_how_many_runs_there_are_is_known_from_the_start(tmp_path: Path) -> None:
    """Also of those that are run again because their gradients were stale."""
    totals = set()
    scenario = Scenario.of(CASE | {"server": {"service": 0.2}})
    done = simstrag.compare(
        scenario, sensitivity=False, jobs=1,
        on_progress=lambda done, total, _: totals.add((done, total)),
    )  # fmt: skip
    assert totals == {(k + 1, RUNS) for k in range(RUNS)}
    again = done.sensitivity.pivot(index=["policy", "seed"], columns="c_tau").loc["asgd"]
    assert (again.nunique(axis=1) == 3).all()


def test_an_empty_folder_may_keep_runs(tmp_path: Path) -> None:
    (tmp_path / "c.partial").mkdir()
    assert compared(tmp_path / "c.partial")[1] == 0


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(simstrag.InputError, match="holds something else"):
        compared(tmp_path)


def test_nothing_is_kept_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    simstrag.compare(Scenario.of(CASE), jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_who_is_done_forgets_his_own_runs_only(left: Path) -> None:
    done, found = compared(left, samples=800)
    assert found == 0
    RunCache.of(left, done.scenario).clear()
    assert compared(left)[1] == 4
    RunCache.of(left, compared(left)[0].scenario).clear()
    assert not left.exists()


def test_the_digest_of_the_program_covers_the_native_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    monkeypatch.setattr(runner, "_digest_of_file", lambda path: read.append(path.name))
    runner.program.cache_clear()
    runner.program()
    runner.program.cache_clear()
    assert {"rules.py", "clock.c", "records.h"} <= set(read)
