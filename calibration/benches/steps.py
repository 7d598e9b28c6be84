"""Times steps: forward and backward of a workload, in each precision and batch size.

On a CPU a step is wall clock, and `cpu` beside it is the thread's CPU time in the same span.  On a
GPU steps are launched one after the other without waiting, as a training loop does; a step is the
time between two events in the stream, and `host` the time until the launching thread came back
from it.  While the launch queue is full `host` follows the GPU; what launching takes by itself is
the fact `host_alone`.  `update`, the optimizer and the clearing of gradients, lies between steps
and is a series of its own.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

from simstrag.calibration.benches.device import Device, no_memory
from simstrag.calibration.cells import Cell, Skipped
from simstrag.errors import InputError
from simstrag.workloads import Parts, Precisions, TrainingTask, Workload, available_precisions

__all__ = ["FEWEST", "WARM", "Jobs", "StepBench", "block", "skipping"]

WARM = 3
"""Steps at the beginning of a block that do not count.

Measured on two Xeon cores with AMX, 32 cells of four workloads, three visits each: the first step
after a change of cell takes 1.2 to 2 times the visit's median (4 at the very first), the second
1.0 to 1.5 times, the third 1.0 to 1.1 times (1.3 at most); of later ones a few stray up to 1.6.
"""

FEWEST = 5
"""Steps of a block at least, however long they take."""

SLOW = 0.5
"""A reduced precision whose probed gain is below this is timed at the nominal batch only."""

Samples = dict[str, tuple[float, ...]]


class Jobs:
    """The jobs of a workload on a device, by precision; made when asked for.

    Those with parameters of the same number format share them: a device holds the model once or
    twice, not once per precision.  Each time a job is asked for it has the weights again that the
    model was made with: after thousands of steps on the same few batches, gradients and momenta are
    so small (denormal) that a CPU computes up to three times slower with them.
    """

    def __init__(self, workload: Workload, device: Device) -> None:
        self.workload, self.device = workload, device
        self._parts: dict[bool, Parts] = {}
        self._weights: dict[bool, dict[str, Any]] = {}
        self._jobs: dict[str, TrainingTask] = {}

    def of(self, precision: str) -> TrainingTask:
        """The job in that precision. Raises what making it raises, memory included."""
        double = precision in ("fp64", "fp32_of_fp64")
        if double not in self._parts:
            self._parts[double] = self.workload.build()
            self._weights[double] = copy.deepcopy(self._parts[double].model.state_dict())
        parts = self._parts[double]
        parts.model.load_state_dict(self._weights[double])
        parts.optimizer.state.clear()
        if precision not in self._jobs:  # kept, so that fp16 keeps the scale that it has found
            self._jobs[precision] = TrainingTask(parts, precision, self.device.name)
        return self._jobs[precision]

    def clear(self) -> None:
        """Gradients away, and memory given back: for whoever comes next."""
        for parts in self._parts.values():
            parts.optimizer.zero_grad(set_to_none=True)
        self.device.release()


def block(
    job: TrainingTask, batches: Sequence[Any], device: Device, seconds: float, warm: int = WARM
) -> Samples:
    """Time steps for about so many seconds: `seconds` of each, `cpu` or `host`, and `update`.

    warm: steps before that which do not count; the device is not waited for in between.
    """
    for number in range(warm):
        job.gradient(batches[number % len(batches)])
        job.update()
    marks: list[tuple[Any, Any, Any]] = []
    beside: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(marks) < FEWEST:
        batch = batches[len(marks) % len(batches)]
        begun, thread = device.mark(), device.thread()
        job.gradient(batch)
        thread, ended = device.thread() - thread, device.mark()
        job.update()
        marks.append((begun, ended, device.mark()))
        beside.append(thread)
    device.finish()
    return {
        "seconds": tuple(_short(device.seconds(a, b)) for a, b, _ in marks),
        device.beside: tuple(map(_short, beside)),
        "update": tuple(_short(device.seconds(b, c)) for _, b, c in marks),
    }


@contextlib.contextmanager
def skipping(jobs: Jobs, cell: Cell) -> Iterator[None]:
    """What keeps a cell from being measured becomes `Skipped`; memory is given back either way."""
    why = ""
    try:
        yield
    except Skipped:
        raise
    except InputError as error:
        why = str(error)
    except Exception as error:
        if no_memory(error):
            why = f"{cell.precision} at batch {cell.batch} needs more than the memory there is"
        elif jobs.workload.user_defined:
            why = str(jobs.workload.describe_failure(f"a step of batch {cell.batch}", error))
        else:
            raise
    finally:
        jobs.clear()
    if why:
        raise Skipped(why)


class StepBench:
    """Steps alone, in every precision and batch size of a workload.

    chosen: the nominal pair and what was probed for it: a bf16 that is slower than fp32 by more
    than a factor of two (a CPU without instructions for it) is timed at the nominal batch only.
    span: seconds of samples in a visit.
    """

    def __init__(self, jobs: Jobs, chosen: Precisions, span: float = 0.4) -> None:
        self.jobs, self.span = jobs, span
        workload = jobs.workload
        self._cells = [
            Cell("step", precision=precision, batch=batch)
            for precision in available_precisions(jobs.device.name)
            for batch in workload.batches
            if batch == workload.nominal or precision != "bf16" or not chosen.probed_gain < SLOW
        ]
        self._took: dict[Cell, float] = {}

    @property
    def cells(self) -> Sequence[Cell]:
        """One for each precision and batch size."""
        return self._cells

    def seconds(self, cell: Cell) -> float:
        """What the last visit took; before the first, a guess from the span alone."""
        return self._took.get(cell, 1.5 * self.span)

    def visit(self, cell: Cell) -> tuple[Samples, dict[str, Any]]:
        """Steps of one cell; facts: `state`, and at the first visit what a step is made of."""
        begun, device = time.perf_counter(), self.jobs.device
        with skipping(self.jobs, cell), device.placed():
            job = self.jobs.of(cell.precision)
            batches = [job.batch(cell.batch) for _ in range(2)]
            if cell not in self._took:  # caches and pages are cold
                block(job, batches, device, self.span)
            samples = block(job, batches, device, self.span)
            facts: dict[str, Any] = {"state": device.state()}
            if cell not in self._took:
                facts |= device.anatomy(job, batches[0], FEWEST)
        self._took[cell] = time.perf_counter() - begun
        return samples, facts

    def __enter__(self) -> StepBench:
        return self

    def __exit__(self, *failure: object) -> None:
        self.jobs.clear()


def _short(seconds: float) -> float:
    return round(seconds, 7)
