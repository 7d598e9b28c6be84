"""Which visits count for a step on a GPU, and which cells are unstable.

A torch profiler that was attached once makes every later launch of its process dearer: CUPTI stays.
One rule follows.  *After a profiler was attached in a process, that process's visits count for
nothing that the host bounds*, except as an upper limit of launching.  They count for steps that the
device bounds, since those take equally long whatever the host does: steps within `NEAR` of the
kernel time, which is no shorter than the launching seen in that visit.  (Kernels seen in another
process may take a little longer than the step, where cuDNN chose others.)  The visit that
attached the profiler timed its steps before, and counts.  Kernel time is the profiler's own and
always counts.

A visit attaches a profiler if it is of part anatomy or, in files of before, has `gpu_busy`.  Its
process is the fact `process`.  In files without that fact a process begins where nothing was
visited for `PAUSE` seconds, and where a cell's first visit, which has `gpu_busy`, comes again.

A cell is *unstable* if its visits do not repeat one number: they move with time, or fall into two
groups; see `describe_instability`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simstrag.arrays import Floats
from simstrag.calibration.cells import Visit

NEAR = 0.08
"""A step is the device's if it differs from the kernel time by at most this share.  Between the
kernels of 20 cells on an H200 lay 0.5 to 7 % of the kernel time; steps that the host bounds took 16
to 490 % longer."""

PAUSE = 30.0
"""Seconds without a visit after which another process is taken to go on."""

FEWEST_VISITS = 3
"""Visits from which a cell is tested."""

LEVEL, LEVEL_OF_THREE = 0.1, 0.34
"""Probability with which a test calls a stable cell unstable.  Four visits in order, whose chance
is 1 in 12, are enough; three in order, 1 in 3, are all that three can tell.  Such a caution costs a
reader little, and needs a change by `LEAST_CHANGE` as well."""

LEAST_CHANGE = 1.5
"""Factor below which neither trend nor groups matter, as for intervals: neighbours of a virtual
machine alone move cells by up to 1.4 (the shipped calibrations of CPUs)."""

DRAWS = 20_000
"""Draws from the normal law that give the limit of the test for groups."""


@dataclass(frozen=True, slots=True)
class NumberedVisit:
    """A visit in its process.

    process: its number, over all files of a profile.
    after_profiler: whether a profiler had been attached in its process before.
    """

    visit: Visit
    process: int
    after_profiler: bool


def attaches_profiler(visit: Visit) -> bool:
    """Whether a visit attached a torch profiler, after timing what else it timed."""
    return not visit.skipped and (visit.cell.part == "anatomy" or "gpu_busy" in visit.facts)


def number_visits(visits: Iterable[Visit]) -> Iterator[NumberedVisit]:
    """The visits of one file, in their order, with their processes.

    >>> from simstrag.calibration.cells import MeasurementCell
    >>> cell = MeasurementCell("step", precision="tf32", batch=8)
    >>> first = Visit(cell, 0, 0.0, facts={"gpu_busy": 0.01, "took": 2.0})
    >>> visits = [first, Visit(cell, 1, 2.0, facts={"took": 1.0}), Visit(cell, 2, 90.0)]
    >>> [(each.process, each.after_profiler) for each in number_visits(visits)]
    [(0, False), (0, True), (1, False)]
    """
    profiled: set[int] = set()
    known: set[object] = set()
    process, ended = 0, math.inf
    for visit in visits:
        again = "gpu_busy" in visit.facts and visit.cell in known
        if "process" in visit.facts:
            process = int(visit.facts["process"])
        elif visit.began - ended > PAUSE or again:
            process, known = process + 1, set()
        ended = visit.began + float(visit.facts.get("took", 0.0))
        known.add(visit.cell)
        yield NumberedVisit(visit, process, process in profiled)
        if attaches_profiler(visit):
            profiled.add(process)


def bounded_by_device(step: float, kernel: float, launch: float | None) -> bool:
    """Whether the device bounds a step, by the rule above; all in seconds, None if unknown.

    >>> bounded_by_device(0.0322, 0.0310, 0.018), bounded_by_device(0.0322, 0.0165, 0.018)
    (True, False)
    """
    near = (1 - NEAR) * kernel <= step <= (1 + NEAR) * kernel
    return near and (launch is None or launch <= kernel)


def describe_instability(
    visits: Sequence[Visit], number: Callable[[Visit], float] = Visit.median
) -> str:
    """Why the visits repeat no single number, naming them; "" if they do, or are too few.

    trend: Kendall's rank correlation with time has an exact probability of at most `LEVEL`.
    groups: split at the gap that leaves the least spread, the visits leave less than `LEVEL` of
        normal samples do; and each group has two visits or more.

    Both need a change by the factor `LEAST_CHANGE` or more, of the last over the first third, or of
    one group's mean over the other's.

    >>> from simstrag.calibration.cells import MeasurementCell
    >>> cell = MeasurementCell("step", precision="tf32", batch=8)
    >>> def visits(*times):
    ...     return [Visit(cell, k, 60.0 * k, {"seconds": (t,)}) for k, t in enumerate(times)]
    >>> describe_instability(visits(0.0176, 0.0195, 0.0234, 0.0373))
    'visits 0 to 3 rise with time, by a factor of 2.1'
    >>> describe_instability(visits(0.0176, 0.0177, 0.0175, 0.0176, 0.0177))
    ''
    """
    ordered = sorted(visits, key=lambda visit: visit.began)
    if len(ordered) < FEWEST_VISITS:
        return ""
    values = np.log([number(visit) for visit in ordered])
    names = [str(visit.number) for visit in ordered]
    third = max(1, len(values) // 3)
    change = float(values[-third:].mean() - values[:third].mean())
    level = LEVEL if len(values) > FEWEST_VISITS else LEVEL_OF_THREE
    if abs(change) >= math.log(LEAST_CHANGE) and _trend_probability(values) <= level:
        way = "rise" if change > 0 else "fall"
        factor = math.exp(abs(change))
        return f"visits {names[0]} to {names[-1]} {way} with time, by a factor of {factor:.2g}"
    if len(values) == FEWEST_VISITS:
        return ""  # no two groups of two
    split, left = _best_split(values)
    order = np.argsort(values, kind="stable")
    low, high = order[:split], order[split:]
    apart = float(values[high].mean() - values[low].mean())
    if apart >= math.log(LEAST_CHANGE) and left <= _least_left(len(values)):
        few, many = (", ".join(names[k] for k in sorted(each)) for each in (low, high))
        return f"visits {few} against {many} differ by a factor of {math.exp(apart):.2g}"
    return ""


def _trend_probability(values: Floats) -> float:
    """Exact probability of as many pairs in one order, or in the other, by chance."""
    n = len(values)
    later = sum(values[j] > values[i] for i, j in itertools.combinations(range(n), 2))
    pairs = n * (n - 1) // 2
    counts = np.ones(1)  # permutations by their number of pairs in order
    for k in range(2, n + 1):
        counts = np.convolve(counts, np.ones(k)) / k
    extreme = max(int(later), pairs - int(later))
    return min(1.0, 2 * float(counts[extreme:].sum()))


def _best_split(values: Floats) -> tuple[int, float]:
    """The number of lower values in two groups of least spread, and the share of spread left."""
    ordered = np.sort(values)[None]
    splits, left = _splits(ordered)
    best = int(np.argmin(left[0]))
    return splits[best], float(left[0, best])


def _splits(
    ordered: Floats,
) -> tuple[list[int], Floats]:
    """Sizes of the lower group, two or more on either side, and the spread left by each."""
    n = ordered.shape[1]
    total = ordered.var(axis=1) * n
    splits = list(range(2, n - 1))
    left = [
        ordered[:, :k].var(axis=1) * k + ordered[:, k:].var(axis=1) * (n - k) for k in splits
    ]  # fmt: skip
    return splits, np.stack(left, axis=1) / np.maximum(total, 1e-300)[:, None]


@functools.cache
def _least_left(n: int) -> float:
    """The share of spread that the best split of n normal values leaves at `LEVEL`."""
    drawn = np.sort(np.random.default_rng(0).standard_normal((DRAWS, n)), axis=1)
    _, left = _splits(drawn)
    return float(np.quantile(left.min(axis=1), LEVEL))
