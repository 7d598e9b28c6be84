"""A pool of rank processes that serves many runs, each run in its own process group.

Importing torch dominates the start of a rank.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.training_jobs import Jobs, time_steps
from simstrag.calibration.benches.workers import STALL, WorkerGroup, serve
from simstrag.processes.affinity import cores

if TYPE_CHECKING:
    from simstrag.ddp.trainer import Trainer
    from simstrag.workloads import Batch

STARTING = 300.0
"""Time limit for the start of all processes, in seconds, on a busy machine."""

POOL = 8
"""Batches that a rank draws before a run and then cycles through."""

SPAN = 0.8
"""Duration of one timing of the pace of the cores, in seconds."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run, the same request for all ranks.

    store: file of the rendezvous; must not exist yet.
    samples: samples of all ranks together.
    out: folder of the record.
    warm: (policy, steps) of unrecorded warm-up trainings on separate models.
    """

    store: str
    ranks: int
    policy: str
    workload: str
    batch: int
    samples: int
    precision: str
    profile: str
    out: str
    seed: int
    warm: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PaceRequest:
    """A request to time bare steps as calibration does."""

    precision: str
    batch: int


class Ranks(WorkerGroup):
    """A pool of up to `most` rank processes, started on first use; a context manager.

    Rank r runs on core r modulo the number of cores.  The processes die with this one.
    """

    def __init__(self, most: int, workload: str) -> None:
        super().__init__(_rank, most, workload, starting=STARTING, lazy=True)

    def run(
        self, request: RunRequest, limit: float, on_start: Callable[[float], object]
    ) -> list[dict[str, Any]]:
        """Run a request; returns the answer of each rank.

        on_start: receives the time of the first recorded step (`time.monotonic`).

        Raises `Skipped` if a rank failed, ended, or did not answer within `limit` seconds.
        """
        return self.request(dict.fromkeys(range(request.ranks), request), limit, on_start)

    def pace(self, request: PaceRequest) -> list[float]:
        """Mean seconds of a bare step on each core, all cores at once."""
        ranks = range(min(self.count, len(cores())))
        return [each["seconds"] for each in self.request(dict.fromkeys(ranks, request))]


def _rank(pipe: Connection, rank: int, workload: str) -> None:
    """Main function of a rank process; imports happen before the first run."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch

    from simstrag.calibration.benches.measured_device import find_device
    from simstrag.workloads import load

    torch.set_num_threads(1)
    jobs = Jobs(load(workload), find_device("cpu"))

    def carry_out(request: RunRequest | PaceRequest) -> dict[str, Any]:
        return (
            _timed(jobs, request) if isinstance(request, PaceRequest) else _run(pipe, rank, request)
        )

    serve(pipe, carry_out)


def _timed(jobs: Jobs, request: PaceRequest) -> dict[str, float]:
    """Times one visit, as calibration does, on the core of this rank."""
    job = jobs.of(request.precision)
    found = time_steps(job, [job.batch(request.batch) for _ in range(2)], jobs.device, SPAN)
    jobs.clear()
    return {"seconds": statistics.fmean(found["seconds"])}


def _run(pipe: Connection, rank: int, request: RunRequest) -> dict[str, Any]:
    """One run of this rank in a new process group."""
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        store=dist.FileStore(request.store, request.ranks),  # type: ignore[attr-defined]
        rank=rank,
        world_size=request.ranks,
        timeout=timedelta(seconds=STALL),
    )
    try:
        for policy, steps in request.warm:
            _train(request, rank, policy, steps * request.ranks * request.batch)
        dist.barrier()
        return _train(request, rank, request.policy, request.samples, pipe)
    finally:
        dist.destroy_process_group()


def _train(
    request: RunRequest, rank: int, policy: str, samples: int, pipe: Connection | None = None
) -> dict[str, Any]:
    """Train a fresh model.

    pipe: given for the recorded run; None for a warm-up.
    """
    from simstrag.ddp import wrap
    from simstrag.workloads import load

    workload = load(request.workload)
    parts = workload.build(1000 * request.seed + rank)
    model, draw = parts.model.train(), _Batches(parts.make_batch, request)
    recorded = pipe is not None
    trainer = wrap(
        model, parts.optimizer, policy, request.profile, batch=request.batch, samples=samples,
        precision=request.precision, out=request.out if recorded else None, stall_limit=STALL,
    )  # fmt: skip
    reported = not recorded or rank > 0

    def loss() -> Any:
        nonlocal reported
        if not reported and trainer.begun:
            assert pipe is not None
            pipe.send(("begun", time.monotonic()))
            reported = True
        return parts.loss(model, batch)

    steps = 0
    with trainer:
        while trainer.samples < samples:
            batch = draw(trainer.next_batch)
            trainer.step(loss)
            steps += 1
        accuracy = _accuracy(trainer, workload) if recorded and rank == 0 else None
    return {"steps": steps, "accuracy": accuracy}


def _accuracy(trainer: Trainer, workload: Any) -> float | None:
    """Accuracy of the final parameters on held-out data."""
    if workload.test is None:
        return None
    trainer.model.load_state_dict(trainer.state_dict()["model"])  # the server's, if there is one
    found: float | None = workload.accuracy(trainer.model)
    return found


class _Batches:
    """Batches from a pool drawn before the run: as in calibration, a step does not draw.

    For the stand-in, floating-point inputs are double, as its parameters are.
    """

    def __init__(self, make_batch: Callable[[int], Batch], request: RunRequest) -> None:
        from simstrag.workloads import map_tensors

        self.size, self._next = POOL * request.batch * max(1, request.ranks // 2), 0
        samples_pool = make_batch(self.size)
        double = request.precision == "stand-in"
        self._pool = (
            map_tensors(samples_pool, lambda t: t.double() if t.is_floating_point() else t)
            if double
            else samples_pool
        )

    def __call__(self, samples: int) -> Batch:
        from simstrag.workloads import slice_batch

        if self._next + samples > self.size:
            self._next = 0
        self._next += samples
        return slice_batch(self._pool, self._next - samples, self._next)
