"""Two hosts, as far as their ranks can tell, and a network between them that stalls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from simstrag.ddp.training import Training, command
from simstrag.fidelity.network import DEVICE, Link, probe

STALL, PATIENCE = 4.0, 90.0


def started(link: Link, rank: int, folder: Path) -> subprocess.Popen[str]:
    """A rank on its side of the link, under another host name than that of the other side."""
    training = Training("digits", "bsp", 1 << 40, 64, out=str(folder), checkpoint=5)
    inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"host-{rank}"]
    place = {
        "RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": link.address("a"), "MASTER_PORT": "29400", "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": DEVICE, "SIMSTRAG_STALL_LIMIT": f"{STALL}",
    }  # fmt: skip
    return link.start(
        "ab"[rank], [*inside, sys.executable, *command(training)],  # type: ignore[arg-type]
        env=os.environ | place, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_both_ends_of_a_network_that_stalls_end_in_time_and_name_it(tmp_path: Path) -> None:
    if why := probe():
        pytest.skip(why)
    folder = tmp_path / "run"
    journal = folder / "journal.jsonl"
    with Link() as link:
        ranks = [started(link, rank, folder) for rank in range(2)]
        end = time.monotonic() + PATIENCE
        while not (journal.exists() and journal.read_text().count('["lockstep"') > 20):
            assert all(each.poll() is None for each in ranks), [each.poll() for each in ranks]
            assert time.monotonic() < end
            time.sleep(0.1)
        link.cut()
        before = (folder / "checkpoint.pt").stat().st_mtime_ns
        begun, took, said = time.monotonic(), [], []
        for each in ranks:
            said.append(each.communicate(timeout=PATIENCE)[1])
            took.append(time.monotonic() - begun)
    print(f"rank 0 ended after {took[0]:.1f} s, rank 1 after {took[1]:.1f} s at most")
    assert [each.returncode for each in ranks] == [1, 1]
    assert max(took) < STALL + 2
    near, far = (each.splitlines()[-1] for each in said)
    assert near.startswith("error: rank 0: the network to rank 1, or rank 1: nothing heard for ")
    assert " at step " in near
    assert far.startswith("error: rank 1: the network to the store, or who holds it: no answer for")
    assert (folder / "checkpoint.pt").stat().st_mtime_ns > before
