"""What is compared of a run, real or simulated: both are measured by the same code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError
from simstrag.runs.run import Run

__all__ = ["Measure", "measure"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measure:
    """Numbers of one run, up to the update with which its work was done; amp is of all of it.

    makespan: seconds until then.  step: the same per full batch of all ranks.  windows: seconds per
    full batch in each window, NaN in those that it hardly saw.  pace: the same in each span of a
    fixed grid.  staleness, shares: of each rank, the mean over its applied gradients and its part
    of all of them.  amp: the share of its steps in reduced precision.  accuracy: on held-out data
    after training, of a real run.
    """

    makespan: float
    step: float
    windows: tuple[float, ...]
    pace: tuple[float, ...]
    staleness: tuple[float, ...]
    shares: tuple[float, ...]
    amp: float
    accuracy: float | None = None

    def document(self) -> dict[str, Any]:
        """As plain JSON would have it, but for NaN."""
        return asdict(self)


FEWEST = 3.0
"""Full batches in a window that say how long one takes there."""


def measure(
    run: Run, samples: int, batch: int, edges: Sequence[float], grid: Sequence[float]
) -> Measure:
    """Measure a run that kept updates and gradients.

    samples: applied, after which its work was done.  batch: samples of a full batch of one rank.
    edges: where windows begin; the last has no end.  grid: where spans of the pace begin and end.
    Raises `InputError` where the run ended before.
    """
    updates, gradients = run.frame("updates"), run.frame("gradients")
    ranks = len(run.summary["staleness_by_rank"])
    times = np.append(0.0, updates["time"].to_numpy(np.float64))
    done = np.append(0.0, updates["samples"].to_numpy(np.float64))
    over = int(np.searchsorted(done, samples))
    if over == len(done):
        raise InputError(f"the run ended after {done[-1]:.0f} of {samples} samples")
    makespan, full = float(times[over]), float(ranks * batch)
    applied = gradients[(gradients["fate"] == "applied") & (gradients["update"] <= over)]
    stale = (applied["update"] - 1 - applied["version"]).to_numpy(np.float64)
    who = applied["rank"].to_numpy(np.int64)
    count = np.bincount(who, minlength=ranks)
    total = np.bincount(who, weights=stale, minlength=ranks)
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


def _paces(
    times: Floats, done: Floats, edges: Sequence[float], makespan: float, full: float, fewest: float
) -> tuple[float, ...]:
    """Seconds per full batch between successive edges, as far as the run went.

    Samples count as applied evenly between two updates.
    """
    starts = np.asarray(edges, np.float64)
    clipped = np.minimum(starts, makespan)
    batches = np.diff(np.interp(clipped, times, done)) / full
    seconds = np.diff(clipped)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(batches > max(fewest, 1e-9), seconds / batches, math.nan)
    return tuple(found.tolist())
