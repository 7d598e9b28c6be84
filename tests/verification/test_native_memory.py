"""Native code reads and writes inside its tables alone, and does nothing undefined."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = (
    "contract/test_compiled.py", "engine/test_vectors.py", "engine/test_stories.py",
    "engine/test_feature_stories.py", "policies/test_star_stories.py", "engine/test_tree.py",
    "engine/test_equivalence.py",
)  # fmt: skip
FLAGS = (
    "-std=c17 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined "
    "-ffp-contract=off -fopenmp-simd -shared -fPIC"
)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")
def test_all_stories_and_drawn_cases_run_under_sanitizers(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "simstrag", tmp_path / "simstrag")
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("verif*"))
    native = tmp_path / "simstrag" / "engine" / "native"
    command = ["gcc", *FLAGS.split(), "-o", str(native / "kernel.so"), str(native / "kernel.c")]
    subprocess.run([*command, "-lm"], check=True)
    libraries = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}.so"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan", "libubsan")
    ]
    variables = {
        "PYTHONPATH": str(tmp_path), "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own, which it keeps until it ends
    }  # fmt: skip
    ran = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull,
            "--rootdir", str(tmp_path), "--import-mode=importlib",
            *(f"{tmp_path}/tests/{name}" for name in TESTS),
        ],
        env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "passed" in ran.stdout
