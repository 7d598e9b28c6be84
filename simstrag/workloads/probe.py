"""Which two number formats stand for full and reduced precision on a device: measured, not asked.

CPU flags are no answer: without AMX or AVX512-BF16 bf16 runs, three times slower than fp32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simstrag.workloads.workload import Workload

__all__ = ["BF16", "MIN_GAIN", "STAND_IN", "Precisions", "choose", "gain"]

MIN_GAIN = 1.15
"""bf16 counts as a reduced precision on a CPU only where it is measured faster by more."""

BF16 = ("fp32", "bf16 autocast")
STAND_IN = ("fp64", "fp32 compute on fp64 parameters (stand-in)")


@dataclass(frozen=True, slots=True)
class Precisions:
    """Which number formats "full" and "amp" stand for, and the gain probed beforehand.

    probed_gain: of bf16 over fp32 on a CPU; NaN on a GPU, where nothing was probed.
    """

    full: str
    amp: str
    stand_in: bool
    probed_gain: float


def choose(workload: Workload, device: str = "cpu", steps: int = 6) -> Precisions:
    """The nominal pair of a workload on a device, as names of `PRECISIONS`.

    On a GPU the best that its generation has: TF32 and bf16, before 2020 fp32 and fp16.  On a CPU
    fp32 and bf16 where the gain at the nominal batch exceeds `MIN_GAIN`, else the stand-in.
    """
    from simstrag.workloads.job import Job
    from simstrag.workloads.precision import precisions

    if device != "cpu":
        modern = "tf32" in precisions(device)
        full, amp = ("tf32", "bf16") if modern else ("fp32", "fp16")
        return Precisions(full, amp, stand_in=False, probed_gain=float("nan"))
    parts = workload.build()
    one, other = Job(parts, "fp32"), Job(parts, "bf16")
    batch = one.batch(workload.nominal)

    def step(job: Job) -> Callable[[int], None]:
        def once(_number: int) -> None:
            job.gradient(batch)
            job.optimizer.zero_grad(set_to_none=True)

        return once

    found = gain(step(one), step(other), rounds=4, steps=steps)
    if found > MIN_GAIN:
        return Precisions("fp32", "bf16", stand_in=False, probed_gain=found)
    return Precisions("fp64", "fp32_of_fp64", stand_in=True, probed_gain=found)


def gain(
    full: Callable[[int], object], amp: Callable[[int], object], rounds: int = 4, steps: int = 8
) -> float:
    """Median full step / median amp step, the two in turns of `steps` so that drift hits both.

    The first step of each turn is left out.
    """
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for take, kept in zip((full, amp), seconds, strict=True):
            for number in range(steps):
                begun = time.monotonic()
                take(number)
                if number > 0:
                    kept.append(time.monotonic() - begun)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])
