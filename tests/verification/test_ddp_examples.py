"""The example scripts run as their first lines say, and learn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simstrag import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
OURS = [sys.executable, "-P", "-m", "simstrag", "ddp"]
TORCHRUN = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
LIMIT = 240.0
"""Seconds after which all processes end; on a calm machine a training takes about ten."""


def told(command: list[str]) -> str:
    """What a command says; it must end well, and all that it started ends with it."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, check=False,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(said: str) -> tuple[float, float]:
    """The first and the last."""
    found = re.search(r"^loss: (\S+), and (\S+) after", said, re.MULTILINE)
    assert found is not None, said
    return float(found[1]), float(found[2])


def test_the_plain_script_learns_under_a_server_and_leaves_a_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    out = tmp_path / "run"
    said = told([
        *OURS, str(EXAMPLES / "train.py"), "--ranks", "2",
        "--", "--policy", "ssp:bound=2", "--samples", "6400", "--out", str(out),
    ])  # fmt: skip
    first, last = losses(said)
    assert last < 0.6 * first
    run = Run.read(out)
    assert run.policy == "ssp:bound=2"
    assert run.summary["samples"] >= 6400


def test_the_plain_script_learns_under_torchrun() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    script = [str(EXAMPLES / "train.py"), "--policy", "bsp", "--samples", "6400"]
    first, last = losses(told([*TORCHRUN, "--nproc-per-node", "2", *script]))
    assert last < 0.6 * first


@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_accelerate_hands_out_batches_to_ranks_that_wait_or_do_not(policy: str) -> None:
    for needed in ("torch", "sklearn", "accelerate"):
        pytest.importorskip(needed)
    script = [*OURS, str(EXAMPLES / "train_accelerate.py"), "--ranks", "2", "--"]
    said = told([*script, "--policy", policy, "--samples", "6400"])
    assert said.count("28 batches of an epoch for each of 2 ranks") == 1  # of 57 with a rest
    first, last = losses(said)
    assert last < 0.6 * first
