"""Times all-reduces between processes of this machine: sizes, ranks, sub-groups, traffic.

The time of one all-reduce is from the latest start to the latest end over the group's members,
after a barrier, so that a late arrival does not count.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal

import psutil

from simstrag.calibration.benches.background_traffic import Traffic
from simstrag.calibration.benches.bench import Bench
from simstrag.calibration.benches.workers import (
    Stamps,
    WorkerGroup,
    elapsed,
    join_process_group,
    serve,
)
from simstrag.calibration.cells import MeasurementCell, VisitSeries
from simstrag.processes.affinity import cores

SIZES = (*(1 << k for k in range(10, 20, 2)), *(1 << k for k in range(20, 29)))
"""1 KiB to 256 MiB: powers of 4 below 1 MiB, powers of 2 from there."""

COARSE = (1 << 14, 1 << 20, 1 << 24)
"""Bytes for ranks that share cores, for sub-groups, and beside a load."""

VISIT = 0.25
"""Seconds that a visit aims at."""

FEWEST, MOST = 5, 200
"""Least and most repetitions of a visit."""

MEMORY_SHARE = 0.5
"""The part of the available memory that buffers may use."""

RankGroup = tuple[int, ...]
"""The ranks of a group, in order."""

ReduceRequest = tuple[RankGroup, RankGroup, int, int]
"""A request: the group that reduces, all ranks that start together, bytes, repetitions."""


def rank_counts(most: int) -> tuple[int, ...]:
    """Numbers of ranks to time: 2 to 4, powers of two, and the largest.

    >>> rank_counts(2), rank_counts(12)
    ((2,), (2, 3, 4, 8, 12))
    """
    wanted = {2, 3, 4, most} | {1 << k for k in range(1, most.bit_length())}
    return tuple(sorted(n for n in wanted if 2 <= n <= most))


def sizes_of(ranks: int, device: str, gradient_bytes: int = 0) -> tuple[int, ...]:
    """`SIZES` and the gradient's size, without those that need too much memory for `ranks` ranks.

    A rank uses a buffer and about twice as much inside gloo.
    """
    if device == "cuda":
        import torch

        room = torch.cuda.mem_get_info()[0] / -(-ranks // torch.cuda.device_count())
    else:
        room = psutil.virtual_memory().available / ranks
    wanted = sorted({*SIZES, *([gradient_bytes] if gradient_bytes else [])})
    return tuple(size for size in wanted if 3 * size <= MEMORY_SHARE * room)


class AllReduceBench(Bench):
    """Cells of part "allreduce" over one backend.

    backend: "gloo", or "nccl" with a GPU per rank.
    device: the device of the tensors.
    ranks: numbers of ranks to time.  More ranks than cores share cores, more ranks than GPUs share
        GPUs; both have the fact `oversubscribed`.
    sizes: bytes to time.
    nested: number of ranks of which also one half alone, and both halves at once, are timed; 0 for
        none.
    traffic: levels of load "net" to time beside.
    """

    def __init__(
        self,
        backend: Literal["gloo", "nccl"] = "gloo",
        device: Literal["cpu", "cuda"] = "cpu",
        ranks: Sequence[int] = (2,),
        sizes: Sequence[int] = SIZES,
        nested: int = 0,
        traffic: Sequence[float] = (),
    ) -> None:
        self.backend, self.device = backend, device
        self.ranks = tuple(sorted({*ranks, *([nested] if nested else [])}))
        self.sizes = tuple(sizes)
        coarse = tuple(size for size in COARSE if size in sizes) or self.sizes[-1:]
        most = max((n for n in self.ranks if n <= len(cores())), default=self.ranks[0])
        cell = partial(MeasurementCell, "allreduce", backend=backend, group="all")
        groups = {tuple(range(n)) for n in self.ranks}
        self.cells = [
            cell(ranks=n, bytes=size)
            for n in self.ranks
            for size in (self.sizes if n <= len(cores()) else coarse)
        ]
        if nested:
            groups |= {*_halves(nested)}
            self.cells += [
                cell(ranks=nested, bytes=size, group=group)
                for group in ("half", "halves")
                for size in coarse
            ]
        self.cells += [
            cell(ranks=most, bytes=size, load="net", level=level)
            for level in traffic
            for size in coarse
        ]
        self._traffic = Traffic(math.ceil(max(traffic, default=0)))
        world = max(self.ranks)
        self.workers = WorkerGroup(
            _reduce_ranks, world, world, backend, device, tuple(sorted(groups)), max(self.sizes),
            fresh=tempfile.TemporaryDirectory,
        )  # fmt: skip
        self.held = self._traffic, self.workers

    def seconds(self, cell: MeasurementCell) -> float:
        """Expected at about 1 GB/s."""
        once = 2 * cell.bytes * cell.ranks / 2e9
        return max(VISIT, FEWEST * once) * (2 if cell.load else 1) + 2 * once

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """`seconds` of each repetition.

        `other`: `seconds` of the second half.
        `clean`: without the load, before the loaded ones.
        """
        most = len(cores())
        if self.device == "cuda":
            import torch

            most = min(most, torch.cuda.device_count())
        facts: dict[str, Any] = {"oversubscribed": cell.ranks > most}
        if not cell.load:
            return self._time(cell), facts
        clean = self._time(cell)["seconds"]
        with self._traffic.streaming(cell.level) as report:
            samples = {"clean": clean, **self._time(cell)}
        return samples, facts | report

    def _time(self, cell: MeasurementCell) -> VisitSeries:
        """Repetitions for the length of a visit, after two that show how long one takes."""
        everyone = tuple(range(cell.ranks))
        groups = {"half": _halves(cell.ranks)[:1], "halves": _halves(cell.ranks)}.get(
            cell.group, [everyone]
        )
        pace = statistics.median(self._repeat(groups, cell.bytes, 3)[0][1:])
        repetitions = min(MOST, max(FEWEST, round(VISIT / max(pace, 1e-6))))
        return dict(
            zip(("seconds", "other"), self._repeat(groups, cell.bytes, repetitions), strict=False)
        )

    def _repeat(
        self, groups: list[RankGroup], size: int, repetitions: int
    ) -> list[tuple[float, ...]]:
        """Seconds of every repetition, for each of the groups, which start together."""
        room = tuple(sorted(rank for group in groups for rank in group))
        requests = {rank: (group, room, size, repetitions) for group in groups for rank in group}
        stamps = dict(zip(room, self.workers.request(requests), strict=True))
        return [elapsed([stamps[rank] for rank in group]) for group in groups]


def _halves(count: int) -> list[RankGroup]:
    return [tuple(range(count // 2)), tuple(range(count // 2, count))]


def _reduce_ranks(
    pipe: Connection,
    rank: int,
    folder: str,
    world: int,
    backend: str,
    device: str,
    groups: tuple[RankGroup, ...],
    largest: int,
) -> None:
    """Run a rank that all-reduces float32 in place and answers a `ReduceRequest` with its stamps.

    Every rank makes every group at the start, in the same order, and reduces once in each of its
    groups: NCCL connects a group at its first use, which no visit is to include.

    largest: bytes of the largest request.
    """
    import torch
    import torch.distributed as dist

    place = join_process_group(rank, world, folder, backend, device)
    process_groups = {group: dist.new_group(list(group), backend=backend) for group in groups}
    rooms = {group: dist.new_group(list(group), backend="gloo") for group in groups}
    memory = torch.zeros(largest // 4, device=place)

    def synchronize() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    for group, process_group in process_groups.items():
        if rank in group:
            dist.all_reduce(memory[:1], group=process_group)
    synchronize()

    def reduce(request: ReduceRequest) -> Stamps:
        group, room, size, repetitions = request
        buffer = memory[: size // 4]
        total = float(sum(1 + member for member in group))
        stamps: Stamps = []
        for _ in range(repetitions):
            buffer.fill_(1.0 + rank)
            synchronize()
            dist.barrier(rooms[room])
            start = time.monotonic()
            dist.all_reduce(buffer, group=process_groups[group])
            synchronize()
            stamps.append((start, time.monotonic()))
            if buffer[0] != total or buffer[-1] != total:
                break
        if not bool((buffer == total).all()):
            raise ArithmeticError(f"an all-reduce of {size} bytes gave a wrong sum")
        return stamps

    serve(pipe, reduce)
    dist.destroy_process_group()
