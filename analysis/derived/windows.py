"""Which part of a run is worth a close look: where contention sets in, and what holds when."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simstrag.analysis.derived.waiting import Steps
from simstrag.timing.contention import Contention
from simstrag.trace.slowdown import Piecewise

__all__ = ["ALL", "Change", "Kept", "Window", "changes", "choose", "cycle_of", "segments"]

CYCLES, BEFORE = 24, 6
"""How many steps a window shows, and how many of them lie before the change it is about."""
MOST_RANKS = 16
MOST_CHANGES = 100_000


class Change(NamedTuple):
    """When the slowdown of one resource of one rank changes."""

    time: float
    rank: int
    resource: str
    before: float
    after: float


class Kept(NamedTuple):
    """What is there to look at: of each period (s) the first window (s), of some ranks or of all.

    margin: seconds at the ends of a window in which not all steps are whole.
    """

    period: float = math.inf
    window: float = math.inf
    ranks: frozenset[int] | None = None
    margin: float = 0.0

    def around(self, time: float) -> tuple[float, float]:
        """From when until when steps are there in the window that begins last before a time."""
        base = time - math.fmod(time, self.period)
        return base + (self.margin if base else 0.0), base + self.window - self.margin

    def has(self, rank: int) -> bool:
        """Whether steps of a rank are there."""
        return self.ranks is None or rank in self.ranks


ALL = Kept()


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time worth looking at, in seconds, the ranks to show, and why."""

    start: float
    end: float
    ranks: tuple[int, ...]
    why: str


def segments(f: Piecewise, start: float, end: float) -> Iterator[tuple[float, float, float]]:
    """(from, to, value) pieces of a step function between two times.

    >>> list(segments(Piecewise((0.0, 2.0), (1.0, 3.0)), 1.0, 4.0))
    [(1.0, 2.0, 1.0), (2.0, 4.0, 3.0)]
    """
    period = f.period
    cycle = math.floor(start / period) if period < math.inf else 0
    while True:
        base = cycle * period if cycle else 0.0
        ends = (*f.times[1:], period)
        for begin, stop, value in zip(f.times, ends, f.values, strict=True):
            low, high = max(base + begin, start), min(base + stop, end)
            if low < high:
                yield low, high, value
        cycle += 1
        if cycle * period >= end:
            return


def changes(contention: Contention, until: float) -> list[Change]:
    """All changes of slowdown in 0 <= time < `until`, the loudest onset first."""
    found: list[Change] = []
    for (rank, resource), f in contention.slowdowns.items():
        before = 1.0
        for begin, _, value in segments(f, 0.0, until):
            if value != before:
                found.append(Change(begin, rank, resource, before, value))
            before = value
            if len(found) > MOST_CHANGES:
                break
    return sorted(found, key=lambda c: (-c.after / c.before, c.time, c.rank))


def choose(
    contention: Contention, workers: int, cycle: float, until: float, kept: Kept = ALL
) -> Window:
    """A window of so many cycles (seconds between two steps) where contention sets in.

    until: the end of the shortest run, so that every policy has something to show.  kept: what of
    them is there to look at.
    """
    length = min(CYCLES * cycle, until, kept.window - 2 * kept.margin)
    found = [c for c in changes(contention, until) if kept.has(c.rank)]
    if kept.period < math.inf:
        found = [c for c in found if _fits(c.time, length, until, kept)]
    inside = [c for c in found if _well_inside(c.time, length, cycle, until, kept)]
    if not found:
        during = "in what was kept of the runs" if kept.period < math.inf else "during the runs"
        start, why = 0.0, f"no slowdown changes {during}, so these are their first steps"
        if contention.durations:
            why = "the trace gives recorded durations of steps, so these are the first ones"
    else:
        c = (inside or found)[0]
        low, high = kept.around(c.time)
        start = min(max(c.time - BEFORE * cycle, low), min(high, until) - length)
        moved = f"goes from {c.before:.3g} to {c.after:.3g} at {c.time:.4g} s"
        why = f"the {c.resource} slowdown of rank {c.rank} {moved}"
    end = start + length
    shown = {c.rank for c in found if start <= c.time < end}
    there = filter(kept.has, range(workers))
    ranks = sorted(there, key=lambda r: (r not in shown, r))[:MOST_RANKS]
    return Window(start, end, tuple(sorted(ranks)), why)


def _fits(time: float, length: float, until: float, kept: Kept) -> bool:
    """Whether there are steps at a time, and for so long around it."""
    low, high = kept.around(time)
    return low <= time < high and low + length <= min(high, until)


def _well_inside(time: float, length: float, cycle: float, until: float, kept: Kept) -> bool:
    """Whether there are steps well before a time and after it."""
    low, high = kept.around(time)
    return low + BEFORE * cycle <= time <= min(high, until) - length / 2


def cycle_of(steps: Sequence[Steps]) -> float:
    """The median time between two starts of a rank, over runs."""
    gaps = [np.diff(s.start)[s.rank[1:] == s.rank[:-1]] for s in steps]
    every = np.concatenate([*gaps, np.zeros(0)])
    return float(np.median(every)) if every.size else math.nan
