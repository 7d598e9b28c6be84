"""On Windows without optional packages the main job runs; what needs signals or cores says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import TRACE

ROOT = Path(__file__).parents[2]
SMALL = "{workers: 4, samples: 2560, seeds: 2, step: {compute: 0.1, cv: 0.2}}"
WORKING = (
    "compare small.yaml -o compare", f"diagnose {ROOT}/examples/logs/steps.csv -o diagnose",
    "trace describe slow.csv", "init slow.csv -o mine.yaml", "run small.yaml -o run", "report run",
    "policies korel",
)  # fmt: skip
REFUSED = {
    "ddp digits -o ddp": "a job of real ranks",
    "calibrate --workload digits -o calibrate": "a calibration",
    "validate --workload digits -o validate": "a validation",
}

Answers = dict[str, tuple[int | None, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run."""
    made: Path = tmp_path_factory.mktemp("windows")
    (made / "small.yaml").write_text(SMALL)
    (made / "slow.csv").write_text(TRACE)
    return made


@pytest.fixture(scope="module")
def answers(folder: Path) -> Answers:
    """Exit code and stderr of all commands, one after the other in one process."""
    commands = (*WORKING, *REFUSED)
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
         "from tests.support.windows import main; main()", *commands],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return dict(zip(commands, json.loads(ran.stdout), strict=True))


def test_a_comparison_runs_in_the_plain_engine(answers: Answers, folder: Path) -> None:
    code, err = answers[WORKING[0]]
    assert code in (0, None), err
    assert "the plain engine runs" in err
    assert (folder / "compare" / "report.html").exists()


@pytest.mark.parametrize("command", WORKING[1:])
def test_the_main_job_runs(answers: Answers, command: str) -> None:
    code, err = answers[command]
    assert code in (0, None), err


@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_work_says_so_in_one_line(answers: Answers, command: str) -> None:
    expected = f"{REFUSED[command]} needs Linux or macOS, and this is Windows; WSL is Linux\n"
    assert answers[command] == [2, f"error: {expected}"]
