"""The same with HuggingFace accelerate: it places data, simstrag takes the steps.

    simstrag ddp examples/train_accelerate.py --ranks 2 -- --policy asgd
    torchrun --nproc-per-node 2 examples/train_accelerate.py --policy korel

accelerate may say what device there is, prepare loaders, print, and gather what is measured after
the last step.  What it must leave alone, because `step` does it, and differently for each policy:

- `prepare(model)`: it wraps the model in a DDP of its own, which sums up over all ranks in every
  backward; where a policy lets ranks go on alone, they wait there for ever.
- `prepare(optimizer)`, `backward`, `accumulate`, `clip_grad_norm_`: who updates, with whose
  gradients and when, is the policy's decision; there may be no optimizer step on this rank at all.
- `mixed_precision`: policies switch precision from step to step, and the loss scale goes with it.
- `gather`, `reduce`, `wait_for_everyone`, and loaders with `dispatch_batches` or a generator to
  synchronise, while steps are taken: ranks do not come there together.
- `save_state`: it knows nothing of the policy; save `trainer.state_dict()`.

Its loaders give batches of one size, so policies with batch shares (`lb_bsp`) are refused here.
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
    """Train on this rank; the lowest says what came of it."""
    options = arguments()
    joined = simstrag.ddp.join(patient=True)  # first: accelerate takes the group that it finds
    set_seed(0)  # ranks shuffle alike, and each takes its own part
    accelerator = Accelerator(
        cpu="nccl" not in joined.backend,  # without a word, and no GPU, it sees one rank only
        # A seed for each epoch; else ranks would send each other generators when one begins.
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
    ends = accelerator.gather(torch.stack([losses[0], losses[-1]])).view(-1, 2).mean(0).tolist()
    accelerator.print(f"{len(loader)} batches of an epoch for each of {trainer.world_size} ranks")
    accelerator.print(f"loss: {ends[0]:.2f}, and {ends[1]:.2f} after the last step of each rank")
    accelerator.end_training()


def digits() -> TensorDataset:
    """Images of shape (n, 64), and their labels."""
    found = load_digits()
    images = torch.tensor(found.images / 16.0, dtype=torch.float32).flatten(1)
    return TensorDataset(images, torch.tensor(found.target, dtype=torch.int64))


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="korel")
    parser.add_argument("--samples", type=int, default=12_800, help="of all ranks together")
    parser.add_argument("--out", help="folder for the record of the run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
