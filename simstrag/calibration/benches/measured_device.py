"""The device that computes steps: a CPU core or an NVIDIA GPU.

`Cpu` and `Cuda` have the same methods, those of the clocks of `simstrag.workloads` among them.

name: torch's, such as "cpu" or "cuda:0".
core: core of the thread that computes or launches.
thread_series: name of the series of `thread`: "cpu" or "host".
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.energy_counters import Nvml, Rapl
from simstrag.calibration.benches.machine_state import query_gpu
from simstrag.calibration.cells import VisitSeries
from simstrag.errors import InputError
from simstrag.processes.affinity import cores, keep_memory, pin
from simstrag.workloads import map_tensors
from simstrag.workloads.clocks import CudaClock, HostClock

if TYPE_CHECKING:
    import torch

    from simstrag.workloads import TrainingTask

SMI_FIELDS = {
    "clock": "clocks.sm",
    "memory_clock": "clocks.mem",
    "temperature": "temperature.gpu",
    "power": "power.draw",
}
"""Names in the samples for the fields of nvidia-smi."""


def find_device(name: str = "", core: int | None = None) -> Device:
    """The device of a name; by default the first GPU, else the CPU.

    core: core of the thread that computes or launches; by default the last one, because the first
        cores serve most interrupts.

    Raises `InputError` for a GPU that is not here.

    >>> find_device("cpu").name
    'cpu'
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    chosen = name or ("cuda:0" if gpus else "cpu")
    core = cores()[-1] if core is None else core
    if chosen == "cpu":
        return Cpu(core)
    known = ["cpu", *(f"cuda:{k}" for k in range(gpus))]
    chosen = "cuda:0" if chosen == "cuda" else chosen
    if chosen not in known:
        raise InputError(f"there is no device '{name}' here; torch sees {', '.join(known)}")
    return Cuda(chosen, core)


class Cpu(HostClock):
    """One core with one thread, as a worker of a trace is one core.

    Contention then is the use of that core by others.  A second thread on another, half-busy core
    would blur it, and threads that split a step share caches and clocks in ways that differ by
    machine.
    """

    def __init__(self, core: int) -> None:
        super().__init__("one thread has the core")
        self.name, self.core, self.thread_series = "cpu", core, "cpu"

    def thread(self) -> float:
        """CPU time of the thread; others used the rest of a step's wall clock."""
        return time.thread_time()

    def finish(self) -> None:
        """Return at once: on a CPU all launched work is done."""

    def state(self) -> dict[str, float]:
        """Clocks (MHz), temperature (C), power (W), as far as they can be read."""
        path = Path(f"/sys/devices/system/cpu/cpu{self.core}/cpufreq/scaling_cur_freq")
        try:
            return {"clock": int(path.read_text()) / 1e3}
        except (OSError, ValueError):
            return {}

    def energy_counter(self) -> Rapl:
        """Of all processor packages.  Raises `InputError` where there is none."""
        return Rapl()

    def describe_step(self, job: TrainingTask, batch: Any, steps: int) -> dict[str, float]:
        """The parts of a step and its memory; torch's own profiler attaches nothing for good.

        host_share: median part of a profiled step outside torch's operators: Python, the autograd
            engine, and time between operators.  An upper bound, because it includes the profiler's
            own time; dispatching an operator counts as the operator's.
        profiled_stretch: median profiled over median plain step; the share is rough if this is
            not near 1.
        peak_bytes: most that torch's allocator held at a time: parameters, buffers, the optimizer's
            state, the batch, and one profiled step; without the work space of libraries.
        """
        from torch.autograd.profiler import profile

        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else two lines on stderr per profile
        plain, profiled, inside, growth = [], [], [], []
        for number in range(steps):
            plain.append(time_call(lambda: job.gradient(batch)))
            job.update()
            with profile(use_kineto=False, profile_memory=number == 0) as result:
                profiled.append(time_call(lambda: job.gradient(batch)))
            job.update()
            events = result.key_averages()
            inside.append(sum(e.self_cpu_time_total for e in events if e.key.startswith("aten::")))
            growth.append(_memory_growth(result))
        outside = [1 - i / 1e6 / p for i, p in zip(inside, profiled, strict=True)]
        return {
            "host_share": max(0.0, statistics.median(outside)),
            "profiled_stretch": statistics.median(profiled) / statistics.median(plain),
            "peak_bytes": growth[0] + _bytes_before_step(job, batch),
        }

    def launches(self, job: TrainingTask, batch: Any, steps: int) -> VisitSeries:
        """None: on a CPU computing follows launching."""
        return {}

    def kernels(self, job: TrainingTask, batch: Any, steps: int) -> VisitSeries:
        """None: a CPU has no kernels."""
        return {}

    def release(self) -> None:
        """Do nothing: torch caches no memory of a CPU."""

    @contextlib.contextmanager
    def on_core(self) -> Iterator[None]:
        """The context in which steps run: pinned, with the right number of threads."""
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


class Cuda(CudaClock):
    """One GPU, with the process that launches its kernels on one core.

    One core suffices for launching (the thread that runs backward works while the other waits), and
    it makes a step beside load on that core comparable to one without.
    """

    def __init__(self, name: str, core: int) -> None:
        super().__init__()
        self.name, self.core, self.thread_series = name, core, "host"

    def thread(self) -> float:
        """Wall clock: a step's difference is the time until the launching thread comes back."""
        return time.perf_counter()

    def finish(self) -> None:
        import torch

        torch.cuda.synchronize(self.name)

    def state(self) -> dict[str, float]:
        """From nvidia-smi by the device's UUID; {} where it does not answer."""
        import torch

        try:
            uuid = torch.cuda.get_device_properties(self.name).uuid
            answers = query_gpu(SMI_FIELDS.values(), f"--id=GPU-{uuid}")
        except (OSError, subprocess.SubprocessError, AttributeError):
            return {}
        state = {}
        for name, text in zip(SMI_FIELDS, answers, strict=False):
            with contextlib.suppress(ValueError):  # "[N/A]"
                state[name] = float(text)
        return state

    def energy_counter(self) -> Nvml:
        import torch

        return Nvml(str(torch.cuda.get_device_properties(self.name).uuid))

    def describe_step(self, job: TrainingTask, batch: Any, steps: int) -> dict[str, float]:
        """The memory of a step.

        peak_bytes: most that torch's allocator held at a time, parameters and other jobs included.
        """
        import torch

        torch.cuda.reset_peak_memory_stats(self.name)
        for _ in range(steps):
            job.gradient(batch)
            job.update()
        self.finish()
        return {"peak_bytes": torch.cuda.max_memory_allocated(self.name)}

    def launches(self, job: TrainingTask, batch: Any, steps: int) -> VisitSeries:
        """`launch`: seconds until the launching thread comes back, from an empty queue."""
        alone = []
        for _ in range(steps):
            self.finish()
            alone.append(round(time_call(lambda: job.gradient(batch)), 7))
            job.update()
        self.finish()
        return {"launch": tuple(alone)}

    def kernels(self, job: TrainingTask, batch: Any, steps: int) -> VisitSeries:
        """`kernel`: seconds of a step in which some kernel or copy ran; {} if none are seen.

        Afterwards launching takes up to twice as long for the rest of the process: the profiler's
        callbacks (CUPTI) stay (pytorch issue 144455).  So nothing may be timed in it any more.
        """
        from torch.profiler import ProfilerActivity, profile

        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else two lines on stderr per profile
        profiles = []
        for _ in range(steps):
            with profile(activities=[ProfilerActivity.CUDA]) as result:
                job.gradient(batch)
                self.finish()
            job.update()
            self.finish()
            profiles.append([
                (e.time_range.start / 1e6, e.time_range.end / 1e6)
                for e in result.events()
                if str(e.device_type).endswith("CUDA")
                and not getattr(e, "is_user_annotation", False)
            ])  # fmt: skip
        return busy(profiles)

    def release(self) -> None:
        import torch

        torch.cuda.empty_cache()

    @contextlib.contextmanager
    def on_core(self) -> Iterator[None]:
        import torch

        allowed = set(cores())
        _pin_threads({self.core})
        try:
            with torch.cuda.device(self.name):
                yield
        finally:
            _pin_threads(allowed)


Device = Cpu | Cuda


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception reports too little memory, on a CPU or on a GPU.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    """
    import torch

    signs = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    )


def time_call(step: Callable[[], object]) -> float:
    """Seconds until a call returns."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


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


def busy(profiles: Iterable[Sequence[tuple[float, float]]]) -> VisitSeries:
    """`kernel` of some profiles; {} if one is empty, as without CUPTI.

    >>> busy([[(0.0, 2.0), (1.0, 3.0)], [(5.0, 6.0)]]), busy([[], []])
    ({'kernel': (3.0, 1.0)}, {})
    """
    seconds = tuple(round(covered(spans), 7) for spans in profiles)
    return {"kernel": seconds} if all(seconds) else {}


def _pin_threads(allowed: set[int]) -> None:
    """Pin every thread of this process: the thread of backward has started long before."""
    if hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.sched_setaffinity(int(thread), allowed)


def _memory_growth(profile: Any) -> int:
    """Largest number of bytes by which torch's allocator grew in a profile."""
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    changes = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(accumulate(changes), default=0)


def _bytes_before_step(job: TrainingTask, batch: Any) -> int:
    """Bytes of parameters, buffers, the optimizer's state and the batch."""
    sizes = {t.data_ptr(): t.nbytes for t in (*job.model.parameters(), *job.model.buffers())}

    def add(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    map_tensors((list(job.optimizer.state.values()), batch), add)
    return sum(sizes.values())
