"""How quickly cores compute by themselves: what neighbours take that no processor time shows.

On a virtual machine who computes on the other thread of a core is seen in no clock of the guest.
A loop of Python is slowed by it more than steps are: on a guest of an AMD EPYC it took 1.05 or
1.9 ms, where steps of a small network took 46 or 58 ms, for seconds or minutes on end.  So it is
timed on the cores before and after each visit.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from simstrag.calibration.cells import Visit
from simstrag.places import cores, pin

__all__ = ["SLOW", "paces", "quiet", "slowest", "unrest"]

SLOW = 1.2
"""Times the quiet pace from which on a core has a neighbour."""

MOST = 4
"""Cores that are timed, the first ones: those of the first ranks and of single steps."""

LOOP, TIMES = 100_000, 21
"""Numbers that a loop adds up, about 1 ms, and loops of which the median counts: what slows a core
for some milliseconds only does nothing to a visit of a second."""

QUIETEST = 5
"""Per cent of all loops of a core that are as quick as its quiet pace, or quicker."""


def paces() -> dict[int, float]:
    """Seconds of a loop on each of the first cores.

    >>> all(seconds > 0 for seconds in paces().values())
    True
    """
    with _kept():
        return {core: _loop(core) for core in cores()[:MOST]}


def quiet(visits: Iterable[Visit]) -> dict[int, float]:
    """The pace of each core that was timed, with nobody beside it: near its quickest."""
    found: dict[int, list[float]] = {}
    for core, *seconds in (row for visit in visits for row in visit.facts.get("pace", ())):
        found.setdefault(core, []).extend(seconds)
    return {core: float(np.percentile(seconds, QUIETEST)) for core, seconds in found.items()}


def slowest(found: Mapping[int, float], known: Mapping[int, float]) -> float:
    """Of all cores the most times that one takes its quiet pace; 1 where that is not `known`.

    >>> slowest({0: 0.5, 1: 0.75}, {0: 0.5, 1: 0.5}), slowest({0: 0.5}, {})
    (1.5, 1.0)
    """
    return max((seconds / known.get(core, seconds) for core, seconds in found.items()), default=1.0)


def unrest(visit: Visit, known: Mapping[int, float]) -> float:
    """The slowest core before a visit or after it; above `SLOW` it had a neighbour."""
    rows: Sequence[Sequence[float]] = visit.facts.get("pace", ())
    return slowest({int(core): max(seconds) for core, *seconds in rows}, known)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """This thread may run where it might before."""
    before = set(cores())
    try:
        yield
    finally:
        pin(before)


def _loop(core: int) -> float:
    pin(core)
    found = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        sum(range(LOOP))
        found.append(time.perf_counter() - begun)
    return statistics.median(found)
