"""A journal tells the whole run again, and what a cut-off one holds is not lost."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag import policies
from simstrag.ddp.journal import NAME, Journal, facts_as_written, facts_of, read
from simstrag.ddp.replay import run_of, trace_of
from simstrag.errors import InputError
from simstrag.live import Live
from simstrag.policy import Hints
from tests.test_live import Told, durations

HINTS = {"amp_ratio": 2.0, "noise_scale": 500.0, "batch": 32}


def recorded(folder: Path, spec: str, gradients: int = 240) -> Live:
    """A run of four ranks, of which one is slow for a while."""
    header = {"policy": spec, "world_size": 4, "batch": 32, "hints": HINTS}
    journal = Journal(folder, header)
    live = Live(policies.load(spec), 4, 32, Hints(**HINTS), name=spec, note=journal.note)
    seconds = np.array(durations(4, seed=3))
    seconds[3, 20:40] *= 3
    told = Told(live, seconds.tolist())
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
    lines = [line for line in read(tmp_path)[1] if line[0] == "done"]
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
    found = facts_of(facts_as_written(facts))
    for each in fields(facts):
        expected: Any = getattr(facts, each.name)
        if each.name == "windows":
            assert all(
                np.array_equal(found.windows[name], window, equal_nan=window.dtype.kind == "f")
                for name, window in expected.items()
            )
        else:
            assert np.array_equal(getattr(found, each.name), expected), each.name
