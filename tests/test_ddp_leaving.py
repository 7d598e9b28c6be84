"""How a training script ends: nothing of the process group is left that could abort the process.

A thread of gloo that lets go of a tensor while the interpreter shuts down ends it by SIGABRT, so at
that time there must be none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

HEAD = """
import atexit, os, sys

def threads():
    names = [open(f"/proc/self/task/{each}/comm").read() for each in os.listdir("/proc/self/task")]
    return sum("gloo" in name for name in names)

atexit.register(lambda: print(f"at the end {threads()} threads"))  # the first comes last

import torch, torch.distributed as dist
import simstrag.ddp

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters())
trainer = simstrag.ddp.wrap(model, optimizer, sys.argv[1], precision="full")
for _ in range(3):
    trainer.step(lambda: model(torch.ones(1, 2)).sum())
print(f"while it trains {threads() > 0}")
"""

CLOSED = "trainer.close(); dist.all_gather_object([None] * dist.get_world_size(), 1)"
DESTROYED = "trainer.close(); dist.barrier(); dist.destroy_process_group()"


@pytest.mark.parametrize(
    ("policy", "end"),
    [("bsp", ""), ("asgd", CLOSED), ("p_reduce:p=2", DESTROYED)],
    ids=["by itself", "closed", "group destroyed"],
)
def test_no_thread_of_gloo_outlives_a_script(tmp_path: Path, policy: str, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + end)
    told = subprocess.run(
        [sys.executable, "-P", "-m", "simstrag", "ddp", str(script), "--ranks", "2",
         "--", policy],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("while it trains True") == 2, told.stdout
    assert told.stdout.count("at the end 0 threads") == 2, told.stdout
