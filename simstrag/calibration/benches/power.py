"""Mean power of a device: idle, and while it computes steps in either precision."""

from __future__ import annotations

import time
from functools import partial
from itertools import cycle
from typing import Any

from simstrag.calibration.benches.bench import Bench
from simstrag.calibration.benches.energy_counters import EnergyCounter, mean_watts
from simstrag.calibration.benches.training_jobs import Jobs, skip_on_failure, time_steps
from simstrag.calibration.benches.visit_forecast import VisitForecast
from simstrag.calibration.cells import MeasurementCell, VisitSeries
from simstrag.errors import InputError
from simstrag.workloads import Precisions

NAP = 0.005
"""Seconds of sleep between two looks at the counter of an idle device."""


class PowerBench(Bench):
    """Watts of the nominal batch in the nominal pair of precisions, and without work.

    span: seconds over which the mean is.
    why_not: why this machine has no cells; empty where it has.
    forecast: of a GPU.
    """

    def __init__(
        self, jobs: Jobs, chosen: Precisions, span: float = 1.0,
        forecast: VisitForecast | None = None,
    ) -> None:  # fmt: skip
        self.jobs, self.span, self.why_not, self.cells = jobs, span, "", []
        self.forecast = forecast
        self._counter: EnergyCounter | None = None
        try:
            self._counter = jobs.device.energy_counter()
        except InputError as error:
            self.why_not = str(error)
            return
        self.cells = [
            MeasurementCell("power"),
            *(
                MeasurementCell("power", precision=precision, batch=jobs.workload.nominal)
                for precision in dict.fromkeys((chosen.full, chosen.amp))
            ),
        ]

    def seconds(self, cell: MeasurementCell) -> float:
        """The span, and as much again for warm-up."""
        return 2 * self.span if self.forecast is None else self.forecast.power(cell, self.span)

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """`watts`, one number; the facts name the counter."""
        device, counter = self.jobs.device, self._counter
        assert counter is not None
        facts = {"source": counter.source, "state": device.state()}
        if not cell.precision:
            time.sleep(self.span)  # until clocks have come down
            watts = mean_watts(counter, partial(time.sleep, NAP), self.span)
            return {"watts": (round(watts, 3),)}, facts
        with skip_on_failure(self.jobs, cell), device.on_core():
            job = self.jobs.of(cell.precision)
            batches = [job.batch(cell.batch) for _ in range(2)]
            time_steps(job, batches, device, self.span / 2)
            turns = cycle(batches)

            def step() -> None:
                job.gradient(next(turns))
                job.update()

            watts = mean_watts(counter, step, self.span)
            device.finish()
        return {"watts": (round(watts, 3),)}, facts
