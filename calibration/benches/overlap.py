"""Measures how much of an all-reduce backward hides, on real DDP.

A visit takes short blocks of three kinds of step in turns, so that drift hits all alike: forward
and backward alone, the same under DDP with its buckets on the way meanwhile, and the same alone
followed by one flat all-reduce of as many bytes.  Each time is from the latest start to the latest
end over the ranks, after a barrier.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal

from simstrag.calibration.benches.collective_ranks import Stamps, join, spans
from simstrag.calibration.benches.crew import Crew, obey
from simstrag.calibration.cells import Cell

if TYPE_CHECKING:
    from simstrag.workloads import Batch, Parts, TrainingTask

__all__ = ["KINDS", "OverlapBench"]

Kind = Literal["compute", "together", "apart"]

KINDS: tuple[Kind, ...] = ("compute", "together", "apart")

BLOCK = 4
"""Steps of one kind in a row; the first after a change is left out."""

SETTLE = 4
"""Steps that are not kept: DDP finds the order of its buckets in the first ones."""

VISIT = 0.8
"""Seconds that a visit should take."""

FEWEST, MOST = 3, 30
"""Turns of a visit, at least and at most."""

Order = tuple[str, int, int]
"""Precision, batch, turns."""

Answer = tuple[int, dict[Kind, Stamps]]


class OverlapBench:
    """Cells of part "overlap": DDP over some ranks of this machine.

    build: makes the workload's parts, in every rank, so it can be pickled: `Workload.build`.
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
        self.build, self.steps, self.ranks = build, tuple(steps), ranks
        self.backend, self.device = backend, device

    @property
    def cells(self) -> tuple[Cell, ...]:
        """One for each precision and batch."""
        return tuple(
            Cell("overlap", backend=self.backend, ranks=self.ranks, precision=p, batch=b)
            for p, b in self.steps
        )

    def seconds(self, cell: Cell) -> float:
        """What a visit aims at, and the settling before it."""
        return 2 * VISIT

    def visit(self, cell: Cell) -> tuple[dict[str, tuple[float, ...]], dict[str, Any]]:
        """The three kinds of `KINDS`, by name."""
        begun = time.monotonic()
        self._turns(cell, 1)
        pace = time.monotonic() - begun
        turns = min(MOST, max(FEWEST, round(VISIT / pace)))
        answers = self._turns(cell, turns)
        samples: dict[str, tuple[float, ...]] = {
            kind: spans([each[kind] for _, each in answers]) for kind in KINDS
        }
        return samples, {"bytes": answers[0][0]}

    def __enter__(self) -> OverlapBench:
        self.crew = Crew(
            _train, self.ranks, self.ranks, self.backend, self.device, self.build,
            fresh=tempfile.TemporaryDirectory,
        )  # fmt: skip
        self.crew.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self.crew.dismiss()

    def _turns(self, cell: Cell, turns: int) -> list[Answer]:
        order: Order = (cell.precision, cell.batch, turns)
        return self.crew.ask(dict.fromkeys(range(self.ranks), order))


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

    place = join(rank, world, folder, backend, device)
    group, room = dist.new_group(backend=backend), dist.new_group(backend="gloo")
    made: dict[tuple[str, int], tuple[TrainingTask, Batch, torch.Tensor]] = {}

    def prepared(precision: str, batch: int) -> tuple[TrainingTask, Batch, torch.Tensor]:
        """The job, kept for as long as the same is asked for."""
        if (precision, batch) not in made:
            made.clear()
            bare = TrainingTask(build(), precision, str(place))
            wrapped = DistributedDataParallel(bare.model, process_group=group)
            job = TrainingTask(bare.parts._replace(model=wrapped), precision, str(place))
            flat = torch.zeros(bare.parameters, dtype=bare.dtype, device=place)
            made[precision, batch] = job, bare.batch(batch), flat
            for _ in range(SETTLE):
                step("together", *made[precision, batch])
        return made[precision, batch]

    def settle() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    def step(
        kind: Kind, job: TrainingTask, batch: Batch, flat: torch.Tensor
    ) -> tuple[float, float]:
        model: Any = job.model
        settle()
        dist.barrier(room)
        begun = time.monotonic()
        with contextlib.nullcontext() if kind == "together" else model.no_sync():
            job.gradient(batch)
        if kind == "apart":
            dist.all_reduce(flat, group=group)
        settle()
        ended = time.monotonic()
        job.optimizer.zero_grad(set_to_none=True)
        return begun, ended

    def work(order: Order) -> Answer:
        precision, batch, turns = order
        job, samples, flat = prepared(precision, batch)
        found: dict[Kind, Stamps] = {kind: [] for kind in KINDS}
        for _ in range(turns):
            for kind in KINDS:
                found[kind] += [step(kind, job, samples, flat) for _ in range(BLOCK)][1:]
        return flat.numel() * flat.element_size(), found

    obey(pipe, work)
    dist.destroy_process_group()
