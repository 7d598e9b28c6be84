"""A training script under a policy: the digits of scikit-learn on real ranks.

    simstrag ddp examples/train.py --ranks 2 -- --policy ssp:bound=2 --out runs/ssp
    torchrun --nproc-per-node 2 examples/train.py --policy korel

The script calls `wrap` and `step` of simstrag; the rest is plain PyTorch.  The options after `--`
are the script's own.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import simstrag.ddp
from simstrag.ddp.journal.run_from_journal import finish

BATCH = 32
"""Samples of a rank's step, unless the policy sets batch shares."""


def main() -> None:
    """Train on this rank; rank 0 prints loss and accuracy."""
    options = parse_arguments()
    x, y, held_out_x, held_out_y = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(indices: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x[indices]), y[indices])

    losses = []
    with simstrag.ddp.wrap(
        model, optimizer, options.policy, batch=BATCH, samples=options.samples, out=options.out
    ) as trainer:
        generator = torch.Generator().manual_seed(trainer.rank)  # ranks draw different samples
        while not trainer.over:
            indices = torch.randint(len(x), (trainer.next_batch,), generator=generator)
            losses.append(float(trainer.step(partial(loss, indices))))
    if trainer.rank == 0:
        accuracy = (model(held_out_x).argmax(1) == held_out_y).float().mean().item()
        print(f"loss: {losses[0]:.2f}, and {losses[-1]:.2f} after {len(losses)} steps of rank 0")
        print(f"accuracy: {accuracy:.2f}")
        if options.out is not None:
            finish(options.out)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of shape (n, 64) and labels for training, then the same of the held-out fifth."""
    dataset = load_digits()
    x = torch.tensor(dataset.images / 16.0, dtype=torch.float32).flatten(1)
    y = torch.tensor(dataset.target, dtype=torch.int64)
    held_out = torch.arange(len(x)) % 5 == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="korel")
    parser.add_argument("--samples", type=int, default=12_800, help="total of all ranks")
    parser.add_argument("--out", help="folder for the record of the run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
