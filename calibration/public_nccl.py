"""All-reduce of A100s, 8 per node, derived from public logs of nccl-tests: 2, 8, 32, 128 GPUs."""

from __future__ import annotations

from pathlib import Path

from simstrag.calibration import nccl_profile
from simstrag.profile.profile import Profile

__all__ = ["a100"]


def a100(traces: Path) -> Profile:
    """From `nccl-tests-a100` in a folder of public traces."""
    folder = traces / "nccl-tests-a100"
    return nccl_profile.profile(
        [folder / f"nccl_{gpus}.log" for gpus in (2, 8, 32, 128)],
        "a100-nccl-tests",
        source="NetX-lab/Echo @15f0d12 (MIT): nccl-tests all-reduce logs, single runs",
        note="The library changes protocols with the size, which no single alpha and bandwidth "
        "follow: the fits of one placement over all sizes are off by up to 80 % (residuals). The "
        "constants of allreduce are of 1 MiB and more; those of links inside a node, told by 2 "
        "and 8 GPUs only, predict one of the two from the other badly (held_out).",
        date="2026-11-21",
        command="python -m simstrag.calibration.public a100-nccl-tests TRACES "
        "--out a100-nccl-tests.json",
    )
