"""The marks of a step: when its forward began, and when the rank began and ceased to wait.

    end of the last step, forward, enter, leave, enter, leave, ..., end

A step ends when the rank leaves the last gradient collective, which all ranks leave together.  What
lies between `leave` and the next `enter` is the rank's own computing.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch


class StepSeconds(NamedTuple):
    """Seconds of one step of a rank.

    step: its number.
    before: from the end of the last step to the forward: the optimizer, logs, the next batch.
    parts: of forward and backward up to each collective in which the rank waits, and in it.
    """

    step: int
    before: float
    parts: tuple[tuple[float, float], ...]

    @property
    def own(self) -> float:
        """Seconds that do not depend on other ranks."""
        return self.before + sum(computing for computing, _ in self.parts)


class StepClock(Protocol):
    """Makes marks, and the seconds between two of them."""

    reason: str

    def mark(self) -> Any: ...

    def is_past(self, mark: Any) -> bool: ...

    def between(self, begin: Any, end: Any) -> tuple[float, float]: ...


class WallClock:
    """Marks on the host, for collectives that block it, such as gloo's."""

    mark = staticmethod(time.monotonic)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def is_past(self, mark: float) -> bool:
        """Always true: the host was there when it made the mark."""
        return True

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """Seconds of the wall clock, all of which are computing."""
        return end - begin, end - begin


class CpuClock:
    """Marks on the host where gloo's threads share the rank's core while it computes.

    The CPU time of these is no computing of the rank's (see `CpuStepTimer`).
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def mark(self) -> tuple[float, float]:
        """Now, and the CPU seconds that other threads have taken until now."""
        return time.monotonic(), time.process_time() - time.thread_time()

    def is_past(self, mark: tuple[float, float]) -> bool:
        """Always true: the host was there when it made the mark."""
        return True

    def between(self, begin: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
        """Seconds of the wall clock, and those less what other threads took of the core."""
        whole = end[0] - begin[0]
        return whole, max(0.0, whole - (end[1] - begin[1]))


class CudaClock:
    """Marks as events on the stream that computes; the host never waits for the device.

    Written from the documentation of CUDA events; never run on a GPU.
    """

    reason = "events on the device's compute stream"

    def mark(self) -> torch.cuda.Event:
        """The point that the current stream has reached in its queue."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def is_past(self, mark: torch.cuda.Event) -> bool:
        """Whether the device has got there."""
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> tuple[float, float]:
        """Seconds on the device, all of which are computing."""
        seconds = float(begin.elapsed_time(end)) / 1e3
        return seconds, seconds


class StepMarks:
    """Collects the marks of one rank, and gives the seconds of a step when they are known.

    Marks cost little while a step runs; what is made of them waits for `known`.

    settling: first steps that are left out, 1 or more: nothing marks the beginning of the first,
        and DDP orders its buckets in the next.
    on_end: called at the end of a step, in its last backward, if the last call was `pause` seconds
        ago.
    """

    def __init__(self, clock: StepClock, settling: int = 3, pause: float = 0.0) -> None:
        self._clock, self.mark, self._left_out = clock, clock.mark, settling
        self._marks: list[Any] = []
        self._forward, self._left = 0, -1  # places: the forward's mark, and after the last leave's
        self._ended: deque[tuple[int, int, list[Any]]] = deque()
        self._depth = self._steps = 0
        self.on_end: Callable[[], None] | None = None
        self._pause, self._due = pause, time.monotonic() + pause

    def forward(self) -> None:
        """The model's forward begins."""
        if self._depth > 0:  # an exception left it there
            self._depth = 1
            self.leave()
        self._depth = 0
        if not self._forward:
            self._forward = len(self._marks)
            self._marks.append(self.mark())

    def enter(self) -> None:
        """The rank begins to wait; a call within another wait counts for nothing."""
        if not self._depth:
            self._marks.append(self.mark())
        self._depth += 1

    def leave(self) -> None:
        """The rank ceases to wait."""
        self._depth -= 1
        if not self._depth:
            self._marks.append(self.mark())
            self._left = len(self._marks)

    def waited(self, begin: Any, end: Any) -> None:
        """The rank has waited between two marks."""
        if not self._depth:
            self._marks += (begin, end)
            self._left = len(self._marks)

    def end(self) -> None:
        """The backward has ended; the step ended when the rank ceased to wait."""
        if self._depth:
            self._depth = 1
            self.leave()
        if self._left != len(self._marks):  # the rank did not wait
            self._marks.append(self.mark())
        if self._steps >= self._left_out:
            self._ended.append((self._steps, self._forward, self._marks))
        self._marks, self._forward, self._left = [self._marks[-1]], 0, 0
        self._steps += 1
        if self.on_end is not None and (now := time.monotonic()) >= self._due:
            self._due = now + self._pause
            self.on_end()

    def known(self) -> Iterator[StepSeconds]:
        """The seconds of each step that has come to its end, once."""
        while self._ended and self._clock.is_past(self._ended[0][2][-1]):
            yield self._seconds(*self._ended.popleft())

    def _seconds(self, step: int, forward: int, marks: list[Any]) -> StepSeconds:
        before = computing = waiting = 0.0
        begun = waits = False
        parts = []
        for place, (begin, end) in enumerate(itertools.pairwise(marks)):
            whole, own = self._clock.between(begin, end)
            if place == forward:
                begun = begun or place > 0
            elif waits := place > 0 and not waits:
                parts.append((computing, waiting + whole))
                computing = waiting = 0.0
                begun = True
                continue
            waiting += whole - own  # what gloo's threads took of the core
            if begun:
                computing += own
            else:
                before += own
        return StepSeconds(step, before, tuple(parts) or ((computing, waiting),))
