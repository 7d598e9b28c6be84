"""All that a timeline could show of a run, in order of time, and which part of it fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.analysis.derived.decisions import suspicions
from simstrag.analysis.derived.phases import KINDS, Phases
from simstrag.analysis.derived.windows import segments
from simstrag.errors import InputError
from simstrag.runs.run import Run
from simstrag.timing.timing import Timing

__all__ = [
    "DECISION", "JOB", "SUSPICION", "UPDATE", "Moments", "Slowdown", "micro", "moments_of",
    "slowdowns", "span",
]  # fmt: skip

Ints = npt.NDArray[np.int64]

JOB, SUSPICION, UPDATE, DECISION, CHANGE = range(len(KINDS), len(KINDS) + 5)
"""Kinds beside the phases of steps: jobs of the server, suspicions of the policy, updates, plans
that decide something else, slowdowns that change."""
WAITING = [k for k, name in enumerate(KINDS) if name == "wait"]


class Moments(NamedTuple):
    """From and to in whole microseconds, what it is, and the row of the table it is from.

    Only updates, decisions and slowdowns take no time.
    """

    left: Ints
    right: Ints
    kind: Ints
    row: Ints

    def within(self, start: int, end: int) -> Moments:
        """What is there between two times, both included."""
        return self._chosen((self.left <= end) & (self.right >= start))

    def most_waited(self, room: int) -> tuple[int, int]:
        """The window with at most `room` beginnings in which ranks wait longest, the first of such.

        Waiting counts where it begins.  There must be more moments than `room`.
        """
        durations = np.where(np.isin(self.kind, WAITING), self.right - self.left, 0)
        waited = np.append(0, np.cumsum(durations))
        first = np.arange(len(self.left) - room)
        fresh = np.append(True, np.diff(self.left[first]) > 0)  # all that begins then is in
        sums = np.where(fresh, waited[first + room] - waited[first], -1)
        best = int(np.argmax(sums))
        start = int(self.left[best])
        return start, max(int(self.left[best + room]) - 1, start)

    def _chosen(self, rows: npt.NDArray[np.bool_] | Ints) -> Moments:
        return Moments(*(column[rows] for column in self))


class Slowdown(NamedTuple):
    """The factor by which a resource of a rank is slowed from a time in microseconds on."""

    rank: int
    resource: str
    time: int
    factor: float


def slowdowns(timing: Timing | None, start: int, end: int) -> Iterator[Slowdown]:
    """All of them between two times in microseconds: where that begins, and where one changes."""
    known = {} if timing is None else timing.contention.slowdowns
    for rank, resource in sorted(known):
        before = None
        pieces = segments(known[rank, resource], start / 1e6, end / 1e6)
        for low, _, factor in pieces:
            if factor != before:
                yield Slowdown(rank, resource, int(micro(low)), factor)
            before = factor


def moments_of(run: Run, phases: Phases, timing: Timing | None) -> Moments:
    """Everything, each slice of the length it has."""
    marks, times = micro(phases.marks), micro(run.updates["time"])
    n, parts = len(marks), len(KINDS)
    every = [
        Moments(
            marks[:, :-1].ravel(),
            marks[:, 1:].ravel(),
            np.tile(np.arange(parts), n),
            np.repeat(np.arange(n), parts),
        )
    ]
    if timing is not None:
        rows = np.flatnonzero(~np.isnan(phases.served))
        begun = phases.served[rows]
        ended = micro(begun + timing.server.job)
        every.append(Moments(micro(begun), ended, np.full(len(rows), JOB), rows))
    held = suspicions(run)
    ends = (micro([s.start for s in held]), micro([s.end for s in held]))
    every.append(Moments(*ends, np.full(len(held), SUSPICION), np.arange(len(held))))
    every = [slices._chosen(slices.right > slices.left) for slices in every]
    changes = np.array([s.time for s in slowdowns(timing, 0, int(times[-1]))], dtype=np.int64)
    decided = micro([] if run.decisions is None else run.decisions["time"])
    for kind, instants in ((UPDATE, times), (DECISION, decided), (CHANGE, changes)):
        row = np.arange(len(instants))
        every.append(Moments(instants, instants, np.full(len(instants), kind), row))
    joined = Moments(*(np.concatenate(columns) for columns in zip(*every, strict=True)))
    return joined._chosen(np.argsort(joined.left, kind="stable"))


def span(run: Run, window: tuple[float, float] | None) -> tuple[int, int]:
    """The part of a run that lies in a window of seconds, all without one, in microseconds.

    Raises `InputError` for a window that is empty or not in the run.
    """
    end = float(run.updates["time"][-1])
    low, high = (0.0, end) if window is None else window
    if window is not None and not low < high:
        raise InputError(f"the window {low:g} to {high:g} s must end after it begins")
    if high < 0 or low > end:
        raise InputError(f"the window {low:g} to {high:g} s is not in the run, 0 to {end:g} s")
    return int(micro(max(low, 0.0))), int(micro(min(high, end)))


def micro(seconds: npt.ArrayLike) -> Ints:
    """Seconds in whole microseconds.

    >>> micro([0.1, 2.5e-6, 1.0]).tolist()
    [100000, 2, 1000000]
    """
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e6).astype(np.int64)
