"""The close look: the part of a run that its timeline shows first, where contention sets in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simstrag.analysis.derived.example_runs import Example
from simstrag.analysis.derived.phase_intervals import (
    SlowdownChange,
    segments,
    slowdown_changes,
)
from simstrag.analysis.derived.steps import RunSteps
from simstrag.arrays import Floats
from simstrag.timing.contention import Contention
from simstrag.trace.slowdown import Piecewise

CYCLES, BEFORE = 24, 6
"""Steps that a close look shows, and steps before the change that it shows."""
MOST_RANKS = 16
MOST_CHANGES = 100_000


class Kept(NamedTuple):
    """The steps that an excerpt kept: the first `window` of each `period` (s), of some ranks.

    margin: seconds at the ends of a window in which some steps are incomplete.
    """

    period: float = math.inf
    window: float = math.inf
    ranks: frozenset[int] | None = None
    margin: float = 0.0

    def around(self, time: float) -> tuple[float, float]:
        """Begin and end of the complete steps in the last window that begins before a time."""
        base = time - math.fmod(time, self.period)
        return base + (self.margin if base else 0.0), base + self.window - self.margin

    def has(self, rank: int) -> bool:
        """Whether the steps of a rank were kept."""
        return self.ranks is None or rank in self.ranks


ALL = Kept()


class CloseLook(NamedTuple):
    """A stretch of time in seconds, the ranks to show, and the reason for the choice."""

    start: float
    end: float
    ranks: tuple[int, ...]
    why: str


def close_look(examples: Sequence[Example]) -> CloseLook:
    """The stretch that the timelines show: where the contention of one of the runs sets in."""
    contended = [e for e in examples if e.timing is not None and e.timing.contention.slowdowns]
    replayed = [e for e in examples if e.timing is not None and e.timing.contention.durations]
    shortest = min(e.end for e in examples)
    chosen = (contended or replayed or list(examples))[0]
    contention = Contention() if chosen.timing is None else chosen.timing.contention
    cycle = cycle_of([chosen.steps])
    if not cycle > 0:  # no rank started a second step: the whole run is a close look
        cycle = shortest
    look = choose(contention, chosen.workers, cycle, shortest, kept_of(examples, cycle))
    if chosen.run.recorded is None:
        return look
    # contention of a real run is unknown: an equal length around its longest wait is shown
    length, first = look.end - look.start, float(chosen.steps.start.min())
    middle = float(chosen.steps.finish[np.argmax(chosen.steps.wait)])
    start = max(first, min(middle - length / 2, chosen.end - length))
    return CloseLook(start, start + length, look.ranks, "a rank waited longest there")


def choose(
    contention: Contention, workers: int, cycle: float, until: float, kept: Kept = ALL
) -> CloseLook:
    """A stretch of `CYCLES` cycles where contention sets in.

    cycle: seconds between two steps of a rank.
    until: the end of the shortest run, so that every policy has steps to show.
    """
    length = min(CYCLES * cycle, until, kept.window - 2 * kept.margin)

    def is_kept(time: float) -> bool:
        """Whether steps were kept at a time, and for `length` around it."""
        low, high = kept.around(time)
        return low <= time < high and low + length <= min(high, until)

    def is_well_inside(time: float) -> bool:
        """Whether steps were kept well before a time and after it."""
        low, high = kept.around(time)
        return low + BEFORE * cycle <= time <= min(high, until) - length / 2

    found = [c for c in changes(contention, until) if kept.has(c.rank)]
    if kept.period < math.inf:
        found = [c for c in found if is_kept(c.time)]
    if not found:
        during = "in the kept steps" if kept.period < math.inf else "during the runs"
        start, why = 0.0, f"no slowdown changes {during}, so these are the first steps"
        if contention.durations:
            why = "the trace gives recorded durations of steps, so these are the first ones"
    else:
        c = next((c for c in found if is_well_inside(c.time)), found[0])
        low, high = kept.around(c.time)
        start = min(max(c.time - BEFORE * cycle, low), min(high, until) - length)
        moved = f"goes from {c.before:.3g} to {c.after:.3g} at {c.time:.4g} s"
        why = f"the {c.resource} slowdown of rank {c.rank} {moved}"
    end = start + length
    changing = {c.rank for c in found if start <= c.time < end}
    ranks = sorted(filter(kept.has, range(workers)), key=lambda r: (r not in changing, r))
    return CloseLook(start, end, tuple(sorted(ranks[:MOST_RANKS])), why)


def changes(contention: Contention, until: float) -> list[SlowdownChange]:
    """Changes of slowdown in 0 <= time < `until`, the largest increase first."""
    found = itertools.islice(slowdown_changes(contention, 0.0, until, 1.0), MOST_CHANGES)
    return sorted(found, key=lambda c: (-c.after / c.before, c.time, c.rank))


def bin_means(f: Piecewise, edges: Floats) -> Floats:
    """The mean of a step function in each bin.

    >>> bin_means(Piecewise((0.0, 2.0), (1.0, 3.0)), np.array([0.0, 1.0, 4.0])).round(3).tolist()
    [1.0, 2.333]
    """
    parts = list(segments(f, float(edges[0]), float(edges[-1])))
    times = np.array([parts[0][0], *(high for _, high, _ in parts)])
    area = np.cumsum([0.0, *((high - low) * value for low, high, value in parts)])
    return np.asarray(np.diff(np.interp(edges, times, area)) / np.diff(edges))


def cycle_of(steps: Sequence[RunSteps]) -> float:
    """The median time between two starts of a rank, over runs; NaN where no rank has two."""
    gaps = [np.diff(s.start)[s.rank[1:] == s.rank[:-1]] for s in steps]
    every = np.concatenate([*gaps, np.zeros(0)])
    return float(np.median(every)) if every.size else math.nan


def kept_of(examples: Sequence[Example], cycle: float) -> Kept:
    """The steps that all of the runs kept. cycle: seconds between two steps of a rank."""
    excerpts = [e.run.excerpt for e in examples if e.run.excerpt is not None]
    if not excerpts:
        return ALL
    ranks = frozenset.intersection(*(frozenset(x["ranks"]) for x in excerpts))
    period = max((x["period"] for x in excerpts if x["period"] is not None), default=math.inf)
    window = min((x["window"] for x in excerpts if x["window"] is not None), default=math.inf)
    return Kept(period, window, ranks, min(2 * cycle, window / 8))
