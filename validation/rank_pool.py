"""Real ranks that stay alive over many runs, each run in a process group of its own.

Importing torch is most of what starting a rank costs.  A run that fails ends all of them, for one
may wait for another for ever; the next run begins with new ones.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.crew import obey
from simstrag.calibration.benches.processes import Children
from simstrag.calibration.benches.steps import Jobs, block
from simstrag.errors import SimstragError
from simstrag.processes.affinity import cores

if TYPE_CHECKING:
    from simstrag.ddp.trainer import Trainer
    from simstrag.workloads import Batch

__all__ = ["Failed", "Order", "Pace", "Ranks"]

STARTING = 300.0
"""Seconds in which all processes must have imported torch, on however busy a machine."""

AFTER = 3.0
"""Seconds in which the others may still say what they saw when one has failed."""

POOL = 8
"""Batches of samples that a rank draws before a run, and goes round in."""

SPAN = 0.8
"""Seconds for which the pace of the cores is timed before and after a run."""

STALL = 60.0
"""Seconds of silence after which a rank gives up the others."""


class Failed(SimstragError):
    """A run came to nothing; the message says why, rank by rank."""


@dataclass(frozen=True, slots=True)
class Order:
    """One run, the same for all ranks.

    store: a file that is not there yet, where they meet.  samples: of all ranks together.
    out: the folder of the record.  warm: policies and steps before it, of models of their own and
    not recorded, so that code and memory are warm.
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
class Pace:
    """An order to time steps as calibration does, so many samples each, in that precision."""

    precision: str
    batch: int


class Ranks:
    """Up to `most` processes, started when they are first needed; a context manager.

    workload: what they train.  Rank r has a core of its own, or shares it where there are fewer;
    they die with this process.
    """

    def __init__(self, most: int, workload: str) -> None:
        self.most, self.workload = most, workload
        self._children = Children()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *failure: object) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """All leave, those that hang are killed; none is left."""
        self._children.reap()

    def run(
        self, order: Order, limit: float, begun: Callable[[float], object]
    ) -> list[dict[str, Any]]:
        """Carry out an order; what each rank answers.

        begun: is told when the first recorded step began (`time.monotonic`), by the clock of the
        record.  Raises `Failed` where a rank failed or ended, or had not answered after `limit`
        seconds.
        """
        return self._ask(order, order.ranks, limit, begun)

    def pace(self, order: Pace) -> list[float]:
        """Seconds of a step of nothing else on each core, all cores at once: their mean."""
        count = min(self.most, len(cores()))
        return [each["seconds"] for each in self._ask(order, count, STALL, lambda at: None)]

    def _ask(
        self, order: Order | Pace, count: int, limit: float, begun: Callable[[float], object]
    ) -> list[dict[str, Any]]:
        """Give the first `count` ranks an order; what they answer."""
        try:
            self._start()
            pipes = self._children.pipes[:count]
            for pipe in pipes:
                pipe.send(order)
            return self._answers(pipes, limit, begun)
        except OSError as error:
            self.dismiss()
            raise Failed(f"a rank ended early: {error}") from None
        except BaseException:
            self.dismiss()
            raise

    def _start(self) -> None:
        if not self._children.pipes:
            for rank in range(self.most):
                self._children.start(_rank, rank, self.workload)
            self._answers(self._children.pipes, STARTING, lambda at: None)

    @staticmethod
    def _answers(
        pipes: Sequence[Connection], limit: float, begun: Callable[[float], object]
    ) -> list[dict[str, Any]]:
        waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
        answers: dict[int, dict[str, Any]] = {}
        failures: dict[int, str] = {}
        until = time.monotonic() + limit
        while waiting:
            ready = wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting[pipe]
                try:
                    word, said = pipe.recv()
                except (EOFError, OSError):
                    word, said = "failed", "its process ended"
                if word == "begun":
                    begun(said)
                    continue
                del waiting[pipe]
                if word == "done":
                    answers[rank] = said
                else:
                    failures[rank] = said
                    until = min(until, time.monotonic() + AFTER)
        if failures:
            raise Failed("; ".join(f"rank {rank}: {why}" for rank, why in sorted(failures.items())))
        if waiting:
            silent = " and ".join(map(str, waiting.values()))
            raise Failed(f"rank {silent} did not answer in {limit:.0f} s")
        return [answers[rank] for rank in range(len(pipes))]


def _rank(pipe: Connection, rank: int, workload: str) -> None:
    """What the process of a rank does; what takes long at the first time is done before any run."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch

    from simstrag.calibration.benches.device import device
    from simstrag.workloads import load

    torch.set_num_threads(1)
    jobs = Jobs(load(workload), device("cpu"))

    def obeyed(order: Order | Pace) -> dict[str, Any]:
        return _timed(jobs, order) if isinstance(order, Pace) else _run(pipe, rank, order)

    obey(pipe, obeyed)


def _timed(jobs: Jobs, order: Pace) -> dict[str, float]:
    """A visit as those of which a profile's step is the median, on the core of this rank."""
    job = jobs.of(order.precision)
    found = block(job, [job.batch(order.batch) for _ in range(2)], jobs.device, SPAN)
    jobs.clear()
    return {"seconds": statistics.fmean(found["seconds"])}


def _run(pipe: Connection, rank: int, order: Order) -> dict[str, Any]:
    """One run of this rank, in a process group of its own."""
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        store=dist.FileStore(order.store, order.ranks),  # type: ignore[attr-defined]
        rank=rank,
        world_size=order.ranks,
        timeout=timedelta(seconds=STALL),
    )
    try:
        for policy, steps in order.warm:
            _train(order, rank, policy, steps * order.ranks * order.batch)
        dist.barrier()
        return _train(order, rank, order.policy, order.samples, pipe)
    finally:
        dist.destroy_process_group()


def _train(
    order: Order, rank: int, policy: str, samples: int, pipe: Connection | None = None
) -> dict[str, Any]:
    """Train a fresh model; pipe: of a run that is recorded, and judged at its end."""
    from simstrag.ddp import wrap
    from simstrag.workloads import load

    workload = load(order.workload)
    parts = workload.build(1000 * order.seed + rank)
    model, draw = parts.model.train(), _Batches(parts.make_batch, order)
    recorded = pipe is not None
    trainer = wrap(
        model, parts.optimizer, policy, order.profile, batch=order.batch, samples=samples,
        precision=order.precision, out=order.out if recorded else None, stall_limit=STALL,
    )  # fmt: skip
    told = not recorded or rank > 0

    def loss() -> Any:
        nonlocal told
        if not told and trainer.begun:
            assert pipe is not None
            pipe.send(("begun", time.monotonic()))
            told = True
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
    """On held-out data, of the parameters that all updates led to."""
    if workload.test is None:
        return None
    trainer.model.load_state_dict(trainer.state_dict()["model"])  # a server's, where there is one
    found: float | None = workload.accuracy(trainer.model)
    return found


class _Batches:
    """Samples drawn before a run, gone round in, for a step is what calibration timed: no drawing.

    The stand-in's floating inputs are double, as its parameters are.
    """

    def __init__(self, make_batch: Callable[[int], Batch], order: Order) -> None:
        from simstrag.workloads import mapped

        self.size, self._next = POOL * order.batch * max(1, order.ranks // 2), 0
        drawn = make_batch(self.size)
        double = order.precision == "stand-in"
        self._pool = (
            mapped(drawn, lambda t: t.double() if t.is_floating_point() else t) if double else drawn
        )

    def __call__(self, samples: int) -> Batch:
        from simstrag.workloads import part

        if self._next + samples > self.size:
            self._next = 0
        self._next += samples
        return part(self._pool, self._next - samples, self._next)
