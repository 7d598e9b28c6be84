"""Goes round all cells, visit by visit, until every interval is narrow enough or time is up.

Rounds, and not one cell after the other: what drifts within minutes (clocks, neighbours on a
shared machine) then falls on all cells alike, and shows in the spread between visits, from which
the intervals are taken.  In the first rounds all cells are visited, later only those whose interval
is too wide.  The order within a round is drawn anew each time, so that no cell always follows the
same other.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simstrag.calibration.benches.occupancy import LIMIT, Occupancy
from simstrag.calibration.benches.pace import paces, usual
from simstrag.calibration.cells import Bench, Cell, Skipped, Visit
from simstrag.calibration.fits.medians import half_width, statistic
from simstrag.calibration.samples import Journal, Samples, calm
from simstrag.errors import InputError

__all__ = ["FEWEST", "MOST", "TARGET", "Bounds", "OnVisit", "run", "wide"]

FEWEST, MOST = 5, 24
"""Visits to a cell: with less an interval between visits means little; more add little."""

TARGET = 0.02
"""Relative half-width of a cell's 95 % interval at which it is left alone."""

OnVisit = Callable[[float, float, str], None]
"""Told seconds used, seconds to use, and what comes next."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long to measure: seconds in all, and the half-width that is enough."""

    seconds: float
    target: float = TARGET
    seed: int = 0

    def check(self, round_seconds: float, cells: int) -> None:
        """Raises `InputError` where not even the fewest rounds fit."""
        needed = FEWEST * round_seconds
        if needed > self.seconds:
            raise InputError(
                f"{self.seconds / 60:g} minutes of calibration: {FEWEST} rounds of {cells} cells "
                f"take about {needed / 60:.1f} minutes; give as many, or leave out parts or batches"
            )


def run(
    benches: Sequence[Bench],
    journal: Journal,
    bounds: Bounds,
    on_visit: OnVisit = lambda used, total, what: None,
    wanted: Callable[[Cell], bool] = lambda cell: True,
) -> Samples:
    """Visit the cells of all benches; what the journal has already counts.

    Every visit is in the journal before the next begins, so that whatever ends this loses one.
    A visit during which others took more than `LIMIT` cores says so in its facts.  Raises
    `InputError` where time is up before every cell was visited once.
    """
    owner = {cell: bench for bench in benches for cell in bench.cells if wanted(cell)}
    samples = journal.read()
    visits: dict[Cell, list[Visit]] = {cell: [] for cell in owner}
    for visit in samples.visits:
        if visit.cell in visits:
            visits[visit.cell].append(visit)
    used = sum(visit.facts.get("took", 0.0) for visit in samples.visits)
    if used >= bounds.seconds or not _due(visits, bounds):
        _enough(visits, bounds)
        return samples
    with contextlib.ExitStack() as stack:
        for bench in dict.fromkeys(owner.values()):
            on_visit(used, bounds.seconds, "starting what measures")
            stack.enter_context(bench)
        while due := _due(visits, bounds):
            for cell in due:
                if used >= bounds.seconds:
                    _enough(visits, bounds)
                    return journal.read()
                on_visit(used, bounds.seconds, str(cell))
                visit = _visit(owner[cell], cell, len(visits[cell]))
                journal.add(visit)
                visits[cell].append(visit)
                used += visit.facts["took"]
    return journal.read()


def _enough(visits: Mapping[Cell, Sequence[Visit]], bounds: Bounds) -> None:
    left = [cell for cell, of in visits.items() if not of]
    if left:
        raise InputError(
            f"{bounds.seconds / 60:g} minutes of calibration are over, and {len(left)} of "
            f"{len(visits)} cells were not visited once, such as {left[0]}; what was measured "
            "is kept: the same command with more minutes goes on, or leave out parts or batches"
        )


def wide(visits: Mapping[Cell, Sequence[Visit]], target: float) -> list[Cell]:
    """The cells whose interval is wider than the target, the widest first."""
    known = usual(visit for of in visits.values() for visit in of)
    widths = {
        c: half_width([statistic(v) for v in calm(of, known)]) for c, of in visits.items() if of
    }
    return sorted((c for c, w in widths.items() if w > target), key=lambda c: -widths[c])


def _due(visits: dict[Cell, list[Visit]], bounds: Bounds) -> list[Cell]:
    """The cells of the next round, in its order; none when all is done."""
    open_ = {c: of for c, of in visits.items() if not any(v.skipped for v in of)}
    number = min((len(of) for of in open_.values()), default=FEWEST)
    if number < FEWEST:
        cells = [cell for cell, of in open_.items() if len(of) == number]
    else:
        measured = {c: of for c, of in open_.items() if len(of) < MOST}
        cells = wide(measured, bounds.target)
        number = max((len(open_[c]) for c in cells), default=0)
    random.Random(f"{bounds.seed} {number} {len(cells)}").shuffle(cells)
    return cells


def _visit(bench: Bench, cell: Cell, number: int) -> Visit:
    begun, before, began = time.monotonic(), paces(), time.time()
    try:
        with Occupancy() as seen:
            samples, facts = bench.visit(cell)
    except Skipped as reason:
        took = {"took": round(time.monotonic() - begun, 3)}
        return Visit(cell, number, round(began, 3), facts=took, skipped=str(reason))
    after = paces()
    facts = facts | {
        "pace": [[core, round(before[core], 7), round(after[core], 7)] for core in before],
        "took": round(time.monotonic() - begun, 3),
        "foreign": round(seen.foreign, 4),
        "stolen": round(seen.stolen, 4),
    }
    if seen.foreign > LIMIT:
        facts["disturbed"] = True
    return Visit(cell, number, round(began, 3), samples, facts)
