"""Two hosts, as far as their ranks can tell, and a network between them that stalls."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from simstrag.ddp.workload_rank import Training, command
from simstrag.validation.loadgen.limited_link import DEVICE, LimitedLink, probe

STALL, PATIENCE = 4.0, 90.0
SECRET = secrets.token_hex(16)
FAR = "the network to the store, or who holds it: no answer for "


@pytest.fixture
def link() -> LimitedLink:
    if why := probe():
        pytest.skip(why)
    return LimitedLink()


def started(
    link: LimitedLink, rank: int, sides: str, policy: str, folder: Path
) -> subprocess.Popen[str]:
    """A rank on its side of the link, under another host name than that of the other side."""
    training = Training("digits", policy, 1 << 40, 64, out=str(folder))
    side, before = sides[rank], sides[:rank]
    inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"host-{side}"]
    place = {
        "RANK": f"{rank}", "WORLD_SIZE": f"{len(sides)}", "LOCAL_RANK": f"{before.count(side)}",
        "LOCAL_WORLD_SIZE": f"{sides.count(side)}", "MASTER_ADDR": link.address("a"),
        "MASTER_PORT": "29400", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICE,
        "SIMSTRAG_STALL_LIMIT": f"{STALL}", "SIMSTRAG_SECRET": SECRET,
    }  # fmt: skip
    return link.start(
        side, [*inside, sys.executable, *command(training)],  # type: ignore[arg-type]
        env=os.environ | place, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def updates(folder: Path) -> int:
    journal = folder / "journal.jsonl"
    said = journal.read_text() if journal.exists() else ""
    return said.count('["lockstep"') + said.count('["applied"')


def wait_for(count: int, folder: Path, ranks: list[subprocess.Popen[str]]) -> None:
    end = time.monotonic() + PATIENCE
    while updates(folder) < count:
        assert all(each.poll() is None for each in ranks), [each.poll() for each in ranks]
        assert time.monotonic() < end
        time.sleep(0.1)


def end_of(ranks: list[subprocess.Popen[str]]) -> tuple[list[str], list[float]]:
    """What each said last, and when it had ended at most, in seconds from now."""
    begun, said, took = time.monotonic(), [], []
    for each in ranks:
        said.append(each.communicate(timeout=PATIENCE)[1].splitlines()[-1])
        took.append(time.monotonic() - begun)
    print(f"ended after {', '.join(f'{seconds:.1f}' for seconds in took)} s at most")
    return said, took


@pytest.mark.parametrize("sides", ["ab", "aab"])
def test_both_ends_of_a_network_that_stalls_end_in_time_and_name_it(
    tmp_path: Path, link: LimitedLink, sides: str
) -> None:
    with link:
        ranks = [started(link, rank, sides, "bsp", tmp_path) for rank in range(len(sides))]
        wait_for(20, tmp_path, ranks)
        link.cut()
        said, took = end_of(ranks)
    assert [each.returncode for each in ranks] == [1] * len(sides)
    assert max(took) < STALL + 2
    last = len(sides) - 1
    for rank, near in enumerate(said[:-1]):
        assert near.startswith(f"error: rank {rank}: the network to rank {last}, or rank {last}: ")
        assert " at step " in near
    assert said[-1].startswith(f"error: rank {last}: {FAR}")
    assert (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize("rate", [None, 8e6], ids=["between-frames", "inside-a-frame"])
def test_under_a_server_the_near_end_goes_on_and_the_far_one_ends_in_time(
    tmp_path: Path, link: LimitedLink, rate: float | None
) -> None:
    with link:
        near, far = ranks = [started(link, k, "ab", "asgd", tmp_path) for k in range(2)]
        wait_for(20, tmp_path, ranks)
        if rate is not None:  # a gradient, or parameters, are always on their way
            link.limit(rate)
            wait_for(updates(tmp_path) + 100, tmp_path, ranks)
        link.cut()
        said, took = end_of([far])
        wait_for(updates(tmp_path) + 20, tmp_path, [near])
        near.kill()
        _, told = near.communicate()
    assert far.returncode == 1
    assert max(took) < STALL + 2
    assert said[0].startswith(f"error: rank 1: {FAR}")
    assert f"warning: rank 1 was silent for {STALL:g} s " in told
