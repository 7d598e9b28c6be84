"""Ctrl-C in a terminal reaches every process of a calibration, and ruins none of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")

from simstrag.calibration.samples import read

OWN = """
import torch

def job():
    model = torch.nn.Linear(64, 8)
    loss = lambda model, batch: model(batch).square().mean()
    return model, loss, torch.optim.SGD(model.parameters(), lr=0.01), lambda n: torch.randn(n, 64)
"""
PATIENCE = 240.0


def _working(process: psutil.Process, core_seconds: float = 0.05) -> bool:
    """Whether some process below it took so much within a fifth of a second."""
    children = process.children(recursive=True)
    before = [sum(child.cpu_times()[:2]) for child in children]
    time.sleep(0.2)
    return any(
        sum(child.cpu_times()[:2]) - taken > core_seconds
        for child, taken in zip(children, before, strict=True)
    )


def _group(number: int) -> list[psutil.Process]:
    """Processes of a group that have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == number and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups here")
def test_ctrl_c_to_all_during_a_visit_beside_a_load_loses_that_visit_alone(tmp_path: Path) -> None:
    interrupt(signal.SIGINT, 130, tmp_path)


def interrupt(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """Send a signal to all processes of a calibration during a visit, and check what is left."""
    (tmp_path / "mine.py").write_text(OWN)
    journal = tmp_path / "out" / "visits.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "simstrag", "calibrate", "-w", "mine:job", "--device", "cpu",
         "--part", "contention", "--batch", "4", "--precision", "fp32", "--precision", "bf16",
         "--minutes", "9", "--out", "out"],
        cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        text=True,
    ) as process:  # fmt: skip
        try:
            until, seen = time.monotonic() + PATIENCE, psutil.Process(process.pid)
            while not (journal.exists() and journal.read_text().count("\n") > 1):
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < until
                time.sleep(0.05)
            while not _working(seen):
                assert time.monotonic() < until
            os.killpg(process.pid, number)
            _, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == code, err
            assert "visits are kept in out; the same command goes on from there" in err
            assert "Traceback" not in err
            until = time.monotonic() + PATIENCE
            while _group(process.pid):  # multiprocessing's own tracker ends just after
                assert time.monotonic() < until, _group(process.pid)
                time.sleep(0.05)
        finally:
            for left in _group(process.pid):
                left.kill()
    visits = read(tmp_path / "out").visits
    assert visits
    assert not any(visit.skipped for visit in visits)
