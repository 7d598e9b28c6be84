"""How much of runs is drawn to be moved about in: of long ones what is around the close look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from bokeh.models import Range1d

from simstrag.analysis.charts import plots
from simstrag.analysis.derived.examples import Example, kept_of
from simstrag.analysis.derived.windows import Window, changes, cycle_of
from simstrag.analysis.text.number_format import number

__all__ = ["MOST", "Scope", "scope_of"]

Floats = npt.NDArray[np.float64]

MOST = 100_000
"""Steps, updates and changes of slowdown that all timelines of a page may draw."""


class Scope(NamedTuple):
    """What timelines that are looked at together have in common.

    shown: what is seen at first.  start, end: seconds of what is drawn.  until: the end of the
    longest run.  workers: ranks there are.  digits: decimals of a second that are kept.
    """

    shown: Window
    start: float
    end: float
    until: float
    workers: int
    digits: int

    @property
    def left_out(self) -> str:
        """What is not drawn of time, in words; empty where all is."""
        if self.start <= 0.0 and self.end >= self.until:
            return ""
        drawn = f"{number(self.start, 4)} to {number(self.end, 4)}"
        return f"Single steps are drawn from {drawn} s of {number(self.until, 4)} s."

    def axis(self) -> Range1d:
        """The common axis of time."""
        shown = self.shown
        drawn = self.start, self.end
        return Range1d(start=shown.start, end=shown.end, bounds=drawn, name=plots.SHARED)


def scope_of(examples: Sequence[Example], shown: Window, workers: int, most: int = MOST) -> Scope:
    """As much before and after the close look as `most` allows, all runs taken together."""
    until = max(e.end for e in examples)
    times: list[Sequence[float] | Floats] = []
    for e in examples:
        times += [e.steps.start[np.isin(e.steps.rank, shown.ranks)], e.run.updates["time"]]
        if e.timing is not None:
            times.append([c.time for c in changes(e.timing.contention, until)])
    every = np.concatenate([np.asarray(column, dtype=np.float64) for column in times])
    beyond = np.sort(np.maximum(np.maximum(shown.start - every, every - shown.end), 0.0))
    room = float(beyond[most]) if len(beyond) > most else math.inf
    cycle = cycle_of([e.steps for e in examples])
    digits = max(0, 2 - math.floor(math.log10(cycle))) if cycle > 0 else 4
    low, high = kept_of(examples, cycle).around(shown.start)
    start, end = max(shown.start - room, low), min(shown.end + room, high, until)
    return Scope(shown, start, end, until, workers, digits)
