"""Lightning: `Trainer(callbacks=[RecordCallback("runs/job")])` records DDP or FSDP2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from simstrag.ddp.frameworks.first_model import FirstModelRecorder
from simstrag.ddp.frameworks.record_folder import require_new

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class RecordCallback(Callback):  # type: ignore[misc]  # whichever of the two packages is there
    """Records each `fit`, and logs `simstrag/wait_seconds` and its like with the script's scalars.

    out: a new folder for `simstrag diagnose`; without one, slow ranks are named on stderr only.
    Raises `InputError` for a folder that has a record.

    Works with `lightning` and `pytorch_lightning`, with `DDPStrategy` and `ModelParallelStrategy`.
    """

    def __init__(self, out: str | Path | None = None) -> None:
        self._out = out
        self._record: FirstModelRecorder | None = None
        if out is not None:
            require_new(Path(out))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Wait for the first training step, whose model is recorded."""
        self._close()  # that of a training that raised before its teardown
        self._record = FirstModelRecorder(self._out)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Log the scalars in those steps in which Lightning writes its own."""
        if self._record is not None and not trainer.global_step % trainer.log_every_n_steps:
            pl_module.log_dict(self._record.scalars(), on_step=True, on_epoch=False)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the record, also after an exception or Ctrl-C."""
        self._close()

    def _close(self) -> None:
        if self._record is not None:
            self._record.close()
            self._record = None
