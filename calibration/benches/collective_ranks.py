"""The processes whose collectives are timed: one rank each, in all the groups that are asked for.

Every rank makes every group at the start and in the same order, and reduces once in each that it is
in: NCCL connects a group at its first use, and no visit is to pay for that.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from simstrag.calibration.benches.crew import STALL, obey

if TYPE_CHECKING:
    import torch

__all__ = ["Group", "Reduce", "Stamps", "join", "reduce_ranks", "spans"]

Group = tuple[int, ...]
"""The ranks of a group, in order."""

Stamps = list[tuple[float, float]]
"""When one member began and ended each repetition."""

Reduce = tuple[Group, Group, int, int]
"""An order: the group that reduces, all that begin together, bytes, repetitions."""


def spans(members: Sequence[Stamps]) -> tuple[float, ...]:
    """Seconds of each repetition, from the latest start to the latest end over the members.

    >>> spans([[(0.0, 2.0), (5.0, 6.0)], [(0.5, 1.5), (5.0, 5.5)]])
    (1.5, 1.0)
    """
    return tuple(
        max(end for _, end in stamps) - max(start for start, _ in stamps)
        for stamps in zip(*members, strict=True)
    )


def join(rank: int, world: int, folder: str, backend: str, device: str) -> torch.device:
    """Join the world's process group; where this rank's tensors are.

    folder: where the ranks meet, an empty one.  backend: "gloo" or "nccl"; barriers always go over
    gloo, for NCCL's would wait on the device.
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
        store=dist.FileStore(str(Path(folder) / "store"), world),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=STALL),
    )
    return place


def reduce_ranks(
    pipe: Connection,
    rank: int,
    folder: str,
    world: int,
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

    place = join(rank, world, folder, backend, device)
    made = {group: dist.new_group(list(group), backend=backend) for group in groups}
    rooms = {group: dist.new_group(list(group), backend="gloo") for group in groups}
    whole = torch.zeros(largest // 4, device=place)

    def settle() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    for group, process_group in made.items():
        if rank in group:
            dist.all_reduce(whole[:1], group=process_group)
    settle()

    def work(order: Reduce) -> Stamps:
        group, room, size, repetitions = order
        buffer = whole[: size // 4]
        total = float(sum(1 + member for member in group))
        stamps: Stamps = []
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
