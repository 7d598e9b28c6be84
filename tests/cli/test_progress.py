"""Bars: the time left is of finished work; a calibration's is drawn when it is told."""

from __future__ import annotations

import io
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Task

from simstrag import Scenario
from simstrag.cli import progress
from simstrag.errors import InputError
from simstrag.experiments import forecast
from simstrag.experiments.compare import compare, count_runs
from simstrag.experiments.forecast import describe_hours
from tests.support.commands import Call


def test_the_bar_of_what_is_timed_is_drawn_when_it_is_told_and_by_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "console", lambda stderr: terminal)
    threads = threading.active_count()
    with progress.show_seconds() as show:
        assert "starting" in shown.getvalue()
        show(10.0, 100.0, "step fp32 batch 8")
        assert "step fp32 batch 8" in shown.getvalue()
        assert "at most 90 s left" in shown.getvalue()
        assert threading.active_count() == threads


def test_ranks_that_train_are_shown_by_what_their_journal_holds(
    terminal: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOOK", 0.01)
    journal = tmp_path / "attempt-1" / "journal.jsonl"
    journal.parent.mkdir()

    def wait(text: str) -> None:
        until = time.monotonic() + 120
        while text not in terminal.getvalue():
            assert time.monotonic() < until, terminal.getvalue()
            time.sleep(0.01)

    with progress.show_training(tmp_path, batch=32, total=640):
        assert "starting the ranks" in terminal.getvalue()
        (tmp_path / "journal.jsonl").write_text('["header", {}]\n' + '["done", 1, 0, 1]\n' * 7)
        wait("224 of 640 samples computed")
        header = '["header", {"facts": {"samples": 64}}]\n'  # a later start, from a checkpoint
        journal.write_text(f'{header}["done", 0.1, 0, 0.1]\n["don')
        wait("96 of 640 samples computed")
        with journal.open("a") as file:
            file.write('e", 0.2, 1, 0.1]\n["lockstep", 0.3, [0.1, 0.1, 0.1], 0.2]\n')
        terminal.truncate(0)
        wait("224 of 640 samples computed")
        wait(" left")


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "console", lambda stderr: console)
    return shown


def test_the_time_left_is_that_of_the_work_finished(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """38 runs took 380 s, so 172 others take 1,720 s; rich told about 10 s."""
    clock = Clock()
    with progress.show_count(after=8.0) as show:
        monkeypatch.setattr(progress, "time", clock)
        show._begin = 0.0
        clock.now = 380.0
        show(38, 210, "korel, seed 1")
        assert _task(show).fields["left"] == "about 29 min left"
        assert (_task(show).completed, _task(show).total) == (38, 211)


def test_runs_found_finished_say_nothing_of_the_time_left(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with progress.show_count() as show:
        monkeypatch.setattr(progress, "time", clock)
        clock.now = 5.0
        show(100, 210, "found finished")
        assert _task(show).fields["left"] == ""
        clock.now = 65.0
        show(110, 210, "korel, seed 1")
        assert _task(show).fields["left"] == "about 10 min left"


def test_drawing_the_report_is_the_last_part_of_the_bar(terminal: io.StringIO) -> None:
    with progress.show_count(after=20.0) as show:
        show(9, 9, "bsp, seed 8")
        show.begin_last("drawing the report")
        task = _task(show)
        assert (task.completed, task.total) == (9, 10)
        assert (task.description, task.fields["left"]) == ("drawing the report", "about 20 s left")


def _task(show: progress.Count) -> Task:
    return show._bar.tasks[0]


# -- work of hours -------------------------------------------------------------------------------

LONG: dict[str, Any] = {"workers": 8, "step": {"compute": 0.1}, "seeds": 10}


@pytest.fixture(autouse=True)
def _short_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seventh of the time to measure: within a tenth of what the whole would tell."""
    monkeypatch.setattr(forecast, "PROBE", 0.03)


def test_work_of_hours_is_said_with_how_to_shorten_it() -> None:
    case = Scenario.of(LONG | {"target_progress": 1e8})
    text = describe_hours(case, ["bsp", "lb_bsp"], 10, 1)
    found = re.fullmatch(
        r"this takes about (\S+) h here; to shorten it: an hour is enough for "
        r"target_progress: (\S+); or take fewer seeds; or leave out lb_bsp, which takes .* h of it",
        text,
    )
    assert found
    assert float(found[1]) * float(found[2]) == pytest.approx(1e8, rel=0.1)


def test_hours_of_real_training_are_measured_on_short_ones() -> None:
    pytest.importorskip("torch")
    learner = {"kind": "real", "task": "tabular", "batch": 16}
    case = Scenario.of(LONG | {"samples": 300_000_000, "learner": learner})
    text = describe_hours(case, ["asgd"], 10, 1)
    found = re.match(r"this takes about (\S+) h here; .* enough for samples: (\S+); or", text)
    assert found
    assert float(found[1]) * float(found[2]) == pytest.approx(3e8, rel=0.1)
    assert 1 < float(found[1]) < 200  # 188 million gradients, of 0.03 to 3 ms
    until = case.replaced(target_accuracy=0.9)
    assert describe_hours(until, ["asgd"], 10, 1).startswith("this takes at most about")
    assert describe_hours(case.replaced(samples=1_000_000), ["asgd"], 1, 1) == ""


def test_the_runs_of_a_comparison_include_those_of_other_values() -> None:
    """A comparison of two hours was once taken for one of 39 minutes, and not announced."""
    case = Scenario(
        workers=4, target_progress=3, step={"compute": 0.1, "cv": 0.05}, server={"service": 0.02},
        placeholders=["step.cv", "server.service"], seeds=2,
    )  # fmt: skip
    totals: list[int] = []
    compare(
        case, ["bsp", "asgd"], jobs=1, on_progress=lambda done, total, what: totals.append(total)
    )
    runs = count_runs(case, ["bsp", "asgd"], None, None)
    assert runs == 2 + 2 * 4 * 2  # two seeds, and two values of four constants under each
    assert (
        runs <= max(totals) <= 2 * runs + 2
    )  # asgd's alone feel the server; bsp is run clean, too
    assert count_runs(case, ["bsp", "asgd"], 3, False) == 3
    assert count_runs(case, ["bsp"], None, None) == 2


def test_work_of_minutes_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "simulate", None)
    assert describe_hours(Scenario.read("examples/demo.yaml"), ["bsp", "korel"], 20, 1) == ""


def test_a_short_run_is_measured_whole_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []
    monkeypatch.setattr(forecast, "simulate", lambda case, *_, **__: seen.append(case.updates))
    monkeypatch.setattr(forecast, "STEPS_IN_AN_HOUR", 1)
    describe_hours(Scenario.of(LONG | {"updates": 50}), ["bsp"], 1, 1)
    assert seen == [50, 50]  # the first imports


def test_a_target_of_accuracy_is_replaced_by_one_of_progress() -> None:
    learner = {"curve": [[0, 0.1], [1e12, 0.9]]}
    case = Scenario.of(LONG | {"target_accuracy": 0.9, "learner": learner})
    text = describe_hours(case, ["bsp"], 10, 1)
    assert re.search(r"enough for target_progress: \S+ in place of target_accuracy; or", text)


def test_a_study_of_hours_says_so_before_it_starts(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise InputError("it has started")

    monkeypatch.setattr("simstrag.experiments.sweep.sweep", refuse)
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(
        "scenario: {workers: 8, step: {compute: 0.1}}\nseeds: 10\npolicies: [bsp, lb_bsp]\n"
        "grid: {target_progress: [1.0e+8, 1.0e+9]}\n"
    )
    _, _, err = call("sweep", "study.yaml", "--jobs", "1")
    hours = re.match(r"warning: this takes about (\S+) h here, for 2 points; to shorten", err)
    assert hours, err
    _, _, part = call("sweep", "study.yaml", "--jobs", "1", "--shard", "1/4")
    share = re.match(r"warning: this takes about (\S+) h", part)
    assert share
    assert float(share[1]) == pytest.approx(float(hours[1]) / 4, rel=0.5)
    _, _, more = call("sweep", "study.yaml", "--jobs", "1", "--seeds", "40")
    longer = re.match(r"warning: this takes about (\S+) h", more)
    assert longer
    assert float(longer[1]) == pytest.approx(float(hours[1]) * 4, rel=0.5)
    assert call("sweep", "study.yaml", "-q")[2] == "error: it has started\n"


@pytest.mark.parametrize("command", ["compare", "sensitivity", "run"])
def test_a_command_of_hours_says_so_before_it_starts(
    command: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise InputError("it starts")

    monkeypatch.chdir(tmp_path)
    Scenario.of(LONG | {"target_progress": 1e9}).write(tmp_path)
    module = "engine.simulate.simulate" if command == "run" else f"experiments.{command}.{command}"
    monkeypatch.setattr(f"simstrag.{module}", refuse)
    policy = () if command == "run" else ("-p", "bsp")
    code, _, err = call(command, "scenario.yaml", "-p", "lb_bsp", *policy)
    assert code == 2
    assert err.startswith("warning: this takes about ")
    assert err.endswith("error: it starts\n")
    assert call(command, "scenario.yaml", "-p", "lb_bsp", "-q")[2] == "error: it starts\n"
