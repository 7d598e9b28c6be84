"""Record two ranks of DDP that share a device, one of which has more to compute.

    torchrun --nproc-per-node 2 record_ranks.py --workload resnet50 --out record
    simstrag diagnose record

Ranks meet over gloo, because NCCL refuses two ranks on one device.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import simstrag.ddp
from simstrag import workloads

SLOWER = 1.5
"""Samples of the slow rank's batch over those of the others'."""


def main() -> None:
    """Train on this rank; rank 0 prints the number of steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="digits")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--slow", type=int, default=-1, metavar="RANK")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, device = dist.get_rank(), torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    parts = workloads.load(options.workload).build()
    model = DistributedDataParallel(parts.model.to(device).train())
    recorder = simstrag.ddp.record(model, options.out)
    samples = round(options.batch * (SLOWER if rank == options.slow else 1))
    batch = workloads.map_tensors(parts.make_batch(samples), lambda tensor: tensor.to(device))
    until, steps = time.monotonic() + options.seconds, 0
    over = torch.zeros(1)
    while not over:
        for _ in range(10):
            parts.optimizer.zero_grad()
            parts.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            parts.optimizer.step()
            steps += 1
        over.fill_(time.monotonic() > until)
        dist.all_reduce(over, dist.ReduceOp.MAX)  # all ranks end after the same step
    recorder.close()
    if rank == 0:
        print(f"{steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
