"""The largest cluster that is promised, within the memory that is promised for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKERS, UPDATES, MEGABYTES = 65_536, 1000, 400


@pytest.mark.parametrize("cv", [0, 0.1])
def test_65536_workers_over_1000_updates_take_less_than_400_megabytes(
    cv: float, tmp_path: Path
) -> None:
    made = {"workers": WORKERS, "updates": UPDATES, "step": {"compute": 0.1, "cv": cv}}
    (tmp_path / "scenario.yaml").write_text(json.dumps(made), encoding="utf-8")
    command = ["-m", "simstrag", "run", str(tmp_path / "scenario.yaml"), "--quiet"]
    most = subprocess.run(
        [sys.executable, "-c", WATCHING, *command], capture_output=True, text=True, check=True
    )
    assert float(most.stdout) < MEGABYTES


WATCHING = """
import resource, subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""
