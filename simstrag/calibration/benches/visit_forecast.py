"""What is tried before anything is planned: the batch that fills a GPU, and the seconds of visits.

The constants were fitted to 166 visits on an H200 with 16 cores (27 November 2026): what a visit
takes beside its own steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simstrag.calibration.benches.bench import Skipped
from simstrag.calibration.benches.training_jobs import (
    FEWEST,
    SETTLE,
    WARM_UP,
    Jobs,
    skip_on_failure,
    time_steps,
)
from simstrag.calibration.cells import MeasurementCell
from simstrag.errors import InputError

FILLS = 1.5
"""Seconds of the device over those of launching from which a batch fills a GPU, ASSUMED."""

PREPARE = 0.4
"""Seconds of a visit in which the paces of cores are timed and the weights restored."""

NEW_JOB = 1.5
"""Seconds that the first visit in a precision takes more: a model is built, kernels are loaded."""

NEW_PROCESS = 5.0
"""Seconds in which a process loads torch and opens the GPU: of the first visit beside a load."""

PROFILE = 0.7
"""Seconds in which a profiler starts, stops, and is read."""

SWITCH, LOADED = 0.25, 1.7
"""Seconds in which a load starts and ends, and how much longer a step takes beside most loads."""


@dataclass(frozen=True, slots=True)
class VisitForecast:
    """Expected seconds of visits to steps of one workload.

    batch: the nominal one, at which steps were timed.
    steps: seconds of its step by precision.
    launch: seconds of launching a step, which none is shorter than.
    draw: seconds of drawing a sample.

    >>> forecast = VisitForecast(64, {"tf32": 0.032}, launch=0.016, draw=0.002)
    >>> cell = MeasurementCell("step", precision="tf32", batch=128)
    >>> round(forecast.step(cell), 3), round(forecast.visit(cell, span=0.4), 2)
    (0.064, 1.82)
    """

    batch: int
    steps: Mapping[str, float]
    launch: float
    draw: float

    def step(self, cell: MeasurementCell) -> float:
        """Seconds of a step, in proportion to its batch; of an unknown precision the longest."""
        nominal = self.steps.get(cell.precision, max(self.steps.values()))
        return max(self.launch, nominal * cell.batch / self.batch)

    def visit(self, cell: MeasurementCell, span: float) -> float:
        """Of part "step", after the first; span: seconds of samples."""
        step = self.step(cell)
        steps = (WARM_UP + FEWEST) * step + max(span, FEWEST * step)
        return PREPARE + 2 * self.draw * cell.batch + steps

    def first(self, cell: MeasurementCell, span: float) -> float:
        """Of part "step", the first: caches and algorithms are cold, memory is looked at."""
        step = self.step(cell)
        return self.visit(cell, span) + (WARM_UP + FEWEST) * step + max(span, FEWEST * step)

    def anatomy(self, cell: MeasurementCell) -> float:
        """Seconds of a visit to a cell of part "anatomy"."""
        return PREPARE + PROFILE + self.draw * cell.batch + (WARM_UP + FEWEST) * self.step(cell)

    def contention(self, cell: MeasurementCell, span: float) -> float:
        """Of part "contention": clean steps before and after, and loaded ones between."""
        step = self.step(cell)
        clean = WARM_UP * step + max(span / 2, FEWEST * step)
        loaded = SETTLE + max(1.5 * span, FEWEST * LOADED * step)
        return PREPARE + SWITCH + 2 * self.draw * cell.batch + 2 * clean + loaded

    def power(self, cell: MeasurementCell, span: float) -> float:
        """Of part "power": a pause or warm-up of half the span, and the span."""
        if not cell.precision:
            return PREPARE + 2 * span
        return PREPARE + 2 * self.draw * cell.batch + WARM_UP * self.step(cell) + 1.5 * span


def require_compiler(jobs: Jobs, precision: str) -> None:
    """Raise `InputError` where `torch.compile` cannot compile a workload's smallest step."""
    cell = MeasurementCell("step", precision=precision, batch=jobs.workload.batches[0])
    try:
        with skip_on_failure(jobs, cell), jobs.device.on_core():
            job = jobs.of(precision)
            job.gradient(job.batch(cell.batch))
    except Skipped as reason:
        raise InputError(str(reason)) from None


def filling_batch(jobs: Jobs, precision: str) -> int:
    """The smallest batch of a workload at which the device takes `FILLS` times the launching.

    It is the largest that memory takes where none does, and the declared one on a CPU.  Raises
    `InputError` where not even the smallest fits.
    """
    device, found = jobs.device, 0
    for batch in jobs.workload.batches:
        cell = MeasurementCell("step", precision=precision, batch=batch)
        try:
            with skip_on_failure(jobs, cell), device.on_core():
                job = jobs.of(precision)
                drawn = job.batch(batch)
                steps = time_steps(job, [drawn], device, 0.0)["seconds"]
                launches = device.launches(job, drawn, FEWEST).get("launch")
        except Skipped as reason:
            if not found:
                raise InputError(str(reason)) from None
            break
        if launches is None:
            return jobs.workload.nominal
        found = batch
        if statistics.median(steps) >= FILLS * statistics.median(launches):
            break
    return found


def probe(jobs: Jobs, precisions: Iterable[str]) -> VisitForecast:
    """Time some steps of the nominal batch in each precision that memory allows.

    Raises `InputError` where it allows none.
    """
    batch, device, reason = jobs.workload.nominal, jobs.device, ""
    steps: dict[str, float] = {}
    launches: list[float] = []
    draws: list[float] = []
    for precision in precisions:
        cell = MeasurementCell("step", precision=precision, batch=batch)
        try:
            with skip_on_failure(jobs, cell), device.on_core():
                job, start = jobs.of(precision), time.perf_counter()
                drawn = job.batch(batch)
                draws.append((time.perf_counter() - start) / batch)
                timed = time_steps(job, [drawn], device, 0.0)["seconds"]
                launches += device.launches(job, drawn, FEWEST).get("launch", timed)
        except Skipped as skipped:
            reason = str(skipped)
            continue
        steps[precision] = statistics.median(timed)
    if not steps:
        raise InputError(reason)
    return VisitForecast(batch, steps, statistics.median(launches), statistics.median(draws))
