"""The device that computes steps: its clock, its memory, its state, and where its thread runs.

A mark is a point in the device's own order of work.  On a CPU that is a reading of the clock; on a
GPU it is an event put into the stream among the kernels, read only after all is done, so that no
step waits for being timed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from simstrag.calibration.benches.cuda import Cuda, timed
from simstrag.errors import InputError
from simstrag.processes.affinity import cores, keep_memory, pin
from simstrag.workloads import map_tensors

if TYPE_CHECKING:
    import torch

    from simstrag.workloads import TrainingTask

__all__ = ["Cpu", "Device", "device", "no_memory"]

Mark = Any


class Device(Protocol):
    """What timing needs of a device.

    name: torch's, such as "cpu" or "cuda:0".  core: where the thread that computes or launches is.
    beside: what `thread` tells of a step beside its seconds, "cpu" or "host".
    """

    name: str
    core: int
    beside: str

    def thread(self) -> float:
        """A clock of the thread that computes or launches, in seconds."""
        ...

    def mark(self) -> Mark:
        """A point in the order of what was launched on this device."""
        ...

    def seconds(self, first: Mark, second: Mark) -> float:
        """Between two marks, once `finish` has come back."""
        ...

    def finish(self) -> None:
        """Wait until all that was launched is done."""
        ...

    def state(self) -> dict[str, float]:
        """Clocks (MHz), temperature (C), power (W), as far as they can be read."""
        ...

    def anatomy(self, job: TrainingTask, batch: Any, steps: int) -> dict[str, float]:
        """What a few steps are made of, under the profiler and untimed; see the class."""
        ...

    def release(self) -> None:
        """Give back memory that is held for later."""
        ...

    def placed(self) -> contextlib.AbstractContextManager[None]:
        """Steps run inside of it: pinned, with so many threads as is right."""
        ...


def device(name: str = "", core: int | None = None) -> Device:
    """The device of that name; by default the first GPU, else the CPU.

    core: where the thread that computes or launches steps is kept; by default the last one, since
    the first ones serve most interrupts.  Raises `InputError` for a GPU that is not here.

    >>> device("cpu").name
    'cpu'
    """
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    chosen = name or ("cuda:0" if found else "cpu")
    core = cores()[-1] if core is None else core
    if chosen == "cpu":
        return Cpu(core)
    known = ["cpu", *(f"cuda:{k}" for k in range(found))]
    chosen = "cuda:0" if chosen == "cuda" else chosen
    if chosen not in known:
        raise InputError(f"there is no device '{name}' here; torch sees {', '.join(known)}")
    return Cuda(chosen, core)


class Cpu:
    """One core with one thread.

    A step is timed on one core because a worker of a trace is one: contention then is what others
    take of that core, and a thread that waits for a second thread on another, half-busy core would
    blur it.  Threads that split a step also share caches and clocks in ways that differ by machine.
    """

    def __init__(self, core: int) -> None:
        self.name, self.core, self.beside = "cpu", core, "cpu"

    def thread(self) -> float:
        """Its CPU time: a step's wall clock beyond it was taken by others."""
        return time.thread_time()

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, second: float) -> float:
        return second - first

    def finish(self) -> None:
        """Nothing is left to wait for."""

    def state(self) -> dict[str, float]:
        path = Path(f"/sys/devices/system/cpu/cpu{self.core}/cpufreq/scaling_cur_freq")
        try:
            return {"clock": int(path.read_text()) / 1e3}
        except (OSError, ValueError):
            return {}

    def anatomy(self, job: TrainingTask, batch: Any, steps: int) -> dict[str, float]:
        """`host_share`, `profiled_stretch` and `peak_bytes` of a step.

        host_share: the part of a profiled step outside of torch's operators, median: Python, the
        autograd engine's own work, and what lies between operators.  The profiler's own seconds
        fall there too, and stretch the step by `profiled_stretch` (profiled over plain, medians),
        so that the share is an upper bound, and rough where that is not near 1.  What operators
        spend on being dispatched counts as theirs.

        peak_bytes: most that torch's allocator held at a time: parameters, buffers, the
        optimizer's state, the batch, and what one profiled step added.  Work space that libraries
        allocate by themselves is not in it.
        """
        from torch.autograd.profiler import profile

        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else two lines on stderr per profile
        plain, profiled, inside, grown = [], [], [], []
        for number in range(steps):
            plain.append(timed(lambda: job.gradient(batch)))
            job.update()
            with profile(use_kineto=False, profile_memory=number == 0) as seen:
                profiled.append(timed(lambda: job.gradient(batch)))
            job.update()
            events = seen.key_averages()
            inside.append(sum(e.self_cpu_time_total for e in events if e.key.startswith("aten::")))
            grown.append(_growth(seen))
        outside = [1 - i / 1e6 / p for i, p in zip(inside, profiled, strict=True)]
        return {
            "host_share": max(0.0, statistics.median(outside)),
            "profiled_stretch": statistics.median(profiled) / statistics.median(plain),
            "peak_bytes": grown[0] + _held(job, batch),
        }

    def release(self) -> None:
        """Nothing is held: torch keeps no cache of a CPU's memory."""

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        import torch

        allowed, threads = set(cores()), torch.get_num_threads()
        pin(self.core)
        keep_memory()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            pin(allowed)


def no_memory(error: BaseException) -> bool:
    """Whether an exception says that memory did not suffice, on a CPU or on a GPU.

    >>> no_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    """
    import torch

    signs = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    )


def _growth(seen: Any) -> int:
    """Bytes by which torch's allocator was at most above where it was when profiling began."""
    events = [e for e in seen.kineto_results.events() if e.name() == "[memory]"]
    changes = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(accumulate(changes), default=0)


def _held(job: TrainingTask, batch: Any) -> int:
    """Bytes of what is there before a step: parameters, buffers, optimizer's state, batch."""
    found = {t.data_ptr(): t.nbytes for t in (*job.model.parameters(), *job.model.buffers())}

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.data_ptr()] = tensor.nbytes
        return tensor

    map_tensors((list(job.optimizer.state.values()), batch), seen)
    return sum(found.values())
