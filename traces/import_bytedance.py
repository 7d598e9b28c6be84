"""One recorded step of ByteDance's straggler analysis per row: pipelines collapsed to replicas.

Source: ByteDance-Seed/StragglerAnalysis @8efcd7f, Apache-2.0, `trace-AR.parquet`; Lin et al.,
"Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025.  A row is one
operation of one rank in one recorded step, with `start_ts` in seconds from the beginning of the
step.  A communication's duration includes waiting for its peers, so only the ends of computing show
when a replica was ready.

T(step, replica) is the last end of a forward or backward computation on any stage of a replica.  A
step takes max over replicas of T, and then a tail (gradients, optimizer) that is the same for all:
the median of recorded step time - max T.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.documents.file_io import require_path
from simstrag.errors import InputError
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import (
    Labelled,
    constant_allreduce,
    contents,
    count_note,
    run_of,
)

NAME = "bytedance-straggler"
COLUMNS = ("dp_rank", "step", "optype", "start_ts", "duration")
COMPUTE = ("forward-compute", "backward-compute")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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

    def select(self, chosen: npt.NDArray[np.bool_]) -> ReplicaSteps:
        """Some of the steps."""
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
            self.local.ravel(), NAME,
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
        NAME,
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
    import pandas as pd
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(require_path(path))
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition(". ")[0].rpartition("': ")[2]
        raise InputError(f"{path}: cannot be read as parquet: {reason}") from None
    for name in COLUMNS:
        if name not in table.column_names:
            there = ", ".join(table.column_names)
            raise InputError(f"{path}: no column '{name}'; {NAME} has it, this file {there}")
    frame: pd.DataFrame = table.select(list(COLUMNS)).to_pandas()
    frame["end"] = frame["start_ts"].astype(float) + frame["duration"].astype(float)
    computed = frame[frame["optype"].isin(COMPUTE)]
    if computed.empty:
        raise InputError(f"{path}: no operation is {' or '.join(COMPUTE)}; it is no {NAME} trace")
    local = computed.groupby(["step", "dp_rank"])["end"].max().unstack()
    complete = local.notna().all(axis=1)
    local = local[complete]
    if local.shape[1] < 2 or local.empty:
        raise InputError(f"{path}: no step in which two replicas or more computed")
    recorded = frame.groupby("step")["end"].max()[local.index]
    return ReplicaSteps(
        local.index.to_numpy(np.int64), local.to_numpy(float), recorded.to_numpy(float),
        int(np.sum(~complete)),
    )  # fmt: skip
