"""The local time of a step: from the end of the last step to the rank's own last gradient.

Data loading counts, for it can make a straggler.  Waiting for others does not: the timer stops
before the first wait, and the reduction of earlier buckets delays nothing.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import torch

from simstrag.ddp import plain_collectives
from simstrag.processes.affinity import cores
from simstrag.workloads.clocks import Clock, CudaClock, HostClock


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


def shared_core_clock(cores: float) -> HostClock:
    """The clock of a rank that computes on the CPU while gloo's threads send.

    cores: cores per rank, from `measure_cores_per_rank()`.

    It wrongly takes data-loader threads for gloo's: with one core per rank, load in the main thread
    or in worker processes.
    """
    threads = torch.get_num_threads()
    reason = f"{cores:.3g} core per rank: what gloo's threads take of it is subtracted"
    if cores > 1:
        reason = f"{cores:.3g} cores per rank: gloo's threads have room, wall clock as it is"
    elif threads > 1:
        reason = (
            f"{cores:.3g} core per rank, but {threads} threads of torch on it that cannot be "
            "separated from gloo's: wall-clock time is used; set torch.set_num_threads(1)"
        )
    return HostClock(reason, corrected=cores <= 1 and threads == 1)


def device_clock(device: torch.device, cores: float) -> Clock:
    """The clock of a rank under DDP: events on its GPU's stream (untried), or its host's."""
    if device.type == "cuda":
        return CudaClock(torch.cuda.current_stream(device))
    return shared_core_clock(cores)


class StepTimer:
    """Local times of a rank's steps.

    start: when the step began, in seconds of `time.monotonic`.
    immediate: whether `seconds` are known when the last gradient is.

    `begin` and `ended` are called in the thread that computes, in which DDP runs its hook; on a GPU
    `ended` may be called from autograd's thread.

    >>> timer = StepTimer(shared_core_clock(cores=1.0))
    >>> timer.begin(); timer.ended()
    >>> 0 <= timer.seconds < 1
    True
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.reason, self.immediate = clock, clock.reason, clock.immediate
        self._spans: list[tuple[Any, Any]] = []  # of the last step that ended
        self.begin()

    def begin(self) -> None:
        """Start the time of the next step; called when a step returns."""
        self.start = time.monotonic()
        self._before: list[tuple[Any, Any]] = []
        self._begin = self.clock.mark()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave the time of this block out of the step: this rank waits for others.

        What the host does meanwhile is no time of a device.
        """
        if not self.clock.immediate:
            yield
            return
        self._before.append((self._begin, self.clock.mark()))
        try:
            yield
        finally:
            self._begin = self.clock.mark()

    def ended(self) -> None:
        """Stop at the last gradient."""
        self._spans = [*self._before, (self._begin, self.clock.mark())]

    @property
    def seconds(self) -> float:
        """The local time of the last step that ended; waits until a device has computed it."""
        whole = sum(self.clock.seconds(*span) for span in self._spans)
        return max(0.0, whole - sum(self.clock.taken(*span) for span in self._spans))
