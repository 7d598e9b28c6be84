"""The script train.py with HuggingFace accelerate, which places data; simstrag takes the steps.

    simstrag ddp examples/train_accelerate.py --ranks 2 -- --policy asgd
    torchrun --nproc-per-node 2 examples/train_accelerate.py --policy korel

accelerate may choose the device, prepare loaders, print, and gather measurements after the last
step.  A script must not use these, because the trainer does their work differently for each policy:

- `prepare(model)` wraps the model in a DDP of its own, whose backward waits for all ranks.  Under a
  policy that lets ranks go on alone, it waits for ever.
- `prepare(optimizer)`, `backward`, `accumulate` and `clip_grad_norm_` decide when to update and
  with which gradients.  The policy decides that; this rank may take no optimizer step at all.
- `mixed_precision` fixes the precision.  Policies switch it, and the loss scale, from step to step.
- `gather`, `reduce`, `wait_for_everyone`, and loaders with `dispatch_batches` or a synchronised
  generator, need all ranks at once.  During training the ranks do not get there together.
- `save_state` does not save the policy.  Save `trainer.state_dict()`.

The loaders of accelerate give batches of one size, so simstrag refuses policies with batch
shares (`lb_bsp`) here.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import simstrag.ddp

BATCH = 32
"""Samples of a rank's step."""


def main() -> None:
    """Train on this rank; rank 0 prints the mean loss of all ranks."""
    options = parse_arguments()
    joined = simstrag.ddp.join(patient=True)  # first: accelerate uses an existing group
    set_seed(0)  # all ranks shuffle alike, and each takes its own part
    accelerator = Accelerator(
        cpu="nccl" not in joined.backend,  # by default and without a GPU, it sees one rank
        # One seed per epoch; otherwise the ranks exchange generators at the start of each epoch.
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    data = DataLoader(digits(), batch_size=BATCH, shuffle=True, drop_last=True)
    loader = accelerator.prepare(data)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(accelerator.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    losses: list[Tensor] = []
    with simstrag.ddp.wrap(
        model, optimizer, options.policy, batch=BATCH, samples=options.samples, out=options.out,
        joined=joined,
    ) as trainer:  # fmt: skip
        while not trainer.over:
            for x, y in loader:
                losses.append(trainer.step(partial(loss, x, y)))
                if trainer.over:
                    break
    means = accelerator.gather(torch.stack([losses[0], losses[-1]])).view(-1, 2).mean(0).tolist()
    accelerator.print(f"{len(loader)} batches per epoch on each of {trainer.world_size} ranks")
    accelerator.print(f"loss: {means[0]:.2f}, and {means[1]:.2f} after the last step of each rank")
    accelerator.end_training()


def digits() -> TensorDataset:
    """Images of shape (n, 64) and their labels."""
    dataset = load_digits()
    images = torch.tensor(dataset.images / 16.0, dtype=torch.float32).flatten(1)
    return TensorDataset(images, torch.tensor(dataset.target, dtype=torch.int64))


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="korel")
    parser.add_argument("--samples", type=int, default=12_800, help="total of all ranks")
    parser.add_argument("--out", help="folder for the record of the run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
