"""A rank of a sharded replica is killed: its replica is lost, and one line says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import simstrag.ddp

policy, victim = sys.argv[1], int(sys.argv[2])
joined = simstrag.ddp.join(patient=True)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = fully_shard(nn.Linear(8, 1), mesh=mesh["shard"])
optimizer, step = torch.optim.SGD(model.parameters(), lr=0.01), 0
with simstrag.ddp.wrap(
    model, optimizer, policy, batch=8, samples=640, joined=joined, precision="full"
) as trainer:
    while not trainer.over:
        if step == 8 and trainer.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(lambda: model(torch.randn(4, 8)).square().mean())
        step += 1
"""


@pytest.mark.parametrize(
    ("policy", "victim", "on_fault", "code"),
    [("bsp", 3, "stop", 1), ("bsp", 3, "continue", 1), ("asgd", 3, "continue", 0),
     ("asgd", 2, "continue", 0), ("diloco:h=3", 2, "continue", 0)],
)  # fmt: skip
def test_a_killed_rank_is_named_with_its_replica_and_the_others_go_on_under_a_server(
    policy: str, victim: int, on_fault: str, code: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    arguments = ["ddp", str(script), "--ranks", "4", "--on-fault", on_fault]
    ended = subprocess.run(
        [sys.executable, "-m", "simstrag", *arguments, "--", policy, str(victim)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    dead = f"rank {victim} is dead: the process ended at step"
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == (3 if code else 1)
    for line in errors:
        assert dead in line
        assert "replica 1 (ranks 2, 3) is lost with it" in line
    if not code:
        assert "warning: replica 1 " in ended.stderr
