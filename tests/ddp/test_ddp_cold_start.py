"""Ranks of a machine that has compiled nothing yet."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from simstrag import Run
from simstrag.ddp.rendezvous import START


@pytest.mark.thorough
def test_four_served_ranks_with_empty_caches_meet_their_deadline(tmp_path: Path) -> None:
    caches, out = tmp_path / "caches", tmp_path / "run"
    command = [
        sys.executable, "-m", "simstrag", "ddp", "digits", "--ranks", "4", "--policy", "asgd",
        "--batch", "32", "--samples", "2560", "--out", str(out),
    ]  # fmt: skip
    # A compiler at run time would compile once in every rank, and keep it in one of these.
    empty = {"XDG_CACHE_HOME": str(caches), "NUMBA_CACHE_DIR": str(caches)}
    began = time.monotonic()
    subprocess.run(command, env={**os.environ, **empty}, check=True, capture_output=True)
    assert time.monotonic() - began < START
    assert {*Run.read(out).gradients["rank"]} == {0, 1, 2, 3}
    assert not caches.exists()
