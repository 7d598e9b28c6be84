"""A journal tells the whole run again, and what a cut-off one holds is not lost."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag import Run, policies
from simstrag.analysis.derived.example_runs import example
from simstrag.analysis.pages.perfetto import write_timeline
from simstrag.analysis.pages.report import render_run
from simstrag.contract import Hints
from simstrag.ddp.journal.journal import (
    NAME,
    Journal,
    facts_from_json,
    facts_to_json,
    latest_attempt,
    read_journal,
)
from simstrag.ddp.journal.run_from_journal import finish, finish_all, part_folders, run_of, trace_of
from simstrag.engine.live import Live
from simstrag.errors import InputError
from tests.engine.test_live import Told, durations

HINTS = {"amp_ratio": 2.0, "noise_scale": 500.0, "batch": 32}


def recorded(
    folder: Path, spec: str, gradients: int = 240, live: Live | None = None, **header: Any
) -> Live:
    """A run of four ranks, of which one is slow for a while; live: it goes on where that ended."""
    facts = None if live is None else live.facts()
    known = {"policy": spec, "world_size": 4, "batch": 32, "hints": HINTS, **header}
    if facts is not None:
        known["facts"] = facts_to_json(facts)
    journal = Journal(folder, known)
    policy = policies.load(spec) if live is None else live.policy
    live = Live(policy, 4, 32, Hints(**known["hints"]), name=spec, facts=facts, note=journal.note)
    seconds = np.array(durations(4, seed=3))
    seconds[3, 20:40] *= 3
    told = Told(live, seconds.tolist(), live.now)
    told.run(gradients * 32)
    journal.note("end", told.now, {})
    journal.close()
    return live


@pytest.mark.parametrize("spec", ["asgd", "star_dynamic", "cgp", "korel", "backup:b=1,late=drop"])
def test_a_run_is_made_of_what_was_told(spec: str, tmp_path: Path) -> None:
    live = recorded(tmp_path, spec)
    run = run_of(tmp_path)
    assert run.summary["updates"] == live.version
    assert run.summary["samples"] == live.facts().samples
    assert (
        run.frame("gradients").query("fate == 'applied'")["samples"].sum() == run.summary["samples"]
    )


def test_plans_are_recorded_and_not_made_anew(tmp_path: Path) -> None:
    recorded(tmp_path, "korel")
    journal = tmp_path / NAME
    text = journal.read_text()
    assert '"suspects": [3]' in text
    journal.write_text(text.replace('"suspects": [3]', '"suspects": [2]'))
    decided = run_of(tmp_path).frame("decisions")["suspects"].tolist()
    assert [2] in [list(each) for each in decided]
    assert [3] not in [list(each) for each in decided]


def test_a_journal_that_was_cut_off_tells_what_it_holds(tmp_path: Path) -> None:
    recorded(tmp_path, "asgd")
    journal = tmp_path / NAME
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) // 2])
    run = run_of(tmp_path)
    assert 0 < run.summary["updates"] < 240


def test_the_trace_of_a_run_has_the_local_times_that_were_told(tmp_path: Path) -> None:
    recorded(tmp_path, "asgd")
    run = run_of(tmp_path)
    trace = trace_of(run)
    steps = run.frame("steps")
    assert len(trace) == len(steps)
    lines = [line for line in read_journal(tmp_path)[1] if line[0] == "done"]
    for rank in range(4):
        told = [line[3] for line in lines if line[2] == rank]
        kept = trace.changes.value[trace.changes.node == rank].tolist()
        assert kept == pytest.approx(told)


def test_two_runs_are_not_recorded_into_one_folder(tmp_path: Path) -> None:
    recorded(tmp_path, "asgd", gradients=8)
    with pytest.raises(InputError, match="a run was recorded there"):
        Journal(tmp_path, {"policy": "asgd"})


def test_a_folder_without_a_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"journal\.jsonl: cannot be read"):
        run_of(tmp_path)


def test_facts_survive_being_written(tmp_path: Path) -> None:
    facts = recorded(tmp_path, "korel", gradients=100).facts()
    found = facts_from_json(facts_to_json(facts))
    for each in fields(facts):
        expected: Any = getattr(facts, each.name)
        if each.name == "windows":
            assert all(
                np.array_equal(found.windows[name], window, equal_nan=window.dtype.kind == "f")
                for name, window in expected.items()
            )
        else:
            assert np.array_equal(getattr(found, each.name), expected), each.name


# -- what is made of it --------------------------------------------------------------------------


def taken_up(folder: Path, spec: str = "bsp") -> Path:
    """A training that was taken up twice, the second time in a part that came to nothing."""
    live = recorded(folder, spec, 80)
    live = recorded(folder / "generation-1", spec, 40, live)
    recorded(folder / "attempt-2", spec, 40, live)
    Journal(folder / "attempt-10", read_journal(folder)[0]).close()
    (folder / "notes").mkdir()
    return folder


def test_the_parts_of_a_training_are_found_in_the_order_of_what_happened(tmp_path: Path) -> None:
    taken_up(tmp_path)
    recorded(tmp_path / "attempt-2" / "attempt-1", "bsp", 8)
    found = [str(each.relative_to(tmp_path)) for each in part_folders(tmp_path)]
    assert found == [".", "generation-1", "attempt-2", "attempt-2/attempt-1", "attempt-10"]


def test_each_part_becomes_a_run_and_the_last_has_the_accuracy(tmp_path: Path) -> None:
    taken_up(tmp_path)
    (tmp_path / "result.json").write_text('{"accuracy": 0.75}')
    with pytest.warns(UserWarning, match="attempt-10: the run ended before"):
        runs = finish_all(tmp_path)
    assert [each.name for each in runs][1:] == ["generation-1", "attempt-2"]
    assert [run.summary["accuracy"] for run in runs.values()] == [None, None, 0.75]
    assert [run.summary["samples"] for run in runs.values()] == [2560, 3840, 5120]
    for folder, run in runs.items():
        assert Run.read(folder).summary == json.loads(run.to_json())["summary"]
        assert (folder / "trace.csv").exists()


def test_what_a_part_counts_goes_on_from_the_part_before(tmp_path: Path) -> None:
    live = recorded(tmp_path, "asgd", 80)
    recorded(tmp_path / "attempt-1", "asgd", 40, live)
    first, second = finish_all(tmp_path).values()
    assert second.summary["updates"] == first.summary["updates"] + 40
    assert second.summary["makespan"] > first.summary["makespan"]
    assert second.frame()["version"].min() == first.summary["updates"] + 1
    assert second.frame("steps")["start"].min() >= first.summary["makespan"]


def test_a_training_that_left_no_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"journal\.jsonl: cannot be read"):
        finish(tmp_path)


def test_what_the_record_says_of_a_run_is_kept_apart_from_the_scenario(tmp_path: Path) -> None:
    recorded(tmp_path, "bsp", 40, precision="fp32 only")
    (tmp_path / "training.json").write_text('{"workload": "digits", "seed": 3, "cores": 2}')
    run = finish(tmp_path)
    again = Run.read(tmp_path)
    assert run.seed == again.seed == 3
    assert set(again.scenario) == {"workers", "learner"}
    assert again.recorded is not None
    assert again.recorded["precision"] == "fp32 only"
    assert again.recorded["asked"]["workload"] == "digits"
    assert again.warnings == ("4 ranks shared 2 cores: steps measure the scheduler too",)


def test_a_run_of_unknown_progress_is_not_sent_to_real_training(tmp_path: Path) -> None:
    recorded(tmp_path, "bsp", 40, hints={"batch": 32})
    assert finish(tmp_path).warnings == (
        "progress is unknown: there is no estimate of the gradient noise scale",
    )


def test_reduced_precision_by_a_stand_in_is_called_so(tmp_path: Path) -> None:
    label = "fp64 and fp32 compute on fp64 parameters (stand-in)"
    recorded(tmp_path, "amp_all", 40, precision=label)
    (said,) = finish(tmp_path).warnings
    assert said == f"reduced precision was no number format of a GPU: {label}"
    assert label in " ".join(page_of(tmp_path).split())


def test_gradients_that_changed_nothing_are_counted_and_said(tmp_path: Path) -> None:
    recorded(tmp_path, "bsp")
    with (tmp_path / NAME).open("a") as journal:
        journal.write('["skipped", 5, "gradients that are not finite"]\n')
        journal.write('["applied", 6, [[0, 5, 5, 0.5], [1, 5, 5, 0.5]], [1]]\n')
    (said,) = (each for each in run_of(tmp_path).warnings if "changed nothing" in each)
    assert said.startswith("5 gradients count as applied")


def page_of(folder: Path) -> str:
    return render_run(Run.read(folder))


@pytest.mark.parametrize("part", ["", "attempt-1"])
@pytest.mark.parametrize("spec", ["bsp", "asgd", "korel", "cgp"])
def test_a_real_run_has_its_report_and_its_timeline(spec: str, part: str, tmp_path: Path) -> None:
    live = recorded(tmp_path, spec, 80)
    recorded(tmp_path / "attempt-1", spec, 80, live)
    finish_all(tmp_path)
    page = page_of(tmp_path / part)
    assert f"One real run: {spec} on 4 ranks" in page
    for wrong in (
        "Run it again",
        "not at hand",
        "unknown key",
        "derivation shown was checked",
    ):
        assert wrong not in page, wrong
    written = write_timeline(Run.read(tmp_path / part), tmp_path / "t.json", None)
    about = json.loads((tmp_path / "t.json").read_text())["metadata"]
    assert written.steps_left_out == 0
    assert about["slowdown"] == "not known of a real run"


def test_who_waited_for_whom_in_a_real_run_is_shown(tmp_path: Path) -> None:
    recorded(tmp_path, "bsp", 160)
    run = finish(tmp_path)
    found = example("bsp", run, None).waiting
    assert found.reason == ""
    assert found.held.sum() == pytest.approx(sum(run.summary["wait_by_rank"]))
    steps = run.frame("steps").query("step == 30").set_index("rank")
    assert found.by_rank.argmax() == steps["finish"].idxmax() == 3


def test_the_latest_start_is_that_of_the_highest_number_with_a_record(tmp_path: Path) -> None:
    assert latest_attempt(tmp_path) is None
    for name in ("", "attempt-1", "attempt-10", "attempt-2", "attempt-x"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / NAME).touch()
    (tmp_path / "attempt-11").mkdir()
    assert latest_attempt(tmp_path) == 10
