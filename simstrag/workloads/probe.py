"""Which precisions count as full and as reduced on a device: measured, not read from CPU flags.

A CPU without AMX and AVX512-BF16 runs bf16, three times slower than fp32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simstrag.workloads.precision import available_precisions

if TYPE_CHECKING:
    from simstrag.workloads.workload import Workload

MIN_GAIN = 1.15
"""The least measured gain at which bf16 counts as reduced precision on a CPU."""


@dataclass(frozen=True, slots=True)
class Precisions:
    """The precisions that "full" and "amp" denote.

    full, amp: names of `PRECISIONS`.
    stand_in: whether they are the float64 stand-in.
    probed_gain: the measured gain of bf16 over fp32 on a CPU; NaN on a GPU, which is not probed.
    """

    full: str
    amp: str
    stand_in: bool
    probed_gain: float


def choose_precisions(workload: Workload, device: str = "cpu", steps: int = 6) -> Precisions:
    """The full and the reduced precision of a workload on a device.

    On a GPU: TF32 and bf16, before 2020 fp32 and fp16. On a CPU: fp32 and bf16 if the gain at the
    nominal batch exceeds `MIN_GAIN`, else the stand-in.
    """
    from simstrag.workloads.training_task import TrainingTask

    if device != "cpu":
        modern = "tf32" in available_precisions(device)
        full, amp = ("tf32", "bf16") if modern else ("fp32", "fp16")
        return Precisions(full, amp, stand_in=False, probed_gain=float("nan"))
    parts = workload.build()
    full_task, amp_task = TrainingTask(parts, "fp32"), TrainingTask(parts, "bf16")
    batch = full_task.batch(workload.nominal)

    def step_of(task: TrainingTask) -> Callable[[int], None]:
        def step(_number: int) -> None:
            task.gradient(batch)
            task.optimizer.zero_grad(set_to_none=True)

        return step

    measured = gain(step_of(full_task), step_of(amp_task), rounds=4, steps=steps)
    if measured > MIN_GAIN:
        return Precisions("fp32", "bf16", stand_in=False, probed_gain=measured)
    return Precisions("fp64", "fp32_of_fp64", stand_in=True, probed_gain=measured)


def gain(
    full: Callable[[int], object], amp: Callable[[int], object], rounds: int = 4, steps: int = 8
) -> float:
    """Median time of a full step over that of an amp step.

    The two take turns of `steps` steps, so that drift affects both; the first step of a turn does
    not count.
    """
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for step, times in zip((full, amp), seconds, strict=True):
            for number in range(steps):
                start = time.monotonic()
                step(number)
                if number > 0:
                    times.append(time.monotonic() - start)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])
