"""Mini-batch times of the Alibaba PAI trace as slowdowns of whole steps.

Source: alibaba/clusterdata @7a6c496, `cluster-trace-gpu-v2020/mini-batch-time/job_k_norm.csv`,
CC-BY-4.0; Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale
Heterogeneous GPU Clusters", NSDI 2022.  One file is one job: the time of a mini-batch of each
worker every 10 s, normalised so that the job's longest is 1000.  The source states neither seconds
nor whether training was synchronous.

Cells become slowdowns, not recorded durations: a cell is a moment on the clock at which many
mini-batches were computed, and another policy would have met the same slowdown at that moment.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.records.log_table import LogTable
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import STEPS, Labelled, contents, count_note, run_of, typical_step

NAME = "alibaba-pai-minibatch"
VALUE = "batch_time_norm"


def alibaba_pai_minibatch(path: str | Path, clean: float = 0.0) -> Labelled:
    """The slowdown of each worker's steps, piecewise constant, from one `job_k_norm.csv`.

    clean: the quantile (0 to 1) of all cells of the job that counts as a slowdown of 1, and so do
        cells below it; 0 is the fastest cell.  The level is the same for all workers, so a worker
        that is always slow is slow in the trace too.

    Of two cells of one worker and time the later row counts.  A missing cell keeps the one before
    in force.  The trace spans the time that all workers recorded; cells outside it are dropped.
    Raises `InputError` for any other file.
    """
    if not 0 <= clean < 1:
        raise InputError(f"clean must be a quantile from 0 to below 1, not {clean:g}")
    table = LogTable.read(path, ("worker", "time", VALUE))
    worker, time, value = (table.numbers(name) for name in ("worker", "time", VALUE))
    for name, wrong, why in (
        ("worker", (worker < 0) | (worker != np.floor(worker)), "is no whole number"),
        ("time", time < 0, "is negative"),
        (VALUE, value <= 0, "must be more than 0"),
    ):
        if wrong.any():
            raise table.mistake(int(np.argmax(wrong)), name, why)
    order = np.lexsort((time, worker))
    node, time, value = worker[order].astype(np.int64), time[order], value[order]
    last = np.append((node[1:] != node[:-1]) | (time[1:] != time[:-1]), True)
    twice = int(np.sum(~last))
    node, time, value = node[last], time[last], value[last]

    first = np.append(True, node[1:] != node[:-1])
    begin, end = float(time[first].max()), float(time[np.roll(first, -1)].min())
    if begin >= end:
        raise InputError(
            f"{table.source}: its workers have no time in common, one begins at {begin:g} s and "
            f"one ends at {end:g} s; leave out the rows of one of them"
        )
    in_force = np.append((node[1:] != node[:-1]) | (time[1:] > begin), True)  # at `begin` or later
    kept = ((time >= begin) | in_force) & (time <= end)
    node, time, value = node[kept], time[kept], value[kept]
    inside = (time >= begin) & (time < end)
    missing = len(np.unique(time[inside])) * len(np.unique(node)) - int(inside.sum())

    level = float(np.quantile(value, clean, method="lower"))
    trace = Trace.from_columns(
        np.maximum(time, begin) - begin, node, "step", "slowdown", np.maximum(value / level, 1.0),
        f"{table.source} ({NAME})",
    )  # fmt: skip
    median, below = float(np.median(value)), int(np.sum(value < level))
    cut = f"; {below} cells below it are set to 1" if below else ""
    return Labelled(
        trace,
        NAME,
        contents([path]),
        notes=(
            f"Measured: {len(value):,} cells of {len(trace.nodes)} workers, the normalised time "
            f"of a mini-batch (the job's longest is 1000); the median is {median:g}.",
            f"Derived: the slowdown of whole steps (resource step) against {level:g}, quantile "
            f"{clean:g} of the job's cells{cut}.",
            "Assumed: a cell holds until the worker's next one; that these are times of a worker's "
            "own computing, which the source does not say.",
            f"Unknown: seconds. A scenario's `step.compute` is what {level:g} units are; for a "
            f"median step of m seconds that is {level / median:.4g} m.",
            *count_note("Missing", (missing, "cells, where the one before stays in force")),
            *count_note(
                "Dropped",
                (twice, "cells given twice (the later row counts)"),
                (int(np.sum(~kept)), "rows outside of the time that all workers recorded"),
            ),
        ),
        scenario=(
            f"step: {{compute: {typical_step(trace.end):.6g}}}  # ASSUMED: of {level:g} units",
            *run_of(STEPS, len(trace.nodes)),
        ),
    )
