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

from simstrag.calibration.cells import Visit
from simstrag.processes.affinity import cores, pin

__all__ = ["OFF", "astray", "paces", "unrest", "usual"]

OFF = 1.2
"""Times the usual pace, or part of it, from which on a core's neighbours are others than usual."""

MOST = 4
"""Cores that are timed, the first ones: those of the first ranks and of single steps."""

LOOP, TIMES = 100_000, 21
"""Numbers that a loop adds up, about 1 ms, and loops of which the median counts: what slows a core
for some milliseconds only does nothing to a visit of a second."""


def paces() -> dict[int, float]:
    """Seconds of a loop on each of the first cores.

    >>> all(seconds > 0 for seconds in paces().values())
    True
    """
    with _kept():
        return {core: _loop(core) for core in cores()[:MOST]}


def usual(visits: Iterable[Visit]) -> dict[int, float]:
    """The pace that each core mostly had: the median of its loops.

    Not the quickest: a simulation is to say what training takes here, with such neighbours as
    there are.
    """
    found: dict[int, list[float]] = {}
    for core, *seconds in (row for visit in visits for row in visit.facts.get("pace", ())):
        found.setdefault(core, []).extend(seconds)
    return {core: statistics.median(seconds) for core, seconds in found.items()}


def astray(found: Mapping[int, float], known: Mapping[int, float]) -> float:
    """Of all cores the most times that one is slower or quicker than usual; 1 where that is not
    `known`.

    >>> astray({0: 0.5, 1: 0.75}, {0: 0.5, 1: 0.5}), astray({0: 0.25}, {0: 0.5}), astray({0: 1}, {})
    (1.5, 2.0, 1.0)
    """
    ratios = [seconds / known.get(core, seconds) for core, seconds in found.items()]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)


def unrest(visit: Visit, known: Mapping[int, float]) -> float:
    """How far astray the cores were before a visit, or after it; above `OFF` it does not count."""
    rows: Sequence[Sequence[float]] = visit.facts.get("pace", ())
    looks = zip(*([(int(core), s) for s in seconds] for core, *seconds in rows), strict=True)
    return max((astray(dict(look), known) for look in looks), default=1.0)


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
