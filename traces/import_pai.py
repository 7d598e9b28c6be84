"""Mini-batch times of the Alibaba PAI trace as slowdowns of whole steps.

Source: alibaba/clusterdata @7a6c496, `cluster-trace-gpu-v2020/mini-batch-time/job_k_norm.csv`,
CC-BY-4.0; Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale
Heterogeneous GPU Clusters", NSDI 2022.  One file is one job: the time of a mini-batch of each
worker every 10 s, normalised so that the job's longest is 1000.  Neither the second, nor whether
training was synchronous, is stated.

A slowdown, and not a recorded duration, is made of it: a cell is a moment on the clock at which
many mini-batches were computed, and a slowdown is what another policy would have met at that
moment.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError
from simstrag.trace.trace import Trace
from simstrag.traces.labelled import Labelled, contents
from simstrag.traces.scenario_lines import run_of
from simstrag.traces.sheets import Sheet

__all__ = ["alibaba_pai_minibatch"]

NAME = "alibaba-pai-minibatch"
VALUE = "batch_time_norm"
STEPS = 500
"""Of a run of the scenario that goes with a trace."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def alibaba_pai_minibatch(path: str | Path, clean: float = 0.0) -> Labelled:
    """The slowdown of each worker's steps, piecewise constant, from one `job_k_norm.csv`.

    clean: which quantile (0 to 1) of all cells of the job is taken for a slowdown of 1; by default
        the job's fastest cell, so that nothing is cut off.  Cells below it are set to 1.  The level
        is one for all workers: one that is slow all the time is slow here too.
    Of two cells of one worker and time the later row counts.  A missing cell leaves the one before
    in force.  The trace spans what all workers have recorded; what some have beyond it is dropped.
    Raises `InputError` for a file that is none of these.
    """
    if not 0 <= clean < 1:
        raise InputError(f"clean must be a quantile from 0 to below 1, not {clean:g}")
    sheet = Sheet.read(path, ("worker", "time", VALUE))
    worker, time, value = (sheet.numbers(name) for name in ("worker", "time", VALUE))
    for name, column, wrong, why in (
        ("worker", worker, (worker < 0) | (worker != np.floor(worker)), "is no whole number"),
        ("time", time, time < 0, "is negative"),
        (VALUE, value, value <= 0, "must be more than 0"),
    ):
        if wrong.any():
            raise sheet.wrong(int(np.argmax(wrong)), name, why)
        assert len(column) == len(sheet.lines)
    order, twice = _ordered(worker, time)
    node, time, value = worker[order].astype(np.int64), time[order], value[order]
    begin, end = _common(node, time, sheet.source)
    kept = _opened(node, time, begin) & (time <= end)
    missing = _missing(node[kept], time[kept], begin, end)
    node, time, value = node[kept], np.maximum(time[kept], begin) - begin, value[kept]
    level = float(np.quantile(value, clean, method="lower"))
    cut = int(np.sum(value < level))
    trace = Trace.from_columns(
        time, node, "step", "slowdown", np.maximum(value / level, 1.0), f"{sheet.source} ({NAME})"
    )
    median = float(np.median(value))
    return Labelled(
        trace,
        NAME,
        contents([path]),
        notes=(
            f"Measured: {len(value):,} cells of {len(trace.nodes)} workers, the normalised time "
            f"of a mini-batch (the job's longest is 1000); the median is {median:g}.",
            f"Derived: the slowdown of whole steps (resource step) against {level:g}, "
            f"quantile {clean:g} of the job's cells; {cut} cells below it are set to 1.",
            "Assumed: a cell holds until the worker's next one; that these are times of a worker's "
            "own computing, which the source does not say.",
            f"Unknown: seconds. A scenario's `step.compute` is what {level:g} units are; for a "
            f"median step of m seconds that is {level / median:.4g} m.",
            f"Missing: {missing} cells, where the one before stays in force.",
            f"Dropped: {twice} cells given twice (the later row counts), and "
            f"{int(np.sum(~kept))} rows outside of the time that all workers recorded.",
        ),
        scenario=(
            f"step: {{compute: 1.0}}  # ASSUMED: the seconds of a step at {level:g} units",
            *run_of(STEPS, len(trace.nodes)),
        ),
    )


def _ordered(worker: Floats, time: Floats) -> tuple[Ints, int]:
    """Rows by worker and time, the last of equal ones only, and how many are left out."""
    order = np.lexsort((time, worker))
    node, at = worker[order], time[order]
    last = np.append((node[1:] != node[:-1]) | (at[1:] != at[:-1]), True)
    return order[last], int(np.sum(~last))


def _common(node: Ints, time: Floats, source: str) -> tuple[float, float]:
    """The seconds that all workers have recorded."""
    first = np.append(True, node[1:] != node[:-1])
    begin, end = float(time[first].max()), float(time[np.roll(first, -1)].min())
    if begin >= end:
        raise InputError(
            f"{source}: its workers have no time in common, one begins at {begin:g} s and one "
            f"ends at {end:g} s; leave out the rows of one of them"
        )
    return begin, end


def _opened(node: Ints, time: Floats, begin: float) -> npt.NDArray[np.bool_]:
    """Rows from `begin` on, and of each worker the one that is in force then."""
    ahead = np.append((node[1:] != node[:-1]) | (time[1:] > begin), True)
    return np.asarray((time >= begin) | ahead)


def _missing(node: Ints, time: Floats, begin: float, end: float) -> int:
    """Cells that a worker lacks at times at which another has one, from `begin` to `end`."""
    inside = (time >= begin) & (time < end)
    times, workers = np.unique(time[inside]), np.unique(node)
    return len(times) * len(workers) - int(inside.sum())
