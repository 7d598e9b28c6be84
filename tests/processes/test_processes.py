"""Processes that compute: they end with the one that started them, and say nothing of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")

CASE = """
workers: 4
samples: 51_200_000_000_000
step: {compute: 0.1, cv: 0.03}
policies: [bsp]
seeds: 2
"""
COMMAND = (  # a parent may have taught this process to ignore Ctrl-C
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from simstrag.cli import main; main()"
)
WORKER = "popen_loky_posix"


@pytest.fixture
def comparing(tmp_path: Path) -> subprocess.Popen[str]:
    """A comparison that goes on for hours, in a session of its own."""
    (tmp_path / "case.yaml").write_text(CASE)
    arguments = ("compare", "case.yaml", "--out", "c", "--jobs", "2")
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def alive(session: int) -> list[str]:
    """The command lines of the processes of a session that are not dead."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, of, *_ = (folder / "stat").read_text().rpartition(") ")[2].split()
            command = (folder / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
        if int(of) == session and state != "Z":
            found.append(command)
    return found


def until(true: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Whether something became true in time."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def works(process: subprocess.Popen[str]) -> bool:
    return any(WORKER in command for command in alive(process.pid))


def test_who_is_killed_leaves_no_process_behind(comparing: subprocess.Popen[str]) -> None:
    assert until(lambda: works(comparing))
    comparing.kill()
    comparing.communicate(timeout=300)
    assert until(lambda: not alive(comparing.pid)), alive(comparing.pid)


@pytest.mark.parametrize(
    ("number", "code", "delay"),
    [
        (signal.SIGINT, 130, 0.0),
        pytest.param(signal.SIGTERM, 143, 1.0, marks=pytest.mark.thorough),
        pytest.param(signal.SIGHUP, 129, 0.0, marks=pytest.mark.thorough),
    ],
)
def test_what_all_processes_of_a_terminal_are_told_is_answered_in_one_line(
    comparing: subprocess.Popen[str], tmp_path: Path, number: int, code: int, delay: float
) -> None:
    assert until(lambda: works(comparing))
    time.sleep(delay)
    os.killpg(comparing.pid, number)
    _, err = comparing.communicate(timeout=300)
    warning, said = err.splitlines()  # the case would take hours
    assert warning.startswith("warning: this takes about ")
    assert (comparing.returncode, said) == (code, "interrupted; nothing was written")
    assert [path.name for path in tmp_path.iterdir()] == ["case.yaml"]
    assert until(lambda: not alive(comparing.pid))


def test_a_signal_waits_until_processes_are_made_whatever_threads_there_are() -> None:
    """A library's thread that blocks no signal takes it, and main would raise what it means."""
    program = """
import os, signal, threading
from simstrag.processes.signals import postpone_stop
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
with postpone_stop():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(100_000): pass
    print("made", flush=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ended.stdout.split() == ["made", "heard"]


def test_a_signal_that_the_caller_wants_to_be_ignored_is(tmp_path: Path) -> None:
    """As `nohup` and a shell's `&` do."""
    program = COMMAND.partition("; ")[0] + (
        "; import os; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "from simstrag.processes.signals import interrupt_on_stop\n"
        "with interrupt_on_stop(): os.kill(os.getpid(), signal.SIGHUP)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
