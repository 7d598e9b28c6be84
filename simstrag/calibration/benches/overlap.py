"""Measures the part of an all-reduce that the backward pass hides, on real DDP.

A visit times short blocks of three kinds of step in turns, so that drift affects all alike: forward
and backward alone (`compute`), the same under DDP with its buckets in flight (`together`), and the
same alone, then one flat all-reduce of the same bytes (`apart`).  Each time is from the latest
start to the latest end over the ranks, after a barrier.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal

from simstrag.calibration.benches.bench import Bench
from simstrag.calibration.benches.workers import (
    Stamps,
    WorkerGroup,
    elapsed,
    join_process_group,
    serve,
)
from simstrag.calibration.cells import MeasurementCell, VisitSeries

if TYPE_CHECKING:
    from simstrag.workloads import Batch, Parts, TrainingTask

OverlapKind = Literal["compute", "together", "apart"]

KINDS: tuple[OverlapKind, ...] = ("compute", "together", "apart")

BLOCK = 4
"""Steps of one kind in a row; the first is not counted."""

SETTLE = 4
"""Number of uncounted first steps, in which DDP finds the order of its buckets."""

VISIT = 0.8
"""Seconds that a visit aims at."""

FEWEST, MOST = 3, 30
"""Least and most turns of a visit."""

Turns = tuple[str, int, int]
"""A request: precision, batch, number of turns."""

StampedTurns = tuple[int, dict[OverlapKind, Stamps]]
"""Bytes of a gradient, and the stamps of each kind."""


class OverlapBench(Bench):
    """Cells of part "overlap": DDP over some ranks of this machine.

    build: makes the workload's parts in every rank, and can be pickled.
    steps: (precision, batch) to time.
    """

    def __init__(
        self,
        build: Callable[[], Parts],
        steps: Sequence[tuple[str, int]],
        ranks: int = 2,
        backend: Literal["gloo", "nccl"] = "gloo",
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        self.cells = [
            MeasurementCell("overlap", backend=backend, ranks=ranks, precision=p, batch=b)
            for p, b in steps
        ]
        self.workers = WorkerGroup(
            _train, ranks, ranks, backend, device, build, fresh=tempfile.TemporaryDirectory
        )
        self.held = (self.workers,)

    def seconds(self, cell: MeasurementCell) -> float:
        """A visit and the settling before it."""
        return 2 * VISIT

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """Seconds of the three kinds of step, by name; facts: `bytes` of a gradient."""
        start = time.monotonic()
        self._take_turns(cell, 1)
        pace = time.monotonic() - start
        turns = min(MOST, max(FEWEST, round(VISIT / pace)))
        answers = self._take_turns(cell, turns)
        samples: VisitSeries = {
            kind: elapsed([each[kind] for _, each in answers]) for kind in KINDS
        }
        return samples, {"bytes": answers[0][0]}

    def _take_turns(self, cell: MeasurementCell, turns: int) -> list[StampedTurns]:
        request: Turns = (cell.precision, cell.batch, turns)
        return self.workers.request(dict.fromkeys(range(cell.ranks), request))


def _train(
    pipe: Connection,
    rank: int,
    folder: str,
    world: int,
    backend: str,
    device: str,
    build: Callable[[], Parts],
) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from simstrag.workloads import TrainingTask

    place = join_process_group(rank, world, folder, backend, device)
    group, room = dist.new_group(backend=backend), dist.new_group(backend="gloo")
    prepared: dict[tuple[str, int], tuple[TrainingTask, Batch, torch.Tensor]] = {}

    def prepare(precision: str, batch: int) -> tuple[TrainingTask, Batch, torch.Tensor]:
        """The job, kept until another one is requested."""
        if (precision, batch) not in prepared:
            prepared.clear()
            bare = TrainingTask(build(), precision, str(place))
            wrapped = DistributedDataParallel(bare.model, process_group=group)
            job = TrainingTask(bare.parts._replace(model=wrapped), precision, str(place))
            flat = torch.zeros(bare.parameters, dtype=bare.dtype, device=place)
            prepared[precision, batch] = job, bare.batch(batch), flat
            for _ in range(SETTLE):
                step("together", *prepared[precision, batch])
        return prepared[precision, batch]

    def synchronize() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    def step(
        kind: OverlapKind, job: TrainingTask, batch: Batch, flat: torch.Tensor
    ) -> tuple[float, float]:
        model: Any = job.model
        synchronize()
        dist.barrier(room)
        start = time.monotonic()
        with contextlib.nullcontext() if kind == "together" else model.no_sync():
            job.gradient(batch)
        if kind == "apart":
            dist.all_reduce(flat, group=group)
        synchronize()
        end = time.monotonic()
        job.optimizer.zero_grad(set_to_none=True)
        return start, end

    def take_turns(request: Turns) -> StampedTurns:
        precision, batch, turns = request
        job, samples, flat = prepare(precision, batch)
        stamps: dict[OverlapKind, Stamps] = {kind: [] for kind in KINDS}
        for _ in range(turns):
            for kind in KINDS:
                stamps[kind] += [step(kind, job, samples, flat) for _ in range(BLOCK)][1:]
        return flat.numel() * flat.element_size(), stamps

    serve(pipe, take_turns)
    dist.destroy_process_group()
