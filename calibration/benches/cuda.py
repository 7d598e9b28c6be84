"""One NVIDIA GPU: events in its stream, its memory and clocks, how busy its kernels keep it."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from simstrag.processes.affinity import cores

if TYPE_CHECKING:
    from simstrag.workloads import TrainingTask

__all__ = ["Cuda", "covered", "timed"]


class Cuda:
    """One GPU, and the process that launches its kernels kept on one core.

    One core suffices for launching (the thread that runs backward works while the other waits),
    and it makes a step beside load on that core comparable to one without.
    """

    def __init__(self, name: str, core: int) -> None:
        self.name, self.core, self.beside = name, core, "host"

    def thread(self) -> float:
        """The wall clock: a step's difference is the time until the launching thread comes back."""
        return time.perf_counter()

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.name))
        return event

    def seconds(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1e3

    def finish(self) -> None:
        import torch

        torch.cuda.synchronize(self.name)

    def state(self) -> dict[str, float]:
        """From nvidia-smi, asked by the device's UUID; {} where it does not answer."""
        import torch

        asked = {
            "clock": "clocks.sm",
            "memory_clock": "clocks.mem",
            "temperature": "temperature.gpu",
            "power": "power.draw",
        }
        try:
            uuid = torch.cuda.get_device_properties(self.name).uuid
            answer = subprocess.run(
                ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(asked.values())}",
                 "--format=csv,noheader,nounits"],
                capture_output=True, text=True, timeout=10, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError, AttributeError):
            return {}
        found = {}
        for name, text in zip(asked, answer.stdout.strip().split(","), strict=False):
            with contextlib.suppress(ValueError):  # "[N/A]"
                found[name] = float(text)
        return found

    def anatomy(self, job: TrainingTask, batch: Any, steps: int) -> dict[str, float]:
        """`gpu_busy` (where the profiler sees kernels), `host_alone` and `peak_bytes` of a step.

        gpu_busy: seconds in which some kernel or copy ran (profiler, median); kernels that overlap
        count once.  host_alone: seconds until the launching thread comes back from a step that it
        begins with nothing queued: what launching costs by itself.  A step takes about the longer
        of the two; what the GPU idles, 1 - gpu_busy / step, is the part that neither reduced
        precision shortens nor contention of the GPU stretches.

        peak_bytes: most that torch's allocator held at a time, parameters and other jobs included.
        """
        import torch
        from torch.profiler import ProfilerActivity, profile

        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else two lines on stderr per profile
        torch.cuda.reset_peak_memory_stats(self.name)
        alone, seen = [], []
        for _ in range(steps):
            self.finish()
            alone.append(timed(lambda: job.gradient(batch)))
            job.update()
        self.finish()
        peak = torch.cuda.max_memory_allocated(self.name)
        for _ in range(steps):
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                job.gradient(batch)
                self.finish()
            job.update()
            self.finish()
            seen.append(_kernels(profiled))
        return {**_busy(seen), "host_alone": statistics.median(alone), "peak_bytes": peak}

    def release(self) -> None:
        import torch

        torch.cuda.empty_cache()

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        import torch

        allowed = set(cores())
        _pin_threads({self.core})
        try:
            with torch.cuda.device(self.name):
                yield
        finally:
            _pin_threads(allowed)


def _kernels(seen: Any) -> list[tuple[float, float]]:
    """Start and end in seconds of all that ran on the GPU while it was profiled."""
    return [
        (e.time_range.start / 1e6, e.time_range.end / 1e6)
        for e in seen.events()
        if str(e.device_type).endswith("CUDA")
    ]


def _busy(seen: Iterable[Sequence[tuple[float, float]]]) -> dict[str, float]:
    """`gpu_busy` of some profiles; none where one is empty: without CUPTI no kernel is seen."""
    busy = [covered(spans) for spans in seen]
    return {"gpu_busy": statistics.median(busy)} if all(busy) else {}


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _pin_threads(allowed: set[int]) -> None:
    """Every thread of this process: the one that runs backward was started long before."""
    if hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread), allowed)


def timed(step: Callable[[], object]) -> float:
    """Seconds until a call comes back."""
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun
