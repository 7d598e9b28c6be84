"""Accelerate: `record(accelerator, "runs/job")` once, anywhere before the training loop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.ddp.frameworks.first_model import FirstModelRecorder

if TYPE_CHECKING:
    from accelerate import Accelerator


def record(accelerator: Accelerator, out: str | Path | None = None) -> FirstModelRecorder:
    """Record the model that the accelerator prepares, until `end_training` or the script's end.

    out: a new folder for `simstrag diagnose`; without one, slow ranks are named on stderr only.
    Each `accelerator.log` gets `simstrag/wait_seconds` and its like, too.  Raises `InputError` for
    a folder that has a record.
    """
    recorder = FirstModelRecorder(out)
    log, end_training = accelerator.log, accelerator.end_training

    def log_with_scalars(values: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        return log({**recorder.scalars(), **values}, *arguments, **named)

    def end() -> Any:
        recorder.close()
        return end_training()

    vars(accelerator).update(log=log_with_scalars, end_training=end)
    return recorder
