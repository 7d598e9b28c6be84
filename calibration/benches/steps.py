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

import contextlib
import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.background_load import Loads, levels
from simstrag.calibration.benches.bench import Bench, Skipped
from simstrag.calibration.benches.measured_device import Device, is_out_of_memory
from simstrag.calibration.cells import MeasurementCell, Series
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.workloads import Parts, Precisions, TrainingTask, Workload, available_precisions

if TYPE_CHECKING:
    from simstrag.calibration.benches.visit_forecast import VisitForecast

WARM_UP = 3
"""Uncounted steps at the start of a block.

Measured on two Xeon cores with AMX, 32 cells of four workloads, three visits each: the first step
after a change of cell takes 1.2 to 2 times the visit's median (4 at the very first), the second
1.0 to 1.5 times, the third 1.0 to 1.1 times (1.3 at most); of later ones a few stray up to 1.6.
"""

FILLS = 1.5
"""Seconds of the device over those of launching from which a batch fills a GPU, ASSUMED."""

COMPILER = ("torch._inductor", "torch._dynamo", "torch.fx", "triton")
"""Modules of the errors of `torch.compile`."""

FEWEST = 5
"""Least number of steps of a block, however long they take."""

SLOW = 0.5
"""A reduced precision whose probed gain is below this is timed at the nominal batch only."""

SETTLE = 0.3
"""Seconds of uncounted steps beside a load, from its first report on.

Measured on two Xeon cores, two workloads, 40 cells: from the first step on they scatter around the
later ones' median; the time left out is a margin of several steps and of the scheduler's rounds.
"""


class Jobs:
    """The jobs of a workload on a device, by precision, made at their first use.

    Jobs with parameters of the same number format share them: a device holds the model once or
    twice, not once per precision.  `of` restores the initial weights: after thousands of steps on
    the same few batches, gradients and momenta are so small (denormal) that a CPU computes up to
    three times slower with them.

    compiles: whether `torch.compile` compiles the model.
    """

    def __init__(self, workload: Workload, device: Device, compiles: bool = False) -> None:
        self.workload, self.device, self.compiles = workload, device, compiles
        self._parts: dict[bool, Parts] = {}
        self._weights: dict[bool, dict[str, Any]] = {}
        self._jobs: dict[str, TrainingTask] = {}
        self._without_memory: dict[str, int] = {}

    def of(self, precision: str) -> TrainingTask:
        """The job in a precision. Raises any error of making it, memory errors included."""
        parts = self._restored(precision)
        if precision not in self._jobs:  # kept, so that fp16 keeps its gradient scale
            name = self.device.name
            self._jobs[precision] = TrainingTask(parts, precision, name, self.compiles)
        return self._jobs[precision]

    def uncompiled(self, precision: str) -> TrainingTask:
        """The same without `torch.compile`, with the same parameters."""
        return TrainingTask(self._restored(precision), precision, self.device.name)

    def _restored(self, precision: str) -> Parts:
        """The parts of a number format, with their initial weights."""
        double = precision in ("fp64", "fp32_of_fp64")
        if double not in self._parts:
            self._parts[double] = self.workload.build()
            self._weights[double] = copy.deepcopy(self._parts[double].model.state_dict())
        parts = self._parts[double]
        parts.model.load_state_dict(self._weights[double])
        parts.optimizer.state.clear()
        return parts

    def require_memory(self, cell: MeasurementCell) -> None:
        """Raise `Skipped` for a batch above one that found no memory in its precision."""
        least = self._without_memory.get(cell.precision, cell.batch)
        if cell.batch > least:
            raise Skipped(
                f"{cell.precision} at batch {least} needs more than the memory there is, so batch "
                f"{cell.batch} was not tried"
            )

    def refuse_memory(self, cell: MeasurementCell) -> str:
        """Note that a cell found no memory; the reason, in words."""
        least = self._without_memory.get(cell.precision, cell.batch)
        self._without_memory[cell.precision] = min(least, cell.batch)
        return f"{cell.precision} at batch {cell.batch} needs more than the memory there is"

    def clear(self) -> None:
        """Drop gradients and release memory for the next bench."""
        for parts in self._parts.values():
            parts.optimizer.zero_grad(set_to_none=True)
        self.device.release()


def time_steps(
    job: TrainingTask,
    batches: Sequence[Any],
    device: Device,
    seconds: float,
    warm_up: int = WARM_UP,
) -> Series:
    """Time steps for about `seconds`: `seconds` of each, `cpu` or `host`, and `update`.

    warm_up: uncounted steps before.
    """
    for number in range(warm_up):
        job.gradient(batches[number % len(batches)])
        job.update()
    marks: list[tuple[Any, Any, Any]] = []
    thread_seconds: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(marks) < FEWEST:
        batch = batches[len(marks) % len(batches)]
        start, thread = device.mark(), device.thread()
        job.gradient(batch)
        thread, end = device.thread() - thread, device.mark()
        job.update()
        marks.append((start, end, device.mark()))
        thread_seconds.append(thread)
    device.finish()
    return {
        "seconds": tuple(round(device.seconds(a, b), 7) for a, b, _ in marks),
        device.thread_series: tuple(round(each, 7) for each in thread_seconds),
        "update": tuple(round(device.seconds(b, c), 7) for _, b, c in marks),
    }


@contextlib.contextmanager
def skip_on_failure(jobs: Jobs, cell: MeasurementCell) -> Iterator[None]:
    """Raise `Skipped` for an error that keeps a cell from being measured, and release memory."""
    jobs.require_memory(cell)
    reason = ""
    try:
        yield
    except Skipped:
        raise
    except InputError as error:
        reason = str(error)
    except Exception as error:
        if is_out_of_memory(error):
            reason = jobs.refuse_memory(cell)
        elif jobs.compiles and (why := describe_compiler_error(error)):
            reason = why
        elif jobs.workload.user_defined:
            reason = str(jobs.workload.describe_failure(f"a step of batch {cell.batch}", error))
        else:
            raise
    finally:
        jobs.clear()
    if reason:
        raise Skipped(reason)


def describe_compiler_error(error: Exception) -> str:
    """Why `torch.compile` failed, in one line; empty for another error."""
    if not any(type(each).__module__.startswith(COMPILER) for each in (error, error.__cause__)):
        return ""
    (first, *_) = str(error).strip().splitlines() or [type(error).__name__]
    return f"torch.compile failed: {first}"


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

    def visit(self, cell: MeasurementCell) -> tuple[Series, dict[str, Any]]:
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

    def visit(self, cell: MeasurementCell) -> tuple[Series, dict[str, Any]]:
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
