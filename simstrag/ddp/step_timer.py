"""The local time of a step: from the end of the last one to the last gradient of one's own.

Data loading counts, for it can be what makes a straggler.  Waiting for others does not: the clock
stops before the first wait, and earlier buckets, which are under way by then, hold up nothing.

On a CPU gloo's threads send those buckets.  Where they share the rank's core, backward is slower
the *quicker* the other ranks are, and all healthy ranks would seem to speed up by a fifth when one
is slow.  So the CPU time of this process's other threads is subtracted there: right while the rank
computes or is kept from it, and too much where it sleeps, for then they take nothing from it; at
most what gloo needed for one step is missing.  Where cores are to spare the wall clock is right.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Sequence
from fractions import Fraction

import torch
import torch.distributed as dist

__all__ = ["CpuStepTimer", "CudaStepTimer", "cores_per_rank", "measure_cores_per_rank"]


def cores_per_rank(own: Sequence[int], of_all: Sequence[Sequence[int]]) -> float:
    """Cores that a rank has to itself: each it may use, shared among all ranks that may use it.

    of_all: the cores of every rank on this host, this one's among them.

    >>> cores_per_rank([0], [[0], [1]]), cores_per_rank([0, 1], [[0, 1], [0, 1]])
    (1.0, 1.0)
    >>> cores_per_rank([0, 1, 2, 3], [[0, 1, 2, 3], [4, 5, 6, 7]])
    4.0
    """
    return float(sum(Fraction(1, sum(core in theirs for theirs in of_all)) for core in own))


def measure_cores_per_rank(group: dist.ProcessGroup | None = None) -> float:
    """`cores_per_rank` on this host as it is; every rank of the group calls this together."""
    own = (socket.gethostname(), _usable())
    told: list[tuple[str, tuple[int, ...]]] = [own] * dist.get_world_size(group)
    dist.all_gather_object(told, own, group=group)
    return cores_per_rank(own[1], [theirs for host, theirs in told if host == own[0]])


def _usable() -> tuple[int, ...]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


class CpuStepTimer:
    """Stamps of one rank that computes on the CPU.

    `begin` when a step returned, `ended` when the last gradient exists: both in the thread that
    computes, in which DDP also runs its hook.  Times are of `time.monotonic`, in seconds.

    cores: that the rank has to itself, such as `measure_cores_per_rank()` says.
    corrected: whether the CPU time of other threads is subtracted; `reason` says why.  Threads that
    feed batches count among them: on a single core, load data in the main thread or in processes.

    >>> clock = CpuStepTimer(cores=1.0)
    >>> clock.begin(); clock.ended()
    >>> 0 <= clock.seconds < 1
    True
    """

    immediate = True

    def __init__(self, cores: float) -> None:
        threads = torch.get_num_threads()
        self.corrected = cores <= 1 and threads == 1
        if self.corrected:
            self.reason = f"{cores:.3g} core per rank: what gloo's threads take of it is subtracted"
        elif cores > 1:
            self.reason = (
                f"{cores:.3g} cores per rank: gloo's threads have room, wall clock as it is"
            )
        else:
            self.reason = (
                f"{cores:.3g} core per rank, but {threads} threads of torch on it that cannot be "
                "told from gloo's: wall clock as it is; set torch.set_num_threads(1)"
            )
        self.start = self.seconds = math.nan
        self._others = 0.0
        self.begin()

    def begin(self) -> None:
        """A step has returned: the next one's time runs."""
        self.start = time.monotonic()
        self._others = _others()

    def ended(self) -> None:
        """The last gradient exists: `seconds` is the local time of this step."""
        wall = time.monotonic() - self.start
        self.seconds = max(0.0, wall - (_others() - self._others)) if self.corrected else wall


def _others() -> float:
    """CPU seconds of this process's threads but for the calling one."""
    return time.process_time() - time.thread_time()


class CudaStepTimer:
    """Stamps of one rank that computes on a CUDA device, by events on its compute stream.

    The host runs ahead of the device, so `seconds` waits until the device has come to the last
    gradient of this rank, and not for the reductions after it.  `ended` may be called from the
    thread in which autograd runs the hook.  Written by the documentation of CUDA's events; it has
    not run on a device yet.
    """

    immediate = False
    corrected = False
    reason = "events on the device's compute stream"

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._marks: list[torch.cuda.Event] = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        ]
        self.begin()

    @property
    def seconds(self) -> float:
        """The local time of the step whose end was stamped last."""
        self._marks[1].synchronize()
        return float(self._marks[0].elapsed_time(self._marks[1])) / 1e3

    def begin(self) -> None:
        """A step has returned: time runs once the device has done what was asked of it before."""
        self.start = time.monotonic()
        self._marks[0].record(self._stream)

    def ended(self) -> None:
        """What computes the last gradient has been asked for."""
        self._marks[1].record(self._stream)
