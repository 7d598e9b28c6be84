"""What a timeline shows of a rank: the parts of its steps, and by how much contention slows it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.analysis.charts import drawing
from simstrag.analysis.derived.waiting import Steps
from simstrag.analysis.derived.windows import segments
from simstrag.timing.timing import Timing
from simstrag.trace.slowdown import Piecewise

__all__ = ["PARTS", "SHADES", "Part", "Span", "pieces_of", "slowdown_of", "spans"]

Floats = npt.NDArray[np.float64]

SHADES = ((1.0, 1.25, 0.14), (1.25, 1.75, 0.28), (1.75, math.inf, 0.45))
"""Slowdowns from, below, and how opaque they are shown."""


class Part(NamedTuple):
    """How a part of a step's time is drawn. height: of a rank's row."""

    color: str
    height: float
    filled: bool = True


PARTS = {
    "full": Part(drawing.FULL, 0.62),
    "amp": Part(drawing.AMP, 0.62),
    "full, lost": Part(drawing.FULL, 0.5, filled=False),
    "amp, lost": Part(drawing.AMP, 0.5, filled=False),
    "wait": Part(drawing.WAIT, 0.16),
    "blocked": Part(drawing.BLOCKED, 0.28),
    "communication": Part(drawing.COMMUNICATION, 0.4),
}
"""By the keys of `pieces_of`."""


class Span(NamedTuple):
    """A stretch (s) of one slowdown of a rank. network: of its network, not of its steps."""

    rank: int
    start: float
    end: float
    factor: float
    network: bool

    @property
    def opacity(self) -> float:
        """How opaque its shade is; 0 where nothing is slowed."""
        if self.factor <= 1 + 1e-9:
            return 0.0
        return next(alpha for above, below, alpha in SHADES if above <= self.factor < below)


def pieces_of(steps: Steps, timing: Timing | None) -> dict[str, tuple[Floats, Floats]]:
    """(from, to) of the parts of every step's time; in a gap first waiting, then blocked.

    Keys: those of `PARTS`.  A part that a step has not is empty, its ends equal.
    """
    lost = steps.lost
    ready = steps.finish + steps.wait
    same_rank = np.append(steps.rank[1:] == steps.rank[:-1], False)
    changes_precision = same_rank & (np.append(steps.amp[1:], False) != steps.amp)
    switch = 0.0 if timing is None else timing.step.amp_switch
    parts = {"wait": (steps.finish, ready - steps.blocked)}
    parts["blocked"] = ready - steps.blocked, ready
    parts["communication"] = ready, steps.gap_end - switch * changes_precision
    for key, chosen in (("full", ~steps.amp), ("amp", steps.amp)):
        for word, fate in (("", ~lost), (", lost", lost)):
            stop = np.where(chosen & fate, steps.finish, steps.start)
            parts[key + word] = steps.start, stop
    return parts


def slowdown_of(timing: Timing, rank: int) -> Piecewise:
    """By how much contention stretches a full-precision step of a rank."""
    f, clean = timing.stretch(rank, amp=False), timing.step.host + timing.step.gpu
    return Piecewise(f.times, tuple(value / clean for value in f.values), f.period)


def spans(timing: Timing, ranks: Sequence[int], start: float, end: float) -> Iterator[Span]:
    """The slowdowns of ranks and of their network between two times, those of factor 1 too."""
    for rank in ranks:
        network = timing.contention.of_rank(rank, "net")
        for of_network, slowdown in ((False, slowdown_of(timing, rank)), (True, network)):
            for low, high, factor in segments(slowdown, start, end):
                yield Span(rank, low, high, factor, of_network)
