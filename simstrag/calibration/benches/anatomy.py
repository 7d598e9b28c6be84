"""Times the kernels of a step on a GPU, by a profiler in a process of its own.

A profiler that was attached once slows every later launch of its process, so that none of the
processes that time anything else may have one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from simstrag.calibration.benches.bench import Bench, Skipped
from simstrag.calibration.benches.measured_device import find_device
from simstrag.calibration.benches.training_jobs import WARM_UP, Jobs, skip_on_failure
from simstrag.calibration.benches.visit_forecast import VisitForecast
from simstrag.calibration.benches.workers import STALL, WorkerGroup, serve
from simstrag.calibration.cells import MeasurementCell, VisitSeries
from simstrag.workloads import Workload

COMPILING = 600.0
"""Seconds without an answer after which a process that compiles is given up, ASSUMED."""

STEPS = 5
"""Profiled steps of a visit: kernels repeat to .1 % (measured on an H200)."""


class AnatomyBench(Bench):
    """Cells of part "anatomy", one for each cell of part "step".

    steps: these cells.
    """

    def __init__(
        self, jobs: Jobs, steps: Sequence[MeasurementCell], forecast: VisitForecast
    ) -> None:
        self.jobs, self.forecast = jobs, forecast
        self.cells = [
            MeasurementCell("anatomy", precision=cell.precision, batch=cell.batch) for cell in steps
        ]
        self._took: dict[MeasurementCell, float] = {}
        device = jobs.device
        self.workers = WorkerGroup(
            _run_profiler, 1, jobs.workload, device.name, device.core, jobs.compiles,
            starting=STALL, lazy=True, name="profiler",
        )  # fmt: skip
        self.held = (self.workers,)

    def seconds(self, cell: MeasurementCell) -> float:
        """The time of the last visit; before the first, that of its steps and the profiler."""
        return self._took.get(cell, self.forecast.anatomy(cell))

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """`kernel`: seconds of each profiled step in which some kernel ran.

        The facts say that the visit was in no process that times anything.
        """
        start = time.perf_counter()
        self.jobs.require_memory(cell)
        self.jobs.clear()
        limit = COMPILING if self.jobs.compiles else None
        ((samples, reason),) = self.workers.request({0: (cell.precision, cell.batch)}, limit)
        if reason:
            raise Skipped(reason)
        self._took[cell] = time.perf_counter() - start
        if not samples:
            raise Skipped("the profiler saw no kernel: CUPTI is not at hand")
        return samples, {"process": -1}


def profile_cell(jobs: Jobs, request: tuple[str, int]) -> tuple[VisitSeries, str]:
    """`kernel` of a step, or why it cannot be computed; request: precision and batch."""
    precision, batch = request
    cell, device = MeasurementCell("anatomy", precision=precision, batch=batch), jobs.device
    try:
        with skip_on_failure(jobs, cell), device.on_core():
            job = jobs.of(precision)
            drawn = job.batch(batch)
            for _ in range(WARM_UP):
                job.gradient(drawn)
                job.update()
            return device.kernels(job, drawn, STEPS), ""
    except Skipped as reason:
        return {}, str(reason)


def _run_profiler(
    pipe: Connection, _rank: int, workload: Workload, device_name: str, core: int, compiles: bool
) -> None:
    jobs = Jobs(workload, find_device(device_name, core), compiles)
    serve(pipe, partial(profile_cell, jobs))
