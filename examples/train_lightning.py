"""Record a training of Lightning: the line is that of the callback.

    torchrun --nproc-per-node 2 examples/train_lightning.py --out runs/lightning
    simstrag diagnose runs/lightning

A small network learns random numbers.  With `--slow RANK` that rank is late with each batch.
"""

from __future__ import annotations

import argparse
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from simstrag.ddp.frameworks.lightning import RecordCallback

LATE, STEPS, BATCH = 0.02, 60, 32


class Regression(LightningModule):
    """Two layers; the slow rank sleeps before its batch."""

    def __init__(self, slow: int | None) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.slow = slow

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """The mean squared error."""
        if self.global_rank == self.slow:
            time.sleep(LATE)
        x, y = batch
        loss = nn.functional.mse_loss(self.network(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    """Train on this rank, which torchrun started."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", help="folder for the record")
    parser.add_argument("--slow", type=int, metavar="RANK")
    options = parser.parse_args()
    data = TensorDataset(torch.randn(2 * STEPS * BATCH, 64), torch.randn(2 * STEPS * BATCH, 1))
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=STEPS, log_every_n_steps=10,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        logger=CSVLogger(f"{options.out}-logs") if options.out else False,
        callbacks=[RecordCallback(options.out)],
    )  # fmt: skip
    trainer.fit(Regression(options.slow), DataLoader(data, BATCH))


if __name__ == "__main__":
    main()
