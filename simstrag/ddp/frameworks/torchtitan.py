"""torchtitan: `record(trainer, "runs/job").train()` in a script that builds its own trainer.

`simstrag record torchrun ... -m torchtitan.train ...` records without any script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from simstrag.ddp.frameworks.first_model import FirstModelRecorder

T = TypeVar("T")


def record(trainer: T, out: str | Path | None = None) -> T:
    """Record a `torchtitan.trainer.Trainer`, until its `close`; returns the trainer.

    out: a new folder for `simstrag diagnose`; without one, slow ranks are named on stderr only.
    What the trainer logs to TensorBoard or W&B gets `simstrag/wait_seconds` and its like, too.
    Raises `InputError` for a folder that has a record.
    """
    recorder = FirstModelRecorder(out)
    owner: Any = trainer
    log, close = owner.metrics_processor.log, owner.close

    def log_with_scalars(
        *arguments: Any, extra_metrics: dict[str, Any] | None = None, **named: Any
    ) -> Any:
        extra = {**(extra_metrics or {}), **recorder.scalars()}
        return log(*arguments, extra_metrics=extra, **named)

    def close_both() -> Any:
        recorder.close()
        return close()

    owner.metrics_processor.log, owner.close = log_with_scalars, close_both
    return trainer
