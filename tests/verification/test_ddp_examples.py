"""The example scripts run as their first lines say, and learn; the command goes on after faults."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from simstrag import Run
from simstrag.whatif import analyse

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


def test_the_record_of_the_fsdp2_script_names_its_slow_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = [str(EXAMPLES / "record_fsdp2.py"), "--slow", "2", "--out", str(tmp_path / "run")]
    assert told([*TORCHRUN, "--nproc-per-node", "4", *script]).startswith("loss: ")
    (named,) = analyse(tmp_path / "run").culprits
    assert (named.rank, named.pattern) == (2, "chronic")
    assert named.since == pytest.approx(30, abs=10)


@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_accelerate_hands_out_batches_to_ranks_that_wait_or_do_not(policy: str) -> None:
    for needed in ("torch", "sklearn", "accelerate"):
        pytest.importorskip(needed)
    script = [*OURS, str(EXAMPLES / "train_accelerate.py"), "--ranks", "2", "--"]
    said = told([*script, "--policy", policy, "--samples", "6400"])
    assert said.count("28 batches per epoch on each of 2 ranks") == 1  # of 57 with a rest
    first, last = losses(said)
    assert last < 0.6 * first


# -- a workload, by the command ------------------------------------------------------------------

BATCHES = 1500
"""Of 32 samples, by both ranks together: some seconds, in which something can be done to them."""


def asked(out: Path, *more: str) -> list[str]:
    return [
        *OURS, "digits", "--ranks", "2", "--batch", "32", "--samples", str(32 * BATCHES),
        "--checkpoint", "20", "--out", str(out), *more,
    ]  # fmt: skip


def started(command: list[str], out: Path, until: str) -> subprocess.Popen[str]:
    """A command under way, whose ranks have written a file."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + LIMIT
    while not (out / until).exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


def kill(rank: int, out: Path) -> None:
    """A rank of the training that records there."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = any(str(out) in word for word in each.cmdline())
            if ours and each.environ().get("RANK") == str(rank):
                each.kill()
                return
    raise AssertionError(f"there is no rank {rank}")


def left(out: Path) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(out) in word for word in each.cmdline()):
                found.append(each)
    return found


@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_ctrl_c_leaves_a_run_and_the_same_command_goes_on(tmp_path: Path, policy: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    out = tmp_path / "run"
    process = started(asked(out, "--policy", policy), out, "checkpoint.pt")
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=LIMIT)
    took = time.monotonic() - begun
    print(f"{policy}: {took:.1f} s from Ctrl-C to the end, the run made")
    assert (process.returncode, said) == (130, "")
    assert left(out) == []
    assert "Traceback" not in err
    assert took < 3.0
    *_, line = err.splitlines()
    assert re.fullmatch(
        rf"interrupted; {out} holds the run up to \d+ samples; the same command goes on from its "
        "last checkpoint",
        line,
    )
    before = Run.read(out).summary["samples"]
    assert 0 < before < 32 * BATCHES
    found = json.loads(told(asked(out, "--policy", policy, "--json")))
    assert [run["written"] for run in found["runs"]] == [str(out), str(out / "attempt-1")]
    last = Run.read(out / "attempt-1")
    assert 0 < last.frame()["samples"].min() <= before + 64
    assert last.summary["samples"] >= 32 * BATCHES
    assert last.summary["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("fault", "part"), [("restart", "attempt-1"), ("continue", "generation-1")]
)
def test_a_training_that_lost_a_rank_has_a_run_for_each_part(
    tmp_path: Path, fault: str, part: str
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    out = tmp_path / "run"
    command = asked(out, "--policy", "bsp", "--on-fault", fault, "--json")
    process = started(command, out, "checkpoint.pt")
    kill(0, out)
    said, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert left(out) == []
    first, last = json.loads(said)["runs"]
    assert (first["written"], last["written"]) == (str(out), str(out / part))
    assert first["summary"]["accuracy"] is None
    assert last["summary"]["accuracy"] > 0.8
    assert last["summary"]["samples"] >= 32 * BATCHES
    assert len(last["summary"]["wait_by_rank"]) == {"restart": 2, "continue": 1}[fault]


def test_all_that_reads_a_run_reads_a_real_one(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    out = tmp_path / "run"
    told([*OURS, "digits", "--policy", "bsp", "--samples", "6400", "--out", str(out)])
    simstrag = OURS[:-1]
    assert "report.html" in told([*simstrag, "report", str(out)])
    assert "replayed" in told([*simstrag, "validate", str(out)])
    assert "duration" in told([*simstrag, "trace", "describe", str(out / "trace.csv")])
    scenario = tmp_path / "again.yaml"
    told([*simstrag, "init", str(out / "trace.csv"), "--out", str(scenario)])
    assert "makespan" in told([*simstrag, "run", str(scenario), "--policy", "asgd"])
