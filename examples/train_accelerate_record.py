"""Record a training of Accelerate: the line is `record(accelerator, ...)`.

    accelerate launch --cpu --num-processes 2 examples/train_accelerate_record.py --out runs/hf
    simstrag diagnose runs/hf

A small network learns random numbers.  With `--slow RANK` that rank is late with each batch.
`train_accelerate.py` trains under a policy instead.
"""

from __future__ import annotations

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simstrag.ddp.frameworks.accelerate import record

LATE, STEPS, BATCH = 0.02, 60, 32


def main() -> None:
    """Train on this rank; rank 0 prints the loss."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", help="folder for the record")
    parser.add_argument("--slow", type=int, metavar="RANK")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    record(accelerator, options.out)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    data = TensorDataset(torch.randn(2 * STEPS * BATCH, 64), torch.randn(2 * STEPS * BATCH, 1))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(data, BATCH)
    )
    loss = torch.tensor(0.0)
    for x, y in loader:
        if accelerator.process_index == options.slow:
            time.sleep(LATE)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"loss: {loss.item():.2f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
