"""Which cells are left out where minutes are short, before they are visited.

The order, until each cell that is left has its visits in the time:

1. precisions beyond the nominal pair, at the batches farthest from the nominal one first;
2. batches of the nominal pair, the farthest first; its smallest batch, whose kernels are the
   shortest, and the nominal one stay;
3. loads on the host's processor and memory, beside steps;
4. levels .75, 3 and 2 of the loads on the device;
5. all-reduces beside traffic and of half the ranks, then of other numbers of ranks than 2 and 4,
   then of every second size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from simstrag.calibration.benches.background_load import ON_GPU
from simstrag.calibration.benches.visit_forecast import NEW_JOB, NEW_PROCESS
from simstrag.calibration.cells import MeasurementCell

LEVELS = (0.75, 3.0, 2.0)
"""Levels in the order in which they are left out."""

RANKS = (2, 4)
"""Numbers of ranks whose all-reduces stay."""

SLACK = 1.1
"""Seconds that are planned over those that are forecast: forecasts of three calibrations of an H200
were off by up to 6 %.
"""

Seconds = Mapping[MeasurementCell, tuple[float, float]]
"""Expected seconds of a cell's first visit, and of a later one."""


def total(seconds: Seconds, visits: int) -> float:
    """Expected seconds of that many visits to each cell."""
    return sum(first + (visits - 1) * later for first, later in seconds.values())


def starting(cells: Iterable[MeasurementCell]) -> float:
    """Expected seconds that visits on a GPU take more in all, where jobs and processes are new.

    The profiler's process has a job for each precision, too.
    """
    cells = [cell for cell in cells if cell.precision]
    jobs = {(cell.part == "anatomy", cell.precision) for cell in cells}
    processes = {cell.part for cell in cells} & {"anatomy", "contention"}
    return NEW_JOB * len(jobs) + NEW_PROCESS * len(processes)


def leave_out(
    seconds: Seconds, limit: float, visits: int, groups: Iterable[Sequence[MeasurementCell]]
) -> list[MeasurementCell]:
    """The cells to leave out so that all others have their visits within the limit, if they can.

    groups: of `order`.

    >>> cells = [
    ...     MeasurementCell("step", precision=p, batch=b)
    ...     for p in ("fp32", "tf32", "bf16") for b in (8, 64, 128)
    ... ]
    >>> groups = order(cells, ("tf32", "bf16"), 64)
    >>> left = leave_out(dict.fromkeys(cells, (2.0, 1.0)), 33.0, 3, groups)
    >>> [str(cell) for cell in left]
    ['step fp32 batch 8', 'step fp32 batch 128', 'step fp32 batch 64']
    """
    kept, left = dict(seconds), list[MeasurementCell]()
    for group in groups:
        if SLACK * (total(kept, visits) + starting(kept)) <= limit:
            break
        left += group
        for cell in group:
            del kept[cell]
    return left


def describe(cells: Iterable[MeasurementCell]) -> str:
    """Cells that were left out, in a sentence; empty for none.

    >>> describe([MeasurementCell("step", precision="fp32", batch=b) for b in (128, 8)])
    'left out for want of minutes: steps in fp32 at batch 8, 128'
    """
    steps: dict[str, set[int]] = {}
    loads: dict[str, set[float]] = {}
    reduces = 0
    for cell in cells:
        if cell.part == "allreduce":
            reduces += 1
        elif cell.load:
            loads.setdefault(cell.load, set()).add(cell.level)
        elif cell.part == "step":
            steps.setdefault(cell.precision, set()).add(cell.batch)
    parts = [f"steps in {name} at batch {_listed(of)}" for name, of in steps.items()]
    parts += [f"load {name} at level {_listed(of)}" for name, of in loads.items()]
    if reduces:
        parts.append(f"{reduces} all-reduces")
    return f"left out for want of minutes: {'; '.join(parts)}" if parts else ""


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in sorted(numbers))


def order(
    cells: Iterable[MeasurementCell], pair: tuple[str, str], nominal: int
) -> list[list[MeasurementCell]]:
    """Groups of cells that are left out together, the first to go first."""
    timed = [cell for cell in cells if cell.part in ("step", "anatomy")]
    loaded = [cell for cell in cells if cell.part == "contention"]
    smallest = min((cell.batch for cell in timed), default=nominal)
    by_step: dict[tuple[bool, float, str, int], list[MeasurementCell]] = {}
    for cell in timed:
        is_of_pair = cell.precision in pair
        if is_of_pair and cell.batch in (nominal, smallest):
            continue
        distance = abs(math.log2(cell.batch / nominal))
        key = is_of_pair, -distance, cell.precision, cell.batch
        by_step.setdefault(key, []).append(cell)
    steps = [by_step[key] for key in sorted(by_step)]
    on_host = [cell for cell in loaded if cell.load not in ON_GPU]
    on_device = [cell for cell in loaded if cell.load in ON_GPU]
    levels = [[cell for cell in on_device if cell.level == level] for level in LEVELS]
    reduces = _order_of_reduces([cell for cell in cells if cell.part == "allreduce"])
    return [group for group in (*steps, on_host, *levels, *reduces) if group]


def _order_of_reduces(cells: Sequence[MeasurementCell]) -> list[list[MeasurementCell]]:
    beside = [cell for cell in cells if cell.load or cell.group != "all"]
    alone = [cell for cell in cells if cell not in beside]
    others = [cell for cell in alone if cell.ranks not in RANKS]
    sizes = sorted({cell.bytes for cell in alone})[1::2]
    return [beside, others, [c for c in alone if c.ranks in RANKS and c.bytes in sizes]]
