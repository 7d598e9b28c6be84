"""Runs: written whole or not at all, and read back as they were."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simstrag.contract import Hints, Plan, View
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.runs import run as run_module
from simstrag.runs.run import Run, plain, provenance, write_directory
from simstrag.scenario.scenario import Scenario
from tests.support.refusals import message_of

SCENARIO = Scenario.of(
    {
        "workers": 3,
        "samples": 3 * 128 * 4,
        "step": {"compute": 0.1, "cv": 0.1},
        "allreduce": {"bandwidth": math.inf},
        "trace": [{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2}],
    }
)


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate(SCENARIO, "asgd", seed=3, record_steps=True, record_gradients=True)


def refused(action: Callable[..., Any], *arguments: Any) -> str:
    return message_of(lambda: action(*arguments))


# -- reading back


def test_a_run_is_read_back_as_it_was(run: Run, tmp_path: Path) -> None:
    again = Run.read(run.write(tmp_path / "run"))
    assert again.updates == dict(run.updates)
    assert again.steps == run.steps
    assert again.gradients == run.gradients
    assert again.decisions == run.decisions
    assert (again.policy, again.seed, again.warnings) == (run.policy, run.seed, run.warnings)
    for name in ("scenario", "summary", "provenance"):
        assert getattr(again, name) == plain(getattr(run, name))


def test_the_scenario_of_a_run_that_was_read_makes_the_same_run(run: Run, tmp_path: Path) -> None:
    again = Run.read(run.write(tmp_path / "run"))
    repeated = simulate(Scenario.of(again.scenario), again.policy, again.seed)
    assert repeated.updates == again.updates
    assert plain(repeated.summary) == again.summary


def test_tables_that_were_not_kept_are_none(tmp_path: Path) -> None:
    kept = simulate(SCENARIO, "bsp")
    again = Run.read(kept.write(tmp_path / "run"))
    assert (again.steps, again.gradients) == (None, None)
    assert "this run kept no table 'steps'" in refused(again.frame, "steps")
    assert "this run kept no table 'stepps'" in refused(again.frame, "stepps")


def test_a_table_says_its_units(run: Run) -> None:
    assert run.frame().attrs["units"] == {
        "time": "s", "staleness_mean": "updates", "staleness_max": "updates",
        "progress": "noise-free updates",
    }  # fmt: skip
    steps = run.frame("steps").attrs["units"]
    assert steps == dict.fromkeys(("start", "finish", "wait", "communication"), "s")


def test_writing_twice_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    first, second = run.write(tmp_path / "a"), run.write(tmp_path / "b")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_a_run_directory_holds_its_format_and_tables(run: Run, tmp_path: Path) -> None:
    folder = run.write(tmp_path / "run")
    names = sorted(path.name for path in folder.iterdir())
    tables = ["decisions.parquet", "gradients.parquet", "steps.parquet", "updates.parquet"]
    assert names == sorted([*tables, "run.json"])
    assert json.loads((folder / "run.json").read_text())["format"] == "simstrag-run/1"


# -- writing


def test_an_earlier_run_is_replaced(run: Run, tmp_path: Path) -> None:
    run.write(tmp_path / "run")
    simulate(SCENARIO, "bsp").write(tmp_path / "run")
    assert Run.read(tmp_path / "run").policy == "bsp"
    assert not (tmp_path / "run" / "steps.parquet").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_empty_folder_is_filled_and_missing_parents_are_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for folder in (tmp_path / "run", tmp_path / "a" / "b" / "run"):
        assert Run.read(run.write(folder)).seed == 3


def test_what_is_no_run_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    chapter, file = tmp_path / "thesis" / "chapter-1.tex", tmp_path / "run"
    for path, reason in ((chapter, "holds other files"), (file, "is a file")):
        path.write_text("important")
        place = path.parent if path is chapter else path
        assert refused(run.write, place) == (
            f"{place}: {reason}; choose a folder that does not exist yet"
        )
        assert path.read_text() == "important"
    assert [*chapter.parent.iterdir()] == [chapter]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/dev/null/run", "/dev/null is not"), ("/proc/run", "No such file"),
        ("x" * 300, "File name"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_written_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(run.write, path)
    assert message.startswith(f"{path}: cannot be written: {reason}")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("existing", [True, False])
def test_what_fails_half_way_leaves_what_was_there(
    tmp_path: Path, error: BaseException, existing: bool
) -> None:
    folder = tmp_path / "run"

    def whole(target: Path) -> None:
        (target / "run.json").write_text("first")

    def half(target: Path) -> None:
        (target / "run.json").write_text("second")
        raise error

    if existing:
        write_directory(folder, "run.json", whole)
    with pytest.raises((InputError, KeyboardInterrupt)):
        write_directory(folder, "run.json", half)
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if existing else [])
    if existing:
        assert (folder / "run.json").read_text() == "first"


def test_a_replacement_that_cannot_be_put_in_place_leaves_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    write_directory(folder, "run.json", lambda t: (t / "run.json").write_text("first"))
    rename, done = Path.rename, []

    def fail_once(self: Path, target: Path) -> Path:
        if target == folder and not done:
            done.append(target)
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    message = refused(write_directory, folder, "run.json", lambda t: (t / "run.json").touch())
    assert message == f"{folder}: cannot be written: Input/output error"
    assert (folder / "run.json").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# -- written while it goes on


def test_what_is_written_as_it_goes_is_what_is_written_at_the_end(tmp_path: Path) -> None:
    keep = {"record_steps": True, "record_gradients": True}
    for policy in ("asgd", "bsp", "korel"):
        first = simulate(SCENARIO, policy, 3, **keep, out=tmp_path / "a")
        second = simulate(SCENARIO, policy, 3, **keep)
        second.write(tmp_path / "b")
        for path in sorted((tmp_path / "b").iterdir()):
            assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes(), path.name
        assert (first.updates, first.steps) == (second.updates, second.steps)
        assert (first.gradients, first.decisions) == (second.gradients, second.decisions)
        assert first.to_json() == second.to_json()


def test_pandas_reads_from_a_run_directory_what_the_run_says(run: Run, tmp_path: Path) -> None:
    folder = run.write(tmp_path / "run")
    for table in ("updates", "steps", "gradients"):
        read, said = pd.read_parquet(folder / f"{table}.parquet"), run.frame(table)
        assert list(read) == list(said)
        for name in said.columns.difference(["members"]):
            pd.testing.assert_series_equal(read[name], said[name])
    assert [tuple(m) for m in pd.read_parquet(folder / "updates.parquet")["members"]] == list(
        run.updates["members"]
    )


def test_a_run_that_ends_early_leaves_what_was_there(run: Run, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    folder = run.write(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        simulate(SCENARIO, "bsp", out=folder, on_update=interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate(SCENARIO, "bsp", out=tmp_path / "other", on_update=interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert Run.read(folder).policy == "asgd"


def test_a_folder_with_other_files_is_refused_before_anything_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "chapter-1.tex").write_text("important")
    seen: list[object] = []
    message = refused(lambda: simulate(SCENARIO, out=tmp_path, on_update=lambda *u: seen.append(u)))
    assert message.endswith("holds other files; choose a folder that does not exist yet")
    assert seen == []


# -- what is no run


def test_a_folder_that_is_not_there_is_no_run(tmp_path: Path) -> None:
    assert refused(Run.read, tmp_path / "no") == (
        f"{tmp_path / 'no'}: not a run directory: No such file or directory"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a run directory: Expecting property name"),
        ("[]", "not a run: its format is not simstrag-run/1"),
        ('{"format": "simstrag-run/9"}', "not a run: its format is not simstrag-run/1"),
        ('{"format": "simstrag-run/1"}', "not a run: it has no 'policy'"),
    ],
)
def test_a_run_json_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert f": {message}" in refused(Run.read, tmp_path)


@pytest.mark.parametrize("garbage", [None, b"", b"\x00\xff", b"PAR1PAR1"])
def test_a_damaged_or_missing_table_is_refused(
    run: Run, tmp_path: Path, garbage: bytes | None
) -> None:
    folder = run.write(tmp_path / "run")
    (folder / "updates.parquet").unlink()
    if garbage is not None:
        (folder / "updates.parquet").write_bytes(garbage)
    said = refused(Run.read, folder)
    assert said.startswith(f"{folder}: not a run directory: ")
    assert garbage is not None or said.endswith("updates.parquet is missing")


# -- JSON and provenance


def test_plain_values_are_jsons_own() -> None:
    given = {
        "a": np.float64(1.5), "b": np.int64(3), "c": np.bool_(True), "d": math.nan,
        "e": (1, math.inf), "f": Path("x"), 7: frozenset({2}), "g": None,
    }  # fmt: skip
    assert plain(given) == {
        "a": 1.5, "b": 3, "c": True, "d": None, "e": [1, None], "f": "x", "7": [2], "g": None,
    }  # fmt: skip
    json.dumps(plain(given), allow_nan=False)


def test_a_run_says_what_computed_it(run: Run) -> None:
    recorded = run.provenance
    assert {"simstrag", "commit", "python", "numpy", "pyarrow", "simpy", "pandas"} < set(recorded)
    trace = SCENARIO.inputs.trace
    assert recorded["sha256"] == {"trace": trace.sha256, "profile": None}


def test_a_policy_may_be_told_other_than_the_scenario_says_and_the_run_says_so() -> None:
    heard: list[Hints] = []

    class Hears:
        def plan(self, view: View) -> Plan:
            heard.append(view.hints)
            return Plan()

    told = Hints(clean_seconds=0.3, batch=128)
    run = simulate(SCENARIO, Hears(), hints=told)
    assert set(heard) == {told}
    assert run.provenance["hints"] == asdict(told)
    assert "hints" not in simulate(SCENARIO, Hears()).provenance


def test_the_commit_of_somebody_elses_repository_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed in a virtual environment inside a user's repository, git answers for that one."""
    installed = tmp_path / "venv" / "simstrag" / "run.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    author = "-c user.name=u -c user.email=u@x"
    for command in ("init -q", f"{author} commit -q --allow-empty -m mine"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setattr(run_module, "__file__", str(installed))
    provenance.cache_clear()
    assert provenance()["commit"] is None
    monkeypatch.undo()
    provenance.cache_clear()


def test_a_run_shows_its_summary_in_a_notebook() -> None:
    run = simulate(Scenario(workers=2, updates=3, step={"compute": 0.5}), "bsp")
    assert "makespan" in run._repr_html_()
    assert "bsp, seed 0" in run._repr_html_()


def test_who_watches_a_run_sees_how_far_it_is_and_changes_nothing() -> None:
    seen: list[tuple[float, int, float | None]] = []
    scenario = Scenario(workers=3, samples=3 * 128 * 5, step={"compute": 0.1, "cv": 0.2})
    watched = simulate(scenario, "asgd", on_update=lambda *update: seen.append(update))
    assert watched.to_json() == simulate(scenario, "asgd").to_json()
    columns = (watched.updates[name] for name in ("time", "samples", "progress"))
    updates = list(zip(*columns, strict=True))
    assert seen[-1] == updates[-1]
    assert set(seen) <= set(updates)
