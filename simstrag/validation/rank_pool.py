"""A pool of rank processes that serves many runs, each run in its own process group.

Importing torch dominates the start of a rank.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.training_jobs import Jobs, time_steps
from simstrag.calibration.benches.workers import STALL, WorkerGroup, serve
from simstrag.ddp.workload_rank import Training
from simstrag.processes.affinity import cores

if TYPE_CHECKING:
    from simstrag.ddp.trainer import Trainer
    from simstrag.workloads import Batch
    from simstrag.workloads.workload import Parts

STARTING = 300.0
"""Time limit for the start of all processes, in seconds, on a busy machine."""

POOL = 8
"""Batches that a rank draws before a run and then cycles through."""

TURNS, STEPS = 4, 8
"""Turns of both precisions in the timing of a replica, and steps of a turn."""

SPAN = 0.8
"""Duration of one timing of the pace of the cores, in seconds."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run, the same request for all ranks.

    store: file of the rendezvous; must not exist yet.
    warm: (policy, steps) of unrecorded warm-up trainings on separate models.
    """

    store: str
    ranks: int
    training: Training
    warm: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ReplicaPaceRequest:
    """A request to time steps of replicas that no policy joins, all of them at once.

    store: file of the rendezvous; must not exist yet.
    batch: samples of a rank.
    """

    store: str
    ranks: int
    shards: int
    workload: str
    batch: int
    precision: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PaceRequest:
    """A request to time bare steps as calibration does."""

    precision: str
    batch: int


class RankPool(WorkerGroup):
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

    def replica_pace(self, request: ReplicaPaceRequest) -> dict[str, float]:
        """Mean seconds of a step of a replica in full precision and, unless there is none, reduced.

        They are without reductions between replicas, and without updates.
        """
        answers = self.request(dict.fromkeys(range(request.ranks), request), STARTING)
        return {name: statistics.fmean(each[name] for each in answers) for name in answers[0]}

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

    def carry_out(request: RunRequest | PaceRequest | ReplicaPaceRequest) -> dict[str, Any]:
        if isinstance(request, PaceRequest):
            return _timed(jobs, request)
        with _group(request, rank):
            if isinstance(request, ReplicaPaceRequest):
                return _replica_steps(request, rank)
            return _run(pipe, rank, request)

    serve(pipe, carry_out)


def _timed(jobs: Jobs, request: PaceRequest) -> dict[str, float]:
    """Times one visit, as calibration does, on the core of this rank."""
    job = jobs.of(request.precision)
    found = time_steps(job, [job.batch(request.batch) for _ in range(2)], jobs.device, SPAN)
    jobs.clear()
    return {"seconds": statistics.fmean(found["seconds"])}


@contextlib.contextmanager
def _group(request: RunRequest | ReplicaPaceRequest, rank: int) -> Iterator[None]:
    """A new process group of the ranks of a request."""
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
        yield
    finally:
        dist.destroy_process_group()


def _run(pipe: Connection, rank: int, request: RunRequest) -> dict[str, Any]:
    """One run of this rank."""
    import torch.distributed as dist

    training = request.training
    for policy, steps in request.warm:
        samples = steps * request.ranks * training.batch // training.shards
        _train(replace(training, policy=policy, samples=samples, out=None), request.ranks, rank)
    dist.barrier()
    return _train(training, request.ranks, rank, pipe)


def _shard(parts: Parts, ranks: int, shards: int) -> Parts:
    """Shard a workload over replicas of every W-th rank, W replicas: they share a core."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from simstrag.ddp.sharded.shard_workload import shard_parts

    order = torch.arange(ranks).reshape(shards, -1).T
    mesh = DeviceMesh("cpu", order, mesh_dim_names=("replicate", "shard"))
    return shard_parts(parts, mesh["shard"])


def _replica_steps(request: ReplicaPaceRequest, rank: int) -> dict[str, float]:
    """Times steps of this rank's replica, in both precisions by turns."""
    import torch.distributed as dist

    from simstrag.ddp.sharded.precision import ShardedFormats
    from simstrag.workloads import load, map_tensors

    parts = load(request.workload).build(request.seed + rank)
    parts = _shard(parts._replace(model=parts.model.train()), request.ranks, request.shards)
    formats = ShardedFormats(parts.model, request.precision, None)
    batch = map_tensors(
        parts.make_batch(request.batch),
        lambda t: t.double() if t.is_floating_point() and formats.full == "fp64" else t,
    )
    kinds = {"full": False} | ({"amp": True} if formats.amp else {})
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    dist.barrier()
    for _ in range(TURNS):
        for name, amp in kinds.items():
            for number in range(STEPS):
                start = time.monotonic()
                with formats.context(amp):
                    formats.module(lambda: parts.loss(parts.model, batch)).backward()
                parts.optimizer.zero_grad()
                if number:
                    seconds[name].append(time.monotonic() - start)
    return {name: statistics.fmean(own) for name, own in seconds.items()}


def _train(
    training: Training, ranks: int, rank: int, pipe: Connection | None = None
) -> dict[str, Any]:
    """Train a fresh model.

    pipe: given for the recorded run; None for a warm-up.
    """
    from simstrag.ddp import wrap
    from simstrag.workloads import load

    workload = load(training.workload)
    parts = workload.build(1000 * training.seed + rank)
    if training.shards > 1:
        parts = _shard(parts, ranks, training.shards)
    model, draw = parts.model.train(), _Batches(parts.make_batch, training, ranks)
    recorded = pipe is not None
    trainer = wrap(
        model, parts.optimizer, training.policy, training.profile, batch=training.batch,
        samples=training.samples, precision=training.precision, out=training.out,
        stall_limit=STALL,
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
        while trainer.samples < training.samples:
            batch = draw(trainer.next_batch)
            trainer.step(loss)
            steps += 1
        asked = recorded and (rank == 0 or training.shards > 1)
        accuracy = _accuracy(trainer, workload) if asked else None
    return {"steps": steps, "accuracy": accuracy}


def _accuracy(trainer: Trainer, workload: Any) -> float | None:
    """Accuracy of the final parameters on held-out data."""
    from simstrag.ddp.workload_rank import global_model

    state = trainer.state_dict()  # the server's model, if there is one
    if workload.test is None or not trainer.lowest:
        return None
    found: float | None = workload.accuracy(global_model(trainer, workload, state))
    return found


class _Batches:
    """Batches from a pool drawn before the run: as in calibration, a step does not draw.

    For the stand-in, floating-point inputs are double, as its parameters are.
    """

    def __init__(self, make_batch: Callable[[int], Batch], training: Training, ranks: int) -> None:
        from simstrag.workloads import map_tensors

        self.size, self._next = POOL * training.batch * max(1, ranks // 2), 0
        samples_pool = make_batch(self.size)
        double = training.precision == "stand-in"
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
