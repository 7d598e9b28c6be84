"""The command line seen from a terminal, a pipe, a shell that completes, and a signal."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.tables.comparison_tables import ranking_table
from simstrag.cli import report_thread_error
from simstrag.cli.console import console, print_table
from simstrag.experiments.comparison import Comparison
from simstrag.experiments.runner import RunCache
from simstrag.scenario.scenario import Scenario
from tests.support.commands import SCENARIO, Call, plain_lines

INTERRUPTIBLE = (  # a parent may have taught this process to ignore Ctrl-C
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from simstrag.cli import main; main()"
)


def interrupt(when: Callable[[], bool], *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command that Ctrl-C ends as soon as `when()`."""
    command = [sys.executable, "-c", INTERRUPTIBLE, *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not when() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    return process.returncode, err


@pytest.mark.parametrize(("name", "shown"), [("ExecutorManagerThread", False), ("another", True)])
def test_a_call_that_joblib_no_longer_finds_is_not_reported(
    name: str, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", report_thread_error)
    thread = threading.Thread(target=dict[int, int]().__getitem__, args=(7,), name=name)
    thread.start()
    thread.join()
    assert ("KeyError: 7" in capsys.readouterr().err) == shown


@pytest.mark.usefixtures("no_page")
def test_ctrl_c_keeps_finished_runs_and_the_same_command_goes_on(folder: Path, call: Call) -> None:
    case = SCENARIO.replace("samples: 5120", "samples: 512000").replace("seeds: 2", "seeds: 8")
    (folder / "case.yaml").write_text(case)
    kept = folder / "c.partial"
    asked = ("compare", "case.yaml", "--out", "c", "--jobs", "1")
    code, err = interrupt(lambda: len([*kept.glob("*/*.json")]) > 1, *asked)
    assert code == 130
    found = re.fullmatch(
        r"interrupted; (\d+) of (\d+) runs are finished and kept in (.*c\.partial); "
        r"the same command goes on from there, "
        r"or with --no-sensitivity with the comparison alone\n",
        err,
    )
    assert found, err
    assert len([*kept.glob("*/*.json")]) == int(found[1])
    assert not (folder / "c").exists()
    assert call(*asked)[0] == 0
    assert not kept.exists()
    assert len(pd.read_csv(folder / "c" / "comparison.csv")) == 16


@pytest.mark.usefixtures("no_page")
def test_ctrl_c_keeps_trained_runs_and_the_same_command_goes_on(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    case = "workers: 4\nsamples: 3200\nstep: {compute: 0.1}\nseeds: 2\n"
    learner = "learner: {kind: real, task: tabular, batch: 32}\n"
    (folder / "case.yaml").write_text(case + learner)
    asked = ("compare", "case.yaml", "--policy", "bsp", "--out", "c", "--jobs", "1")
    keep = RunCache.keep

    def interrupt_after(*arguments: Any) -> None:
        keep(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunCache, "keep", interrupt_after)
        code, _, err = call(*asked)
    assert code == 130
    assert re.fullmatch(
        r"interrupted; 1 of \d runs are finished and kept in c\.partial; "
        r"the same command goes on from there\n",
        err,
    ), err
    assert call(*asked)[0] == 0
    assert len(pd.read_csv(folder / "c" / "comparison.csv")) == 2


def run_on_a_terminal(*arguments: str, until: str = "", **environment: str) -> str:
    """What a terminal of 100 columns gets on stderr, to the end or until it matches."""
    master, slave = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | environment
    process = subprocess.Popen(
        [sys.executable, "-m", "simstrag", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env=environment | {"COLUMNS": "100", "TERM": "xterm"},
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal that nobody writes to any more
        while more := os.read(master, 4096):
            shown += more
            if until and re.search(until, shown.decode(errors="ignore")):
                process.kill()
    os.close(master)
    assert process.wait(timeout=300) == (-signal.SIGKILL if until else 0)
    return shown.decode()


@pytest.mark.thorough
def test_a_terminal_shows_how_far_a_comparison_is(folder: Path) -> None:
    (folder / "case.yaml").write_text(SCENARIO.replace("samples: 5120", "samples: 512000000"))
    compare = ("compare", "case.yaml", "--out", "c", "--jobs", "1")
    run_on_a_terminal(*compare, until=r"\d+/\d+ about \d+ s left asgd, seed \d", NO_COLOR="1")


def test_a_terminal_shows_how_far_a_run_is(folder: Path) -> None:
    (folder / "case.yaml").write_text(SCENARIO.replace("samples: 5120", "samples: 409600000"))
    run, shown = ("run", "case.yaml", "-p", "asgd", "-s", "1"), r"[\d,.]+ s simulated"
    run_on_a_terminal(*run, until=rf"\d+% about \d+ s left asgd, seed 1, {shown}", NO_COLOR="1")


def test_init_asks_on_a_terminal(folder: Path) -> None:
    """A mistake is answered with the way out, and asked again."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "simstrag", "init", "slow.csv"],
        stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    os.write(master, b"0.2s\n1e6\n25Gib\n25Gbit\n\n")
    assert process.wait(timeout=300) == 0
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "A step in full precision on an idle node, such as 0.35s" in shown
    assert "--link 25Gib: there is no unit 'Gib' here; write it as in 25Gbit" in shown
    case = Scenario.read(folder / "scenario.yaml")
    assert case.inputs.allreduce.bandwidth == 3.125e9
    assert "learner.batch" in case.placeholders
    assert "step.compute" not in case.placeholders


def test_a_quiet_command_shows_no_progress(folder: Path) -> None:
    (folder / "case.yaml").write_text(SCENARIO.replace("samples: 5120", "samples: 5120000"))
    assert run_on_a_terminal("run", "case.yaml", "-q") == ""


@pytest.mark.usefixtures("no_page")
def test_there_is_no_progress_without_a_terminal(folder: Path, call: Call) -> None:
    assert call("compare", "case.yaml", "--out", "c", "--jobs", "1")[2] == ""


COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def test_a_terminal_shows_colours(folder: Path) -> None:
    assert COLOUR.search(run_on_a_terminal("run", "case.yaml"))


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert console(stderr=True).color_system
    monkeypatch.setenv("NO_COLOR", "1")
    assert console(stderr=True).color_system is None


def test_a_pipe_gets_no_colours(folder: Path, call: Call) -> None:
    assert not COLOUR.search(call("policies", "korel")[1])


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("simstrag comp", "compare"),
        ("simstrag run --pol", "--policy"),
        ("simstrag run case.yaml --policy star_", "star_ring"),
        ("simstrag policies kor", "korel"),
    ],
)
def test_a_shell_completes(
    typed: str, completed: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    monkeypatch.setenv("_SIMSTRAG_COMPLETE", "complete_bash")
    assert completed in call()[1].split()


def test_the_completion_of_another_shell_may_be_asked_for(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SIMSTRAG_COMPLETE", "")  # which the command sets
    assert call("--show-completion", "zsh")[1].strip().startswith("#compdef simstrag")
    assert call("--show-completion", "fish")[1].startswith("complete --command simstrag")


def run_in_shell(command: str) -> tuple[int, str]:
    """Exit code of a shell's first command, and what went to stderr."""
    script = f"{command}; exit ${{PIPESTATUS[0]}}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    here = {"PATH": path, "PYTHONUNBUFFERED": ""}  # written when it ends, as usual
    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | here, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["policies", "--version"])
def test_a_closed_pipe_ends_a_command_silently(command: str) -> None:
    assert run_in_shell(f"simstrag {command} | true") == (1, "")


def test_a_command_works_with_a_closed_stdout(folder: Path) -> None:
    """Starting processes for runs flushes it, and `echo` fails where it is closed."""
    (folder / "flushes.py").write_text(
        "import os, sys\nimport simstrag\nclass Flushes:\n    def plan(self, view):\n"
        "        sys.stdout.flush()\n        assert os.system('echo said') == 0\n"
        "        return simstrag.Plan()\n"
    )
    assert run_in_shell("simstrag policies flushes:Flushes >&-") == (0, "")


LEAST = ("M (%)", "speed-up", "place")


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("columns", [50, 60, 80, 140])
def test_the_ranking_leaves_columns_out_and_breaks_no_number(
    columns: int,
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    ranking = ranking_table(standings(Comparison.read(finished)))
    headers, rows = ranking.headers, [*ranking.rows, *ranking.controls]
    print_table(headers, rows, least=LEAST)
    lines = plain_lines(capsys.readouterr().out)
    assert max(map(len, lines)) <= columns
    cells = {row[0]: row[1:] for row in rows}
    shown = {name: line for line in lines for name in cells if line.startswith(f"{name}  ")}
    assert shown.keys() == cells.keys()
    said = " ".join(" ".join(lines).split()).partition("all are in --json: ")[2]
    left_out = said.split(", ") if said else []
    assert set(left_out) < set(headers)
    for name, line in shown.items():
        for header, cell in zip(headers[1:], cells[name], strict=True):
            assert (header in left_out) or cell in line


@pytest.mark.usefixtures("no_page")
def test_places_are_left_out_after_speed_ups(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    ranking = ranking_table(standings(Comparison.read(finished)))
    print_table(ranking.headers, [*ranking.rows, *ranking.controls], least=LEAST)
    shown, _, left_out = capsys.readouterr().out.partition("columns that")
    assert "place" in shown
    assert "speed-up" in " ".join(left_out.split())


def test_a_narrow_terminal_folds_cells_and_cuts_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    monkeypatch.setattr(
        "simstrag.cli.console.console", lambda: Console(width=24, color_system=None)
    )
    print_table(["policy", "time (s)"], [["korel:k_on=2,z_on=3.5", "123.4 (111.1-140.2)"]])
    letters = "".join(capsys.readouterr().out.split())
    assert "…" not in letters
    assert sorted(letters) == sorted("policytime(s)korel:k_on=2,z_on=3.5123.4(111.1-140.2)")
