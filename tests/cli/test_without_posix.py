"""On Windows comparisons and diagnoses run; what needs signals or pinned cores says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def on_windows(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.windows", *arguments, "--out", str(folder / "out")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_comparison_runs_in_the_plain_engine(tmp_path: Path) -> None:
    scenario = tmp_path / "small.yaml"
    scenario.write_text("{workers: 4, samples: 2560, seeds: 2, step: {compute: 0.1, cv: 0.2}}")
    ran = on_windows(tmp_path, "compare", str(scenario))
    assert ran.returncode == 0, ran.stderr
    assert "the plain engine runs" in ran.stderr
    assert (tmp_path / "out" / "report.html").exists()


def test_a_diagnosis_runs(tmp_path: Path) -> None:
    ran = on_windows(tmp_path, "diagnose", "examples/logs/steps.csv")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("ddp", "digits"), "a job of real ranks"),
        (("calibrate", "--workload", "digits"), "a calibration"),
        (("validate", "--workload", "digits"), "a validation"),
    ],
)
def test_what_cannot_work_says_so_in_one_line(
    tmp_path: Path, command: tuple[str, ...], what: str
) -> None:
    ran = on_windows(tmp_path, *command)
    expected = f"error: {what} needs Linux or macOS, and this is Windows; WSL is Linux\n"
    assert (ran.returncode, ran.stderr) == (2, expected)
