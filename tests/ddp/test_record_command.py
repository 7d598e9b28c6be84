"""`simstrag record`: the ranks of any command are recorded, and the command never notices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simstrag.ddp.frameworks.in_process import NOTES, note
from simstrag.ddp.frameworks.launch import REASONS, STARTUP, RecordedCommand, record_command
from simstrag.errors import InputError
from tests.support.commands import Call

ROOT = Path(__file__).parents[2]

RANK = """
import os, sys, torch, torch.distributed as dist
from torch import nn
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.set_num_threads(1)
if "wrapped" in sys.argv:
    from tests.support.virtual_time import virtual_time
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    with virtual_time() as clock:
        for _ in range(int(sys.argv[2])):
            clock.compute(0.01 * (1 + rank))
            model(torch.ones(4, 8)).mean().backward()
else:
    nn.Linear(8, 1)(torch.ones(4, 8)).mean().backward()
dist.destroy_process_group()
"""
"""A rank that records on told time; rank 1 is slow."""

RANKS = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "rank.py", *sys.argv[1:]],
         env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
code = max([each.wait() for each in ranks])
sys.exit(code or 7)
"""
"""A launcher, which imports no torch and has an exit code of its own."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of a job of two ranks, in a folder of its own."""
    (tmp_path / "rank.py").write_text(RANK, encoding="utf-8")
    (tmp_path / "ranks.py").write_text(RANKS, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.chdir(tmp_path)
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    given |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return [sys.executable, "ranks.py"]


def test_a_job_is_recorded_and_its_exit_code_is_the_commands(job: list[str], call: Call) -> None:
    arguments = ("record", "--out", "runs/job", *job, "wrapped", "60")
    command = [sys.executable, "-m", "simstrag", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "\nwho     Rank 1 takes " in f"\n{done.stderr}"
    assert done.stderr.splitlines()[-1] == "next    simstrag diagnose runs/job"
    code, _, err = call(*arguments)
    assert code == 2
    assert err.endswith("a job was recorded there; choose another folder\n")


def test_a_job_without_a_wrapper_gets_the_reason(job: list[str]) -> None:
    assert record_command(job, "runs/job") == RecordedCommand(7, None, REASONS["bare"])
    assert not Path("runs/job").exists()


@pytest.mark.thorough
def test_ctrl_c_reaches_the_command_and_the_record_is_kept(job: list[str]) -> None:
    record = [sys.executable, "-m", "simstrag", "record", "--quiet", "--out", "run"]
    process = subprocess.Popen(
        [*record, sys.executable, "rank.py", "wrapped", "1000000"],
        env={**os.environ, "RANK": "0"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    other = subprocess.Popen(
        [*record, sys.executable, "rank.py", "wrapped", "1000000"],
        env={**os.environ, "RANK": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    steps, end = Path("run/rank-0.csv"), time.monotonic() + 300
    while not steps.exists() or steps.stat().st_size < 100:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    other.send_signal(signal.SIGTERM)
    other.communicate(timeout=300)
    assert (process.returncode, said) == (130, "run\n")
    assert steps.stat().st_size >= 100


def test_a_process_that_imports_no_torch_is_told(tmp_path: Path) -> None:
    done = record_command([sys.executable, "-c", "raise SystemExit(5)"], tmp_path / "run")
    assert done == RecordedCommand(5, None, REASONS[""])


def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such-command: cannot be started: No such file"):
        record_command(["no-such-command"], tmp_path / "run")


def test_a_signal_that_ends_the_command_is_its_exit_code(tmp_path: Path) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert record_command([sys.executable, "-c", kill], tmp_path / "run").code == 143


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('other')", encoding="utf-8")
    path = os.pathsep.join([str(STARTUP), str(tmp_path), str(ROOT)])
    program = "import sys, sitecustomize; print(sitecustomize.__file__, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path, "SIMSTRAG_RECORD": str(tmp_path / "run")},
    )  # fmt: skip
    assert done.stdout.split() == ["other", str(tmp_path / "sitecustomize.py"), "False"]


def test_a_process_that_outlives_the_command_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NOTES, str(tmp_path / "gone" / "notes"))
    note("torch")
    assert not (tmp_path / "gone").exists()
