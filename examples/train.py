"""A training script under a policy: scikit-learn's handwritten digits on real ranks.

    simstrag ddp examples/train.py --ranks 2 -- --policy ssp:bound=2 --out runs/ssp
    torchrun --nproc-per-node 2 examples/train.py --policy korel

Of simstrag there are `wrap` and `step`; the rest is PyTorch as it always is.  What follows `--` are
options of this script.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import simstrag.ddp
from simstrag.ddp.record.run_from_journal import finish

BATCH = 32
"""Samples of a rank's step, where the policy does not share them out unevenly."""


def main() -> None:
    """Train on this rank; the lowest says what came of it."""
    options = arguments()
    x, y, held_out_x, held_out_y = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(drawn: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x[drawn]), y[drawn])

    losses = []
    with simstrag.ddp.wrap(
        model, optimizer, options.policy, batch=BATCH, samples=options.samples, out=options.out
    ) as trainer:
        luck = torch.Generator().manual_seed(trainer.rank)  # every rank draws samples of its own
        while not trainer.over:
            drawn = torch.randint(len(x), (trainer.next_batch,), generator=luck)
            losses.append(float(trainer.step(partial(loss, drawn))))
    if trainer.rank == 0:
        right = (model(held_out_x).argmax(1) == held_out_y).float().mean().item()
        print(f"loss: {losses[0]:.2f}, and {losses[-1]:.2f} after {len(losses)} steps of rank 0")
        print(f"accuracy: {right:.2f}")
        if options.out is not None:
            finish(options.out)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of shape (n, 64) with their labels; then every fifth, on which nothing is trained."""
    found = load_digits()
    x = torch.tensor(found.images / 16.0, dtype=torch.float32).flatten(1)
    y = torch.tensor(found.target, dtype=torch.int64)
    held_out = torch.arange(len(x)) % 5 == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="korel")
    parser.add_argument("--samples", type=int, default=12_800, help="of all ranks together")
    parser.add_argument("--out", help="folder for the record of the run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
