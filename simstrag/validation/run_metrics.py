"""The numbers of a run that a validation compares: real and simulated runs use the same code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.runs.run import Run
from simstrag.validation.distributions import RunSample


@dataclass(frozen=True, slots=True)
class Measure:
    """Numbers of one run up to the update that completes its work.

    makespan: seconds until that update.
    step: makespan per full batch of all ranks, in seconds.
    windows: seconds per full batch in each window; NaN for a window with fewer than `FEWEST`.
    pace: seconds per full batch in each interval of a fixed time grid.
    staleness: mean staleness of the applied gradients of each rank, in updates.
    shares: each rank's share of all applied gradients.
    amp: share of steps in reduced precision, over the whole run.
    accuracy: accuracy of a real run on held-out data after training.
    """

    makespan: float
    step: float
    windows: tuple[float, ...]
    pace: tuple[float, ...]
    staleness: tuple[float, ...]
    shares: tuple[float, ...]
    amp: float
    accuracy: float | None = None


FEWEST = 3.0
"""Full batches that a window needs for a step time."""


def measure(
    run: Run, samples: int, batch: int, edges: Sequence[float], grid: Sequence[float]
) -> Measure:
    """Measure a run that kept updates and gradients.

    samples: applied samples that complete the work.
    batch: samples in a full batch of one rank.
    edges: start of each window in seconds; the last window has no end.
    grid: edges of the intervals of the pace, in seconds.

    Raises `InputError` if the run ended earlier.
    """
    gradients, ranks = run.frame("gradients"), len(run.summary["staleness_by_rank"])
    times, done, over = _completion(run, samples)
    makespan, full = float(times[over]), float(ranks * batch)
    applied = gradients[(gradients["fate"] == "applied") & (gradients["update"] <= over)]
    stale = (applied["update"] - 1 - applied["version"]).to_numpy(np.float64)
    ranks_applied = applied["rank"].to_numpy(np.int64)
    count = np.bincount(ranks_applied, minlength=ranks)
    total = np.bincount(ranks_applied, weights=stale, minlength=ranks)
    with np.errstate(invalid="ignore", divide="ignore"):
        staleness = total / count
    return Measure(
        makespan,
        makespan / (float(samples) / full),
        _paces(times, done, [*edges, math.inf], makespan, full, FEWEST),
        _paces(times, done, grid, makespan, full, 0.0),
        tuple(staleness.tolist()),
        tuple((count / count.sum()).tolist()),
        float(run.summary["amp_share"]),
        run.summary.get("accuracy"),
    )


def sample(run: Run, samples: int) -> RunSample:
    """Makespan and steps of a run that kept updates and steps; the rest is as in `measure`."""
    times, _, over = _completion(run, samples)
    steps, makespan = run.frame("steps"), float(times[over])
    start, finish = (steps[name].to_numpy(np.float64) for name in ("start", "finish"))
    return RunSample(makespan, (finish - start)[finish <= makespan])


def _completion(run: Run, samples: int) -> tuple[Floats, Floats, int]:
    """Times and samples after each update, from 0, and the index of the one that completes."""
    updates = run.frame("updates")
    times = np.append(0.0, updates["time"].to_numpy(np.float64))
    done = np.append(0.0, updates["samples"].to_numpy(np.float64))
    over = int(np.searchsorted(done, samples))
    if over == len(done):
        raise InputError(f"the run ended after {done[-1]:.0f} of {samples} samples")
    return times, done, over


def _paces(
    times: Floats, done: Floats, edges: Sequence[float], makespan: float, full: float, fewest: float
) -> tuple[float, ...]:
    """Seconds per full batch between successive edges, up to the makespan.

    Between two updates, samples count as applied at a constant rate.
    """
    starts = np.asarray(edges, np.float64)
    clipped = np.minimum(starts, makespan)
    batches = np.diff(np.interp(clipped, times, done)) / full
    seconds = np.diff(clipped)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(batches > max(fewest, 1e-9), seconds / batches, math.nan)
    return tuple(found.tolist())


def document_of(value: Any) -> Any:
    """Dataclasses and named tuples as mappings of their fields, at any depth, for JSON."""
    if is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: document_of(each) for key, each in value.items()}
    return [document_of(each) for each in value] if isinstance(value, (list, tuple)) else value
