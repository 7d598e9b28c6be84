"""Two hosts, as far as their ranks can tell: their own network, processes and name.

Each has an agent of torchrun, as on a cluster, and a slow link to the other one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from simstrag import Run
from simstrag.validation.loadgen.limited_link import DEVICE, LimitedLink, probe

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"
PARAMETERS = 4 * (64 * 128 + 128 + 128 * 10 + 10)
"""Bytes of the script's model."""
LIMIT = 120.0


def agent(
    link: LimitedLink, host: int, ranks: int, policy: str, out: Path
) -> subprocess.Popen[str]:
    """What starts the ranks of one host."""
    alone = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    named = [*alone, "sh", "-c", 'hostname "$0" && exec "$@"', f"host-{host}"]
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", f"{host}",
        "--nproc-per-node", f"{ranks}", "--master-addr", link.address("a"), "--master-port",
        "29400", str(SCRIPT), "--policy", policy, "--out", str(out),
    ]  # fmt: skip
    place = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICE}
    return link.start(
        "ab"[host], [*named, *torchrun],  # type: ignore[arg-type]
        env=os.environ | place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def sent(link: LimitedLink, side: str) -> int:
    """Bytes that have left one side over the link."""
    counter = f"/sys/class/net/{DEVICE}/statistics/tx_bytes"
    command = ["ip", "netns", "exec", link.namespace(side), "cat", counter]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("policy", "ranks"),
    [("korel", 1), ("ssp:bound=2", 1), ("asgd", 2), ("cgp", 2), ("local_sgd", 2)],
)
def test_ranks_of_two_hosts_train_one_model(tmp_path: Path, policy: str, ranks: int) -> None:
    if why := probe():
        pytest.skip(why)
    with LimitedLink(rate=1e9) as link:
        agents = [agent(link, host, ranks, policy, tmp_path / "run") for host in range(2)]
        said = [each.communicate(timeout=LIMIT) for each in agents]
        assert [each.returncode for each in agents] == [0, 0], said
        passed = [sent(link, side) for side in "ab"]
    run = Run.read(tmp_path / "run")
    steps = run.frame("steps")
    assert set(steps["rank"]) == set(range(2 * ranks))
    far = len(steps[steps["rank"] >= ranks])
    least = PARAMETERS * (1 if policy == "local_sgd" else far / ranks)
    assert min(passed) > least, "gradients and parameters went over the link"
    assert "accuracy: 0.9" in said[0][0]
