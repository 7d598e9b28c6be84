"""The training jobs of a workload on a device, and the timing of their steps."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

from simstrag.calibration.benches.bench import Skipped
from simstrag.calibration.benches.measured_device import Device, is_out_of_memory
from simstrag.calibration.cells import MeasurementCell, VisitSeries
from simstrag.errors import InputError
from simstrag.workloads import Parts, TrainingTask, Workload

WARM_UP = 3
"""Uncounted steps at the start of a block.

Measured on two Xeon cores with AMX, 32 cells of four workloads, three visits each: the first step
after a change of cell takes 1.2 to 2 times the visit's median (4 at the very first), the second
1.0 to 1.5 times, the third 1.0 to 1.1 times (1.3 at most); of later ones a few stray up to 1.6.
"""

FEWEST = 5
"""Least number of steps of a block, however long they take."""

SETTLE = 0.3
"""Seconds of uncounted steps beside a load, from its first report on.

Measured on two Xeon cores, two workloads, 40 cells: from the first step on they scatter around the
later ones' median; the time left out is a margin of several steps and of the scheduler's rounds.
"""

COMPILER = ("torch._inductor", "torch._dynamo", "torch.fx", "triton")
"""Modules of the errors of `torch.compile`."""


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
) -> VisitSeries:
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
