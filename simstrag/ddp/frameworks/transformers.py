"""Hugging Face Trainer: `record(trainer, "runs/job")` before `trainer.train()`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from simstrag.ddp.frameworks.first_model import FirstModelRecorder
from simstrag.ddp.frameworks.record_folder import require_new


class _Record(TrainerCallback):  # type: ignore[misc]
    """Records `trainer.train()`, and adds `simstrag/wait_seconds` and its like to what is logged.

    out: a new folder for `simstrag diagnose`; without one, slow ranks are named on stderr only.
    Raises `InputError` for a folder that has a record.

    It stands before the loggers of `report_to`, which would not see its scalars otherwise.
    """

    def __init__(self, out: str | Path | None = None) -> None:
        self._out = out
        self._record: FirstModelRecorder | None = None
        if out is not None:
            require_new(Path(out))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait for the first training step, whose model is recorded."""
        self._close()  # that of a training that raised, whose end is not told
        self._record = FirstModelRecorder(self._out)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Add the scalars to those of a training step."""
        if self._record is not None and logs is not None and "loss" in logs:
            logs.update(self._record.scalars())

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the record."""
        self._close()

    def _close(self) -> None:
        if self._record is not None:
            self._record.close()
            self._record = None


def record(trainer: Any, out: str | Path | None = None) -> None:
    """Record a trainer's training, with its scalars in TensorBoard, W&B and the printed log.

    trainer: a `transformers.Trainer`, before `train()`.
    out: a new folder for `simstrag diagnose`.
    """
    trainer.callback_handler.callbacks.insert(0, _Record(out))
