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
import atexit, contextlib, sys, time
from pathlib import Path

def threads():
    found = 0
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            found += "gloo" in path.read_text()
    return found

@atexit.register  # the first comes last
def say():
    until = time.monotonic() + 60
    while threads() and time.monotonic() < until:
        time.sleep(0.01)  # one that has ended is to be seen for some microseconds
    print(f"at the end {threads()} threads")

import torch, torch.distributed as dist
import simstrag.ddp
"""

ALL = "dist.all_gather_object([None] * dist.get_world_size(), 1)\n"
JOINED = f"simstrag.ddp.join()\n{ALL}"
TRAINED = """
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters())
trainer = simstrag.ddp.wrap(model, optimizer, sys.argv[1], precision="full")
for _ in range(3):
    trainer.step(lambda: model(torch.ones(1, 2)).sum())
"""
SHOWN = 'print(f"with a group {threads() > 0}")\n'
CLOSED = f"{SHOWN}trainer.close()\n{ALL}"
DESTROYED = f"{CLOSED}dist.destroy_process_group()\n"


def check_last_threads(folder: Path, policy: str, body: str) -> None:
    """Run a script on two ranks; no thread of gloo may be left when each interpreter ends."""
    script = folder / "script.py"
    script.write_text(HEAD + body)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "simstrag", "ddp", str(script), "--ranks", "2",
         "--", policy],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("with a group True") == 2, done.stdout
    assert done.stdout.count("at the end 0 threads") == 2, done.stdout


@pytest.mark.thorough
def test_no_thread_of_gloo_outlives_a_script_that_closed_its_training(tmp_path: Path) -> None:
    check_last_threads(tmp_path, "asgd", TRAINED + CLOSED)
