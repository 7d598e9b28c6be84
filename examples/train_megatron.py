"""Record a training in the DistributedDataParallel of megatron.core: the line is `record(...)`.

    torchrun --nproc-per-node 2 examples/train_megatron.py --out runs/megatron
    simstrag diagnose runs/megatron

A small network learns random numbers.  With `--slow RANK` that rank is late with each batch.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer import TransformerConfig
from torch import nn

from simstrag.ddp.frameworks.megatron import record

LATE, STEPS, BATCH = 0.02, 60, 32


def main() -> None:
    """Train on this rank, as `train_step` of Megatron-LM does; rank 0 prints the loss."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", help="folder for the record")
    parser.add_argument("--slow", type=int, metavar="RANK")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    if not torch.cuda.is_available():  # Megatron makes its buffers on the current GPU
        torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    record(options.out)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=1)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(STEPS):
        if dist.get_rank() == options.slow:
            time.sleep(LATE)
        model.zero_grad_buffer()
        loss = model(torch.randn(BATCH, 64)).square().mean()
        loss.backward()
        model.finish_grad_sync()
        for parameter in network.parameters():  # as Megatron's optimizers do
            parameter.grad = parameter.main_grad
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss: {loss.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
