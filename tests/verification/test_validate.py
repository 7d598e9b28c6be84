"""Real ranks beside real load, held against their simulation: all of it once, in small."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from simstrag.runs.run import Run
from simstrag.validation.rank_pool import RankPool
from simstrag.validation.replay import replay
from tests.support.full_profile import quantity
from tests.validation.test_validate import ALONE, digits_profile

pytestmark = pytest.mark.timeout(3000)
LIMIT = 1200.0
"""Seconds for all runs, on however busy a machine."""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("validate")
    with RankPool(2, "digits") as ranks:  # runs are to be of the pace that the profile says
        pace = statistics.fmean(s for _ in range(3) for s in ranks.pace(ALONE))
    known = digits_profile()
    assert known.step is not None
    step = known.step.model_dump() | {"compute": quantity(pace)}
    (folder / "profile.json").write_text(digits_profile(step=step).text)
    return [
        sys.executable, "-P", "-m", "simstrag", "validate", "--profile",
        str(folder / "profile.json"), "--out", str(folder / "out"), "--policy", "korel",
        "--ranks", "2", "--steps", "20", "--repetitions", "2", "--json",
    ]  # fmt: skip


def out(command: list[str]) -> Path:
    return Path(command[command.index("--out") + 1])


@pytest.fixture(scope="module")
def killed(command: list[str]) -> tuple[list[psutil.Process], dict[Path, int]]:
    """What a SIGKILL in the midst of the runs leaves: processes, and when runs were finished."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        until = time.monotonic() + LIMIT
        while not (finished := list(out(command).glob("runs/*/outcome.json"))):
            assert process.poll() is None, "it ended before its first run did"
            assert time.monotonic() < until
            time.sleep(0.02)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    _, left = psutil.wait_procs(children, timeout=10)
    assert len(children) >= 2
    return left, {path: path.stat().st_mtime_ns for path in finished}


def test_a_kill_leaves_no_process_and_keeps_what_was_finished(
    command: list[str], killed: tuple[list[psutil.Process], dict[Path, int]]
) -> None:
    left, finished = killed
    assert left == []
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    found = json.loads(done.stdout)
    assert [case["case"] for case in found["cases"]] == ["clean-2-bsp", "one-2-bsp", "one-2-korel"]
    assert all(run["finished"] for run in found["runs"])
    for case in found["cases"]:
        assert len(case["real"]) == 2
        for real in case["real"]:
            assert real["makespan"] > 0.02 * 20 / 4
            assert 0 <= real["accuracy"] <= 1
    loaded = [run for run in found["runs"] if run["case"] != "clean-2-bsp"]
    assert all(run["load"] for run in loaded)
    assert all(load["rank"] == 1 for run in loaded for load in run["load"])
    assert found["mitigation"][0]["policy"] == "korel"
    for name in ("report.html", "validation.csv", "validation.json", "plan.json"):
        assert (out(command) / name).stat().st_size > 100


def test_a_run_of_it_can_be_replayed(command: list[str]) -> None:
    folder = out(command) / "runs" / "clean-2-bsp-1"
    run = Run.read(folder)
    found = replay(folder, command[command.index("--profile") + 1])
    makespan, step = found.lines[:2]
    assert makespan.real == pytest.approx(run.summary["makespan"])
    assert step.real == pytest.approx(makespan.real / 20)
    assert abs(makespan.error) < 0.1, "its own times, so about as long"
    assert makespan.predicted is not None
