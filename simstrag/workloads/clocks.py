"""Clocks of a rank: of its host, and of its GPU.

A mark is a point in the rank's own order of work.  On a host it is a reading of the clock; on a GPU
it is an event in the stream, read once the GPU has got there, so that timing delays no step.

On a CPU gloo's threads send gradients.  Where they share the rank's core, backward is slower the
*faster* the other ranks are: healthy ranks would seem a fifth faster when one is slow.  So the CPU
time of the process's other threads is no time of the rank's there.  That is exact while the rank
computes or waits for its core.  While the rank sleeps too much is left out, at most gloo's CPU time
of one step.  With spare cores the wall clock is right.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Clock(Protocol):
    """Makes marks, and gives the seconds between two of them.

    reason: why this clock is the right one.
    immediate: whether every mark is past when it is made.
    """

    reason: str
    immediate: bool

    def mark(self) -> Any: ...

    def is_past(self, mark: Any) -> bool: ...

    def seconds(self, begin: Any, end: Any) -> float: ...

    def taken(self, begin: Any, end: Any) -> float: ...


class HostClock:
    """Marks on the host, made in the thread that computes.

    corrected: whether a mark has the CPU seconds of the other threads of the process.

    >>> clock = HostClock("")
    >>> begin = clock.mark()
    >>> 0 <= clock.seconds(begin, clock.mark()) < 1
    True
    """

    immediate = True

    def __init__(self, reason: str, corrected: bool = False) -> None:
        self.reason, self.corrected = reason, corrected

    def mark(self) -> tuple[float, float]:
        """Now, and the CPU seconds that other threads have taken until now."""
        others = time.process_time() - time.thread_time() if self.corrected else 0.0
        return time.perf_counter(), others

    def is_past(self, mark: tuple[float, float]) -> bool:
        """Always true: the host was there when it made the mark."""
        return True

    def seconds(self, begin: tuple[float, float], end: tuple[float, float]) -> float:
        """Seconds of the wall clock."""
        return end[0] - begin[0]

    def taken(self, begin: tuple[float, float], end: tuple[float, float]) -> float:
        """CPU seconds that other threads took of the core; 0 where that is not corrected."""
        return end[1] - begin[1]


class CudaClock:
    """Marks as events in the current stream, or in one stream; the host runs ahead of them."""

    immediate = False
    reason = "events on the device's compute stream"

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self._stream = stream

    def mark(self) -> torch.cuda.Event:
        """The point that the stream has reached in its queue."""
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def is_past(self, mark: torch.cuda.Event) -> bool:
        """Whether the device has got there."""
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds on the device; waits until it has got to the end."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def taken(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Zero: no thread computes on the device."""
        return 0.0
