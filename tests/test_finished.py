"""Finished runs of an interrupted comparison: none is lost, none is taken for another."""

from pathlib import Path
from typing import Any

import pytest

import simstrag
from simstrag import Scenario
from simstrag.comparison import Comparison
from simstrag.finished import Finished

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
"""Two policies, three seeds, and the clean control; before any at another c_tau."""


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


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a comparison leaves that was interrupted after four runs."""
    folder = tmp_path / "c.partial"
    with pytest.raises(KeyboardInterrupt, match=rf"4 of {RUNS} runs are finished and kept in "):
        compared(folder, stop_at=4)
    return folder


def test_finished_runs_are_not_done_again(left: Path) -> None:
    assert compared(left)[1] == 4


def test_a_comparison_that_was_resumed_is_the_same_to_the_last_byte(
    left: Path, tmp_path: Path
) -> None:
    whole = simstrag.compare(Scenario.of(CASE), jobs=1)
    for name, comparison in (("resumed", compared(left)[0]), ("whole", whole)):
        comparison.write(tmp_path / name, "the same command")
    files = sorted(p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*"))
    assert files == sorted(
        p.relative_to(tmp_path / "resumed") for p in (tmp_path / "resumed").rglob("*")
    )
    for file in files:
        one, other = tmp_path / "whole" / file, tmp_path / "resumed" / file
        assert one.is_dir() or one.read_bytes() == other.read_bytes(), file


@pytest.mark.parametrize(
    "changes",
    [{"samples": 800}, {"step": {"compute": 0.6, "cv": 0.3}}, {"policies": ["asgd", "bsp"]}],
)
def test_runs_of_another_scenario_are_not_taken(left: Path, changes: dict[str, Any]) -> None:
    assert compared(left, **changes)[1] == 0


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
    Finished.of(left, done.scenario).forget()
    assert compared(left)[1] == 4
    Finished.of(left, compared(left)[0].scenario).forget()
    assert not left.exists()
