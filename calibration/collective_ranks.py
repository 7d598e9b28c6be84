"""The processes whose collectives are timed: one rank each, in all the groups that are asked for.

Every rank makes every group at the start and in the same order, so that no visit pays for it.
"""

from __future__ import annotations

import datetime
import os
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from simstrag.calibration.crew import obey
from simstrag.calibration.processes import STALL

if TYPE_CHECKING:
    import torch

__all__ = ["Group", "Reduce", "join", "reduce_ranks"]

Group = tuple[int, ...]
"""The ranks of a group, in order."""

Reduce = tuple[Group, Group, int, int]
"""An order: the group that reduces, all that begin together, bytes, repetitions."""


def join(rank: int, world: int, store: str, backend: str, device: str) -> torch.device:
    """Join the world's process group; where this rank's tensors are.

    backend: "gloo" or "nccl"; barriers always go over gloo, for NCCL's would wait on the device.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(place)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
        store=dist.FileStore(store, world),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=STALL),
    )
    return place


def reduce_ranks(
    pipe: Connection,
    rank: int,
    world: int,
    store: str,
    backend: str,
    device: str,
    groups: tuple[Group, ...],
    largest: int,
) -> None:
    """A rank that all-reduces float32 in place, as told by `Reduce`; answers (start, end) stamps.

    largest: bytes of the largest order.
    """
    import torch
    import torch.distributed as dist

    place = join(rank, world, store, backend, device)
    made = {group: dist.new_group(list(group), backend=backend) for group in groups}
    rooms = {group: dist.new_group(list(group), backend="gloo") for group in groups}
    whole = torch.zeros(largest // 4, device=place)

    def settle() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    def work(order: Reduce) -> list[tuple[float, float]]:
        group, room, size, repetitions = order
        buffer = whole[: size // 4]
        total = float(sum(1 + member for member in group))
        stamps = []
        for _ in range(repetitions):
            buffer.fill_(1.0 + rank)
            settle()
            dist.barrier(rooms[room])
            begun = time.monotonic()
            dist.all_reduce(buffer, group=made[group])
            settle()
            stamps.append((begun, time.monotonic()))
            if buffer[0] != total or buffer[-1] != total:
                break
        if not bool((buffer == total).all()):
            raise ArithmeticError(f"an all-reduce of {size} bytes gave a wrong sum")
        return stamps

    obey(pipe, work)
    dist.destroy_process_group()
