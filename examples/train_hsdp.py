"""Replicas that shard their model by FSDP2, under a policy: digits on 2 x 2 ranks.

    simstrag ddp examples/train_hsdp.py --ranks 4 -- --policy diloco:h=10
    torchrun --nproc-per-node 4 examples/train_hsdp.py --policy korel

The model is sharded within a replica only; between replicas the policy decides.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import simstrag.ddp

SHARDS, BATCH = 2, 32
"""Ranks of a replica, and samples of a replica's step."""


def main() -> None:
    """Train on this rank; rank 0 prints the loss."""
    options = parse_arguments()
    digits = load_digits()
    x = torch.tensor(digits.images / 16.0, dtype=torch.float32).flatten(1)
    y = torch.tensor(digits.target, dtype=torch.int64)

    joined = simstrag.ddp.join(patient=True)
    shape = (joined.world_size // SHARDS, SHARDS)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(indices: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x[indices]), y[indices])

    losses = []
    with simstrag.ddp.wrap(
        model, optimizer, options.policy, batch=BATCH, samples=options.samples, joined=joined
    ) as trainer:
        generator = torch.Generator().manual_seed(trainer.rank)
        while not trainer.over:
            indices = torch.randint(len(x), (trainer.next_batch,), generator=generator)
            losses.append(float(trainer.step(partial(loss, indices))))
    if trainer.rank == 0:
        print(f"loss: {losses[0]:.2f}, and {losses[-1]:.2f} after {len(losses)} steps of rank 0")


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="korel")
    parser.add_argument("--samples", type=int, default=6_400, help="total of all replicas")
    return parser.parse_args()


if __name__ == "__main__":
    main()
