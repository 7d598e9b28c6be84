"""The live view beside real ranks, one of which is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from simstrag.analysis.monitor.placement import place, rank_processes
from simstrag.analysis.monitor.watcher import Watcher
from tests.analysis.test_watch import assert_as_diagnosed

pytestmark = [pytest.mark.real, pytest.mark.thorough]

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import simstrag.ddp
rank = int(os.environ["RANK"])
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
simstrag.ddp.record(model, sys.argv[1], look_every=0)
while True:
    time.sleep(0.03 if rank == 1 else 0.01)
    model(torch.ones(8, 64)).sum().backward()
"""
LIMIT = 300.0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """The folder of a record that two ranks write, and the ranks; both on the first core."""
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder)], stderr=subprocess.DEVNULL,
            env={**os.environ, **shared, "PYTHONPATH": os.pathsep.join(sys.path), "RANK": str(k)},
        )
        for k in range(2)
    ]  # fmt: skip
    try:
        yield folder, ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_real_ranks_are_watched_until_one_is_killed(
    job: tuple[Path, list[subprocess.Popen[bytes]]],
) -> None:
    folder, ranks = job
    deadline = time.monotonic() + LIMIT
    while len(list(folder.glob("rank-*.csv"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    watcher = Watcher([folder])
    found = watcher.update()
    while (found.slowest is None or found.steps < 150) and time.monotonic() < deadline:
        time.sleep(0.2)
        found = watcher.update()
    assert found.slowest[0] == 1
    if sys.platform == "linux":
        assert set(rank_processes([folder])) >= {rank.pid for rank in ranks}
        first, *others = sorted(os.sched_getaffinity(0))
        assert first not in place([folder]).cores
        assert set(place([folder]).cores) <= set(others)
    ranks[1].send_signal(signal.SIGKILL)
    for rank in ranks:
        rank.wait(LIMIT)
    assert_as_diagnosed(watcher.catch_up(), folder)
