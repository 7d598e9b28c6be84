"""Megatron: `record("runs/job")` before `pretrain(...)`, or before a training loop of one's own.

It takes the `DistributedDataParallel` of `megatron.core` over data-parallel ranks alone; a rank
waits in `finish_grad_sync`.  Jobs with tensor or pipeline parallelism write a log of their own,
which `simstrag diagnose` reads.
"""

from __future__ import annotations

from pathlib import Path

from simstrag.ddp.frameworks.first_model import FirstModelRecorder


def record(out: str | Path | None = None) -> FirstModelRecorder:
    """Record the first model that begins to train, until `close` or the script's end.

    out: a new folder for `simstrag diagnose`; without one, slow ranks are named on stderr only.
    `scalars()` of what it returns are for `get_tensorboard_writer().add_scalar`.  Raises
    `InputError` for a folder that has a record.
    """
    return FirstModelRecorder(out)
