"""Durations of the steps of ranks, from PyTorch profiles and from ByteDance's operations.

ByteDance's job: ByteDance-Seed/StragglerAnalysis @8efcd7f, Apache-2.0, `trace-AR.parquet`; Lin et
al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025.  A
communication's duration includes waiting for its peers, so only the ends of computing show when a
replica was ready.  T(step, replica) is the last end of a forward or backward computation on any
stage of a replica.  A step takes max over replicas of T, and then a tail (gradients, optimizer)
that is the same for all: the median of recorded step time - max T.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.documents.file_io import require_path
from simstrag.errors import InputError
from simstrag.records.log_file import LogFile
from simstrag.records.operations import read_operations
from simstrag.records.profiles import read_ranks
from simstrag.records.record import BACKWARD, FORWARD
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import (
    Labelled,
    constant_allreduce,
    contents,
    count_note,
    run_of,
)

KINETO, BYTEDANCE = "kineto", "bytedance-straggler"


def kineto(*paths: str | Path) -> Labelled:
    """A duration per step and rank from Chrome traces (JSON or .json.gz), a file per rank.

    Raises `InputError` for any other file, a file without steps, and a second file of a rank.
    """
    if not paths:
        raise InputError(f"{KINETO}: give a trace file for each rank")
    job = read_ranks([LogFile.open(path) for path in paths])
    steps, ranks = job.span.shape
    back = np.argwhere(np.diff(job.start, axis=0) < 0)
    if len(back):
        step, k = back[0]
        raise InputError(
            f"{job.files[k].path}: step {job.number[step + 1]} begins before step "
            f"{job.number[step]}"
        )
    trace = Trace.from_columns(
        (job.start - job.start[0]).T.ravel(), np.repeat(job.ranks, steps), "step", "duration",
        (job.span - job.exposed).T.ravel(), KINETO,
    )  # fmt: skip
    transfer = float(np.median(job.exposed.min(axis=1)))
    shares = job.exposed.sum(axis=0) / job.span.sum(axis=0)
    listed = ", ".join(f"rank {r} {share:.0%}" for r, share in zip(job.ranks, shares, strict=True))
    return Labelled(
        trace,
        KINETO,
        contents(paths),
        notes=(
            f"Measured: {steps} steps of {ranks} ranks, {job.span.mean():.4g} s in the "
            f"mean; collectives under way with nothing computed meanwhile: {listed}.",
            "Derived: a duration is the span of a step less that time.",
            "Derived: the least of it among the ranks of a step, which is nearly transfer alone, "
            f"is {transfer:.4g} s in the median.",
            "Assumed: between collectives a rank waits for no other; the host's own pauses (input, "
            "Python) belong to its computing.",
            *count_note("Assumed", (job.unnamed, "files name no rank; their order is it")),
            *count_note("Dropped", (job.dropped, "steps that not all files have")),
        ),
        cautions=() if job.exposed.any() else (
            "the profiles show no collective: durations may contain waiting, and which rank was "
            "slow cannot be told",
        ),
        scenario=(
            *([constant_allreduce(transfer, ranks)] if ranks > 1 else []), *run_of(steps, ranks)
        ),
    )  # fmt: skip


class ReplicaSteps(NamedTuple):
    """Recorded steps of data-parallel replicas, in seconds from the beginning of each step.

    step: numbers of the steps, with gaps.
    local: end of the computing of each step and replica, shape (steps, replicas).
    recorded: end of each step.
    dropped: steps left out because a replica has no computing in them.
    """

    step: Ints
    local: Floats
    recorded: Floats
    dropped: int

    @property
    def tails(self) -> Floats:
        """Seconds from the end of all computing to the end of each step."""
        return np.asarray(self.recorded - self.local.max(axis=1))

    def select(self, chosen: Bools) -> ReplicaSteps:
        """The steps for which `chosen` is true."""
        return self._replace(
            step=self.step[chosen], local=self.local[chosen], recorded=self.recorded[chosen]
        )

    @property
    def trace(self) -> Trace:
        """A recorded duration per step and replica, as if one step followed the other at once."""
        steps, replicas = self.local.shape
        begin = np.append(0.0, np.cumsum(self.recorded)[:-1])
        return Trace.from_columns(
            np.repeat(begin, replicas), np.tile(np.arange(replicas), steps), "step", "duration",
            self.local.ravel(), BYTEDANCE,
        )  # fmt: skip


def bytedance_straggler(path: str | Path) -> Labelled:
    """Durations of the steps of each data-parallel replica, and the tail as an all-reduce.

    Raises `InputError` for any other file.
    """
    record = replica_steps(path)
    tail, (steps, replicas) = float(np.median(record.tails)), record.local.shape
    replayed = record.local.max(axis=1) + tail
    error = float(np.mean(np.abs(replayed / record.recorded - 1)))
    mean = float(record.local.mean()) + tail
    return Labelled(
        record.trace,
        BYTEDANCE,
        contents([path]),
        notes=(
            f"Measured: {steps} steps of {replicas} data-parallel replicas; a recorded step takes "
            f"{record.recorded.mean():.4g} s in the mean.",
            "Derived: a duration is the last end of computing on any stage of the replica, from "
            f"the step's beginning; the tail after it is {tail:.4g} s in the median "
            f"({record.tails.min():.3g} to {record.tails.max():.3g}).",
            f"Derived: slowest replica + tail gives the recorded steps with a mean error of "
            f"{error:.2%}; mean of the slowest over mean of all, both with the tail: "
            f"{replayed.mean() / mean:.4f}.",
            "Assumed: the tail is one constant, here an all-reduce of all replicas that nothing "
            "hides or slows; for fewer replicas it is a guess. Steps follow each other at once: "
            f"step {record.step[0]} to {record.step[-1]} were sampled, most were not recorded.",
            *count_note("Dropped", (record.dropped, "steps in which a replica has no computing")),
            "Dropped: what each stage and operation did by itself.",
        ),
        scenario=(constant_allreduce(tail, replicas), *run_of(steps, replicas)),
    )


def replica_steps(path: str | Path) -> ReplicaSteps:
    """The recorded steps of data-parallel replicas. Raises `InputError` for any other file."""
    record = read_operations(require_path(path))
    ends = record.start.astype(float) + record.duration.astype(float)
    computed = np.isin(record.kind, [
        k for k, name in enumerate(record.kinds) if name in (FORWARD, BACKWARD)
    ])  # fmt: skip
    steps, step = np.unique(record.step, return_inverse=True)
    replicas, replica = np.unique(record.replica, return_inverse=True)
    recorded, local = np.full(len(steps), -np.inf), np.full((len(steps), len(replicas)), -np.inf)
    np.maximum.at(recorded, step, ends)
    np.maximum.at(local, (step[computed], replica[computed]), ends[computed])
    complete = np.isfinite(local).all(axis=1)
    if len(replicas) < 2 or not complete.any():
        raise InputError(f"{path}: no step in which two replicas or more computed")
    return ReplicaSteps(
        steps[complete], local[complete], recorded[complete], int(np.sum(~complete))
    )
