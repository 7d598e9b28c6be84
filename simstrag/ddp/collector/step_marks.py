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

from simstrag.ddp.local_step_timer import CpuStepTimer


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

    def whole(self, begin: Any, end: Any) -> float: ...

    def computing(self, begin: Any, end: Any) -> float: ...


class CpuClock:
    """Marks on the host, for collectives that block it, such as gloo's.

    cores: cores per rank.  With one or less, CPU time of gloo's threads is no computing of the
        rank's (see `CpuStepTimer`).
    """

    def __init__(self, cores: float) -> None:
        timer = CpuStepTimer(cores)
        self.corrected, self.reason = timer.corrected, timer.reason

    def mark(self) -> tuple[float, float]:
        """Now, and the CPU seconds that other threads have taken until now."""
        others = time.process_time() - time.thread_time() if self.corrected else 0.0
        return time.monotonic(), others

    def is_past(self, mark: tuple[float, float]) -> bool:
        """Always true: the host was there when it made the mark."""
        return True

    def whole(self, begin: tuple[float, float], end: tuple[float, float]) -> float:
        """Seconds of the wall clock."""
        return end[0] - begin[0]

    def computing(self, begin: tuple[float, float], end: tuple[float, float]) -> float:
        """Seconds of the wall clock, less what other threads took of the core."""
        return max(0.0, end[0] - begin[0] - (end[1] - begin[1]))


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

    def whole(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds on the device."""
        return float(begin.elapsed_time(end)) / 1e3

    computing = whole


class StepMarks:
    """Collects the marks of one rank, and gives the seconds of a step when they are known.

    settling: first steps that are left out, 1 or more: nothing marks the beginning of the first,
        and DDP orders its buckets in the next.
    on_end: called at the end of every step, in its last backward.
    """

    def __init__(self, clock: StepClock, settling: int = 3) -> None:
        self._clock, self._left_out = clock, settling
        self._marks: list[tuple[str, Any]] = []
        self._ended: deque[tuple[int, list[tuple[str, Any]]]] = deque()
        self._depth = self._steps = 0
        self._forward = False
        self.on_end: Callable[[], None] | None = None

    def forward(self) -> None:
        """The model's forward begins."""
        self._depth = 0  # an exception may have left it elsewhere
        if not self._forward:
            self._forward = True
            self._marks.append(("forward", self._clock.mark()))

    def enter(self) -> None:
        """The rank begins to wait; a call within another wait counts for nothing."""
        if not self._depth:
            self._marks.append(("enter", self._clock.mark()))
        self._depth += 1

    def leave(self) -> None:
        """The rank ceases to wait."""
        self._depth -= 1
        if not self._depth:
            self._marks.append(("leave", self._clock.mark()))

    def end(self) -> None:
        """The rank has left the last gradient collective."""
        mark = ("end", self._clock.mark())
        if self._steps >= self._left_out:
            self._ended.append((self._steps, [*self._marks, mark]))
        self._marks, self._forward = [mark], False
        self._steps += 1
        if self.on_end is not None:
            self.on_end()

    def known(self) -> Iterator[StepSeconds]:
        """The seconds of each step that has come to its end, once."""
        while self._ended and self._clock.is_past(self._ended[0][1][-1][1]):
            step, marks = self._ended.popleft()
            yield self._seconds(step, marks)

    def _seconds(self, step: int, marks: list[tuple[str, Any]]) -> StepSeconds:
        before = computing = waiting = 0.0
        begun = False
        parts = []
        for (kind, begin), (_, end) in itertools.pairwise(marks):
            whole = self._clock.whole(begin, end)
            own = 0.0 if kind == "enter" else self._clock.computing(begin, end)
            begun = begun or kind in ("forward", "enter")
            if not begun:
                before += own
            computing += own if begun else 0.0
            waiting += whole - own  # what gloo's threads took of the core, too
            if kind == "enter":
                parts.append((computing, waiting))
                computing = waiting = 0.0
        if parts:
            parts[-1] = parts[-1][0] + computing, parts[-1][1] + waiting
        return StepSeconds(step, before, tuple(parts))
