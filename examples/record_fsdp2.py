"""Record who computes and who waits in a training under FSDP2: the two lines are in `main`.

    torchrun --nproc-per-node 4 examples/record_fsdp2.py --out runs/fsdp2
    simstrag diagnose runs/fsdp2

A small transformer learns to repeat random tokens.  With `--slow RANK` that rank gets batches 2.5
times as large from step 30 on, which the others wait for.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import simstrag.ddp

TOKENS, LENGTH, WIDTH, BATCH = 64, 32, 64, 32
SLOWER, SINCE = 2.5, 30


def main() -> None:
    """Train on this rank; rank 0 prints the loss."""
    options = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Repeater()
    for layer in model.layers:
        fully_shard(layer)  # its parameters are gathered before it computes
    fully_shard(model)
    simstrag.ddp.record(model, options.out)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    loss = torch.tensor(0.0)
    for step in range(options.steps):
        is_slow = rank == options.slow and step >= SINCE
        tokens = draw(round(SLOWER * BATCH) if is_slow else BATCH, generator)
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss: {loss.item():.2f} after {options.steps} steps")
    dist.destroy_process_group()


class Repeater(nn.Module):
    """A transformer of two layers; its forward is the loss of repeating its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.scores = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(2)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape (samples, LENGTH)."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return cross_entropy(self.scores(hidden).flatten(0, 1), tokens.flatten())


def draw(samples: int, generator: torch.Generator) -> Tensor:
    """Random tokens, shape (samples, LENGTH)."""
    return torch.randint(0, TOKENS, (samples, LENGTH), generator=generator)


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=83)
    parser.add_argument("--slow", type=int, metavar="RANK", help="give this rank more to compute")
    parser.add_argument("--out", help="folder for the record")
    return parser.parse_args()


if __name__ == "__main__":
    main()
