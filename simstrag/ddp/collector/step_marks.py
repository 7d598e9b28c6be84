"""The marks of a step: when its forward began, and when the rank began and ceased to wait.

    end of the last step, forward, enter, leave, enter, leave, ..., end

A step ends when the rank leaves the last gradient collective, which all ranks leave together.  What
lies between `leave` and the next `enter` is the rank's own computing.  Where ranks wait in several
groups, a step ends at the optimizer's step, with the last wait before it.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from simstrag.workloads.clocks import Clock

MOST = 200_000
"""Marks of a step after which it is left out and no further ones are kept."""


class StepSeconds(NamedTuple):
    """Seconds of one step of a rank.

    step: its number.
    before: from the end of the last step to the forward: the optimizer, logs, the next batch.
    parts: of forward and backward up to each collective in which the rank waits, and in it.
    groups: labels of the groups of these collectives; empty where there is one group.
    """

    step: int
    before: float
    parts: tuple[tuple[float, float], ...]
    groups: tuple[str, ...] = ()

    @property
    def own(self) -> float:
        """Seconds that do not depend on other ranks."""
        return self.before + sum(computing for computing, _ in self.parts)


class StepMarks:
    """Collects the marks of one rank, and gives the seconds of a step when they are known.

    Marks cost little while a step runs; what is made of them waits for `known`.

    settling: first steps that are left out, 1 or more: nothing marks the beginning of the first,
        and DDP orders its buckets in the next.
    on_end: called at the end of a step, in its last backward, if the last call was `pause` seconds
        ago.
    """

    def __init__(self, clock: Clock, settling: int = 3, pause: float = 0.0) -> None:
        self._clock, self.mark, self._left_out = clock, clock.mark, settling
        self._marks: list[Any] = []  # end of the last step, enter, leave, enter, leave, ...
        self._groups: list[str] = []  # of these waits
        self._forward: Any = None
        self._ended: deque[tuple[int, Any, list[Any], list[str]]] = deque()
        self._depth = self._steps = 0
        self._is_training = self._is_evaluating = self._is_marked = False
        self.on_end: Callable[[], None] | None = None
        self._pause, self._due = pause, time.monotonic() + pause

    def forward(self) -> None:
        """The model's forward begins."""
        if self._depth > 0:  # an exception left it there
            self._depth = 1
            self.leave()
        self._depth = 0
        self._is_training, self._is_evaluating = True, False
        if self._forward is None and len(self._marks) < 2:  # later ones split no computing
            self._forward = self.mark()

    def forward_without_gradients(self) -> None:
        """The model's forward begins, in an evaluation if no training forward began before it.

        Waits of an evaluation are none of the next step, until that begins or gradients are on.
        """
        self._is_evaluating = not self._is_training

    @property
    def _counts(self) -> bool:
        """Whether a wait that begins is one of the step."""
        if self._is_evaluating and not torch.is_grad_enabled():
            return False
        return len(self._marks) < MOST

    @property
    def has_begun(self) -> bool:
        """Whether there was a forward or a wait since the last step ended."""
        return self._forward is not None or len(self._marks) > 1

    def enter(self, group: str = "") -> None:
        """The rank begins to wait in a group; a call within another wait counts for nothing."""
        if not self._depth and self._counts:
            self._is_marked = True
            self._marks.append(self.mark())
            self._groups.append(group)
        self._depth += 1

    def leave(self) -> None:
        """The rank ceases to wait."""
        self._depth -= 1
        if not self._depth and self._is_marked:
            self._is_marked = False
            self._marks.append(self.mark())

    def waited(self, begin: Any, end: Any, group: str = "") -> None:
        """The rank has waited in a group between two marks."""
        if not self._depth and self._counts:
            self._marks += (begin, end)
            self._groups.append(group)

    def end(self) -> None:
        """The backward has ended; the step ended when the rank ceased to wait."""
        if self._depth:
            self._depth = 1
            self.leave()
        is_full = len(self._marks) >= MOST
        if is_full or len(self._marks) < 2:  # waits are left out, or were none
            self._marks.append(self.mark())
        if self._steps >= self._left_out and not is_full:
            self._ended.append((self._steps, self._forward, self._marks, self._groups))
        self._marks, self._groups, self._forward = [self._marks[-1]], [], None
        self._is_training = self._is_evaluating = False
        self._steps += 1
        if self.on_end is not None and (now := time.monotonic()) >= self._due:
            self._due = now + self._pause
            self.on_end()

    def stop(self) -> None:
        """Keep no further step."""
        self._left_out, self.on_end = sys.maxsize, None

    def known(self) -> Iterator[StepSeconds]:
        """The seconds of each step that has come to its end, once."""
        while self._ended and self._clock.is_past(self._ended[0][2][-1]):
            yield self._seconds(*self._ended.popleft())

    def newest(self) -> StepSeconds | None:
        """The seconds of the newest step that has come to its end, if `known` has not given it."""
        past = (each for each in reversed(self._ended) if self._clock.is_past(each[2][-1]))
        newest = next(past, None)
        return None if newest is None else self._seconds(*newest)

    def _seconds(self, step: int, forward: Any, marks: list[Any], groups: list[str]) -> StepSeconds:
        whole, before = self._between(marks[0], marks[1] if forward is None else forward)
        computing, waiting = 0.0, whole - before  # waiting: what gloo's threads took of the core
        if forward is not None:
            whole, computing = self._between(forward, marks[1])
            waiting += whole - computing
        parts = []
        for place, (begin, end) in enumerate(itertools.pairwise(marks[1:])):
            whole, own = self._between(begin, end)
            if place % 2:
                computing, waiting = own, whole - own
            else:
                parts.append((computing, waiting + whole))
        labels = tuple(groups) if any(groups) else ()
        return StepSeconds(step, before, tuple(parts) or ((computing, waiting),), labels)

    def _between(self, begin: Any, end: Any) -> tuple[float, float]:
        """Seconds, and those less what other threads took of the core."""
        whole = self._clock.seconds(begin, end)
        return whole, max(0.0, whole - self._clock.taken(begin, end))
