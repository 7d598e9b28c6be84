"""Times steps, forward and backward of a workload, without load and beside real load.

On a CPU a step is wall clock, and `cpu` is the thread's CPU time in the same span.  On a GPU steps
are launched one after the other without waiting, as in a training loop; a step is the time between
two events in the stream, and `host` the time until the launching thread came back from it.  While
the launch queue is full, `host` follows the GPU; `launch` is the time of launching into an empty
one.  Kernels are timed in a process of its own, because a profiler slows every launch after it.
`update` (the optimizer, and clearing gradients) lies between steps and is a series of its own.

Beside a load a slowdown is a ratio of steps timed within seconds of each other, so that drift over
minutes cancels.  Half of the clean steps come before the loaded ones and half after, so that drift
within the visit cancels too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from simstrag.calibration.benches.background_load import Loads, levels
from simstrag.calibration.benches.bench import Bench
from simstrag.calibration.benches.training_jobs import (
    FEWEST,
    SETTLE,
    Jobs,
    skip_on_failure,
    time_steps,
)
from simstrag.calibration.benches.visit_forecast import VisitForecast
from simstrag.calibration.cells import MeasurementCell, VisitSeries
from simstrag.processes.affinity import cores
from simstrag.workloads import Precisions, available_precisions

SLOW = 0.5
"""A reduced precision whose probed gain is below this is timed at the nominal batch only."""


class StepBench(Bench):
    """Steps without load, in every precision and batch size of a workload.

    chosen: the nominal pair and its probed gain: a bf16 that is slower than fp32 by more than a
        factor of two (a CPU without instructions for it) is timed at the nominal batch only.
    span: seconds of samples in a visit.
    forecast: of a GPU; without one a visit is expected to take 1.5 spans.
    """

    def __init__(
        self, jobs: Jobs, chosen: Precisions, span: float = 0.4,
        forecast: VisitForecast | None = None,
    ) -> None:  # fmt: skip
        self.jobs, self.span, self.forecast = jobs, span, forecast
        workload = jobs.workload
        self.cells = [
            MeasurementCell("step", precision=precision, batch=batch)
            for precision in available_precisions(jobs.device.name)
            for batch in workload.batches
            if batch == workload.nominal or precision != "bf16" or not chosen.probed_gain < SLOW
        ]
        self._took: dict[MeasurementCell, float] = {}

    def seconds(self, cell: MeasurementCell) -> float:
        """The time of the last visit; before the first, a guess from the span."""
        if cell in self._took:
            return self._took[cell]
        return 1.5 * self.span if self.forecast is None else self.forecast.first(cell, self.span)

    def later(self, cell: MeasurementCell) -> float:
        """The same without what only the first visit does."""
        return self.seconds(cell) if self.forecast is None else self.forecast.visit(cell, self.span)

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """Steps of one cell; facts: `state`, and at the first visit what a step is made of."""
        start, device = time.perf_counter(), self.jobs.device
        with skip_on_failure(self.jobs, cell), device.on_core():
            job = self.jobs.of(cell.precision)
            batches = [job.batch(cell.batch) for _ in range(2)]
            if cell not in self._took:  # caches and pages are cold
                time_steps(job, batches, device, self.span)
            samples = time_steps(job, batches, device, self.span)
            samples |= device.launches(job, batches[0], FEWEST)
            facts: dict[str, Any] = {"state": device.state()}
            if cell not in self._took:
                facts |= device.describe_step(job, batches[0], FEWEST)
                if self.jobs.compiles:
                    facts["uncompiled"] = self._uncompiled(cell, batches)
        self._took[cell] = time.perf_counter() - start
        return samples, facts

    def _uncompiled(self, cell: MeasurementCell, batches: Sequence[Any]) -> dict[str, float]:
        """Median seconds of a step, and of its launching, of the model without `torch.compile`."""
        job, device = self.jobs.uncompiled(cell.precision), self.jobs.device
        series = time_steps(job, batches, device, 0.0) | device.launches(job, batches[0], FEWEST)
        names = [name for name in ("seconds", "launch") if name in series]
        return {name: statistics.median(series[name]) for name in names}


class ContentionBench(Bench):
    """Steps of the nominal batch, in the nominal pair of precisions, beside each load.

    span: seconds of clean steps in a visit; the loaded ones, which are longer, take half as much
        again.
    forecast: of a GPU.
    """

    def __init__(
        self, jobs: Jobs, chosen: Precisions, span: float = 0.4,
        forecast: VisitForecast | None = None,
    ) -> None:  # fmt: skip
        self.jobs, self.span, self.forecast = jobs, span, forecast
        device = jobs.device
        gpu = device.name if device.name != "cpu" else ""
        kinds = ("gemm", "copy", "cpu", "memory") if gpu else ("cpu", "memory")
        others = [each for each in cores() if each != device.core]
        self.cells = [
            MeasurementCell("contention", precision=precision, batch=jobs.workload.nominal,
                            load=kind, level=level)
            for precision in dict.fromkeys((chosen.full, chosen.amp))
            for kind in kinds
            for level in levels(kind, len(others))
        ]  # fmt: skip
        self._loads = Loads(int(max(cell.level for cell in self.cells)), device.core, gpu)
        self.held = (self._loads,)

    def seconds(self, cell: MeasurementCell) -> float:
        """Both blocks, the settling, and the warm-up."""
        if self.forecast is not None:
            return self.forecast.contention(cell, self.span)
        return 2.5 * self.span + 2 * SETTLE

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """`clean` steps, and of loaded ones `seconds`, `cpu` or `host`, `update`.

        The facts have the load's report.
        """
        device = self.jobs.device
        with skip_on_failure(self.jobs, cell), device.on_core():
            job = self.jobs.of(cell.precision)
            batches = [job.batch(cell.batch) for _ in range(2)]
            before = time_steps(job, batches, device, self.span / 2)
            with self._loads.on(cell.load, cell.level) as report:
                time_steps(job, batches, device, SETTLE, warm_up=0)
                loaded = time_steps(job, batches, device, 1.5 * self.span, warm_up=0)
            after = time_steps(job, batches, device, self.span / 2)
        samples = loaded | {"clean": before["seconds"] + after["seconds"]}
        return samples, {"state": device.state(), **report}
