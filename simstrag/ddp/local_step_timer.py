"""The local time of a step: from the end of the last step to the rank's own last gradient.

Data loading counts, for it can make a straggler.  Waiting for others does not: the timer stops
before the first wait, and the reduction of earlier buckets delays nothing.

On a CPU gloo's threads send those buckets.  Where they share the rank's core, backward is slower
the *faster* the other ranks are: healthy ranks would seem a fifth faster when one is slow.  So the
CPU time of the process's other threads is subtracted there.  The correction is exact while the rank
computes or waits for its core.  While the rank sleeps it subtracts too much, at most gloo's CPU
time of one step.  With spare cores the wall clock is right.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch

from simstrag.ddp import plain_collectives
from simstrag.processes.affinity import cores


def cores_per_rank(own: Sequence[int], of_all: Sequence[Sequence[int]]) -> float:
    """Cores per rank: each core counts as one over the number of ranks that may use it.

    own: the cores of this rank.
    of_all: the cores of every rank on this host, this one included.

    >>> cores_per_rank([0], [[0], [1]]), cores_per_rank([0, 1], [[0, 1], [0, 1]])
    (1.0, 1.0)
    >>> cores_per_rank([0, 1, 2, 3], [[0, 1, 2, 3], [4, 5, 6, 7]])
    4.0
    """
    return float(sum(Fraction(1, sum(core in theirs for theirs in of_all)) for core in own))


def measure_cores_per_rank() -> float:
    """`cores_per_rank` on this host; collective."""
    own = (socket.gethostname(), cores())
    gathered = plain_collectives.gather(own)
    return cores_per_rank(own[1], [theirs for host, theirs in gathered if host == own[0]])


class CpuStepTimer:
    """Local times of a rank that computes on the CPU, in seconds of `time.monotonic`.

    cores: cores per rank, from `measure_cores_per_rank()`.
    corrected: whether the CPU time of other threads is subtracted; `reason` says why.  It wrongly
        includes data-loader threads: with one core per rank, load in the main thread or in worker
        processes.

    `begin` and `ended` are called in the thread that computes, in which DDP runs its hook.

    >>> clock = CpuStepTimer(cores=1.0)
    >>> clock.begin(); clock.ended()
    >>> 0 <= clock.seconds < 1
    True
    """

    immediate = True

    def __init__(self, cores: float) -> None:
        threads = torch.get_num_threads()
        self.corrected = cores <= 1 and threads == 1
        self.reason = f"{cores:.3g} core per rank: what gloo's threads take of it is subtracted"
        if cores > 1:
            self.reason = (
                f"{cores:.3g} cores per rank: gloo's threads have room, wall clock as it is"
            )
        elif threads > 1:
            self.reason = (
                f"{cores:.3g} core per rank, but {threads} threads of torch on it that cannot be "
                "separated from gloo's: wall-clock time is used; set torch.set_num_threads(1)"
            )
        self.start = self.seconds = math.nan
        self._others = self._waited = 0.0
        self.begin()

    def begin(self) -> None:
        """Start the time of the next step; called when a step returns."""
        self.start = time.monotonic()
        self._others, self._waited = _others(), 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave the time of this block out of the step: this rank waits for others."""
        begun, others = time.monotonic(), _others()
        try:
            yield
        finally:
            self._waited += time.monotonic() - begun
            self._others += _others() - others

    def ended(self) -> None:
        """Stop at the last gradient; `seconds` is the local time of the step."""
        wall = time.monotonic() - self.start - self._waited
        self.seconds = max(0.0, wall - (_others() - self._others)) if self.corrected else wall


def _others() -> float:
    """CPU seconds of all threads of this process but the calling one."""
    return time.process_time() - time.thread_time()


class CudaStepTimer:
    """Local times of a rank on a CUDA device, by events on its compute stream.

    The host runs ahead of the device, so `seconds` waits until the device has computed the last
    gradient, and not for the reductions after it.  `ended` may be called from autograd's thread.
    Written from the documentation of CUDA events; never run on a GPU.
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
        """The local time of the last step that ended."""
        self._marks[1].synchronize()
        return float(self._marks[0].elapsed_time(self._marks[1])) / 1e3

    def begin(self) -> None:
        """Start the next step once the device has finished earlier work."""
        self.start = time.monotonic()
        self._marks[0].record(self._stream)

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """What the host does meanwhile is no time of the device."""
        return contextlib.nullcontext()

    def ended(self) -> None:
        """Stop when the device has computed the last gradient."""
        self._marks[1].record(self._stream)
