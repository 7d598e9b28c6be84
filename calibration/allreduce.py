"""Times gloo's all-reduce between two processes."""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from simstrag.calibration.processes import STALL, child, receive

__all__ = ["COLUMNS", "HOW", "SMALL_SIZES", "measure_allreduce"]

SMALL_SIZES = (256, 64 << 10, 1 << 20)
"""Bytes of all-reduces beside the model's own size."""

COLUMNS = ("bytes", "repetition", "start_0", "end_0", "start_1", "end_1")

HOW = (
    "Two processes, pinned to a core each; barrier, then dist.all_reduce of float32 in place, "
    "sizes in turn. Time of one = latest end - latest start over the two. Nothing overlaps it."
)

Stamps = tuple[float, ...]


def measure_allreduce(sizes: Sequence[int], repetitions: int) -> list[Stamps]:
    """Rows of `COLUMNS`: both ranks' stamps of every all-reduce of two processes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        store = str(Path(folder) / "store")
        pipes = [
            stack.enter_context(child(_reduce, rank, store, tuple(sizes), repetitions))
            for rank in range(2)
        ]
        first, second = (receive(pipe) for pipe in pipes)
    zero = first[0][2]
    return [
        (*a[:2], *(round(stamp - zero, 7) for stamp in (*a[2:], *b[2:])))
        for a, b in zip(first, second, strict=True)
    ]


def _reduce(
    pipe: Connection, rank: int, store: str, sizes: tuple[int, ...], repetitions: int
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, 2),  # type: ignore[attr-defined]
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=STALL),
    )
    buffers = {size: torch.full((size // 4,), 1.0 + rank) for size in sizes}
    rows = []
    warm_up = max(1, repetitions // 10)
    for repetition in range(-warm_up, repetitions):
        for size, buffer in buffers.items():
            buffer.fill_(1.0 + rank)
            dist.barrier()
            begun = time.monotonic()
            dist.all_reduce(buffer)
            ended = time.monotonic()
            if repetition >= 0:
                rows.append((size, repetition, begun, ended))
    assert all(bool((buffer == 3.0).all()) for buffer in buffers.values()), "a wrong sum"
    pipe.send(rows)
    pipe.recv()
    dist.destroy_process_group()
