"""Visits all cells in rounds until every interval is narrow enough or the time is over.

Drift within minutes (clocks, neighbours on a shared machine) affects all cells of a round alike and
shows in the spread between visits, which gives the intervals.  The first rounds visit all cells,
later rounds only cells with too wide an interval.  Each round has a new random order, so that no
cell always follows the same other cell.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from simstrag.calibration.benches.bench import Bench, Skipped
from simstrag.calibration.benches.machine_state import (
    FOREIGN_LIMIT,
    Occupancy,
    measure_paces,
    usual_paces,
)
from simstrag.calibration.cell_choice import Seconds, describe, total
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.visit_statistics import relative_half_width, visit_statistic
from simstrag.calibration.regimes import is_host_bound
from simstrag.calibration.samples import Samples, VisitJournal, calm_visits
from simstrag.errors import InputError

FEWEST, MOST = 5, 24
"""Least and most visits to a cell: fewer give no interval, more hardly narrow it."""

FEWEST_ON_GPU = 3
"""Least visits on a GPU, whose kernels repeat to .1 % (measured on an H200)."""

TARGET = 0.02
"""Relative half-width of a cell's 95 % interval at which its visits end."""

EARLY, MARGIN = 1 / 8, 1.25
"""Share of the first round that tells how long it takes; by how much it must be too long."""

OnVisit = Callable[[float, float, str], None]
"""Receives seconds used, seconds to use, and what comes next."""

OnPlan = Callable[[str], None]
"""Receives a sentence on what does not fit, as soon as the first round tells."""


@dataclass(frozen=True, slots=True)
class CampaignLimits:
    """Limits of a campaign's time.

    seconds: limit of the whole campaign.
    first_round: limit of the first round, in which every cell is visited once; `seconds` if more.
    fewest: least visits to a cell.
    target: relative half-width of an interval that is narrow enough.
    seed: determines the order within rounds.
    """

    seconds: float
    target: float = TARGET
    seed: int = 0
    first_round: float = 0.0
    fewest: int = FEWEST

    def until(self, visits: Mapping[MeasurementCell, Sequence[Visit]]) -> float:
        """The seconds after which no visit begins."""
        return self.seconds if all(visits.values()) else max(self.seconds, self.first_round)

    def check(self, needed: float, cells: int) -> None:
        """Raise `InputError` where not even the fewest rounds fit, which take so many seconds."""
        if needed > self.seconds:
            raise InputError(
                f"{self.seconds / 60:g} minutes of calibration: {self.fewest} rounds of {cells} "
                f"cells take about {needed / 60:.1f} minutes; give as many, or leave out parts or "
                "batches"
            )


def run(
    benches: Sequence[Bench],
    journal: VisitJournal,
    limits: CampaignLimits,
    on_visit: OnVisit = lambda used, total, what: None,
    is_wanted: Callable[[MeasurementCell], bool] = lambda cell: True,
    on_plan: OnPlan = lambda text: None,
    expendable: Sequence[Sequence[MeasurementCell]] = (),
) -> Samples:
    """Visit the wanted cells of all benches; visits that the journal already has count.

    Every visit is in the journal before the next one starts.  A visit during which other processes
    used more than `FOREIGN_LIMIT` cores has the fact `disturbed`.  Raises `InputError` if the time
    is over before every cell was visited once.

    expendable: cells to leave out, unless visited, where visits take longer than planned; the
        first group goes first.
    """
    owner = {cell: bench for bench in benches for cell in bench.cells if is_wanted(cell)}
    samples = journal.read()
    visits: dict[MeasurementCell, list[Visit]] = {cell: [] for cell in owner}
    for visit in samples.visits:
        if visit.cell in visits:
            visits[visit.cell].append(visit)
    used = sum(visit.facts.get("took", 0.0) for visit in samples.visits)
    process = 1 + max((visit.facts.get("process", 0) for visit in samples.visits), default=-1)
    planned = {cell: (bench.seconds(cell), bench.later(cell)) for cell, bench in owner.items()}
    _leave_out(visits, planned, used, limits, expendable)  # again, what an interrupted run did
    if used >= limits.until(visits) or not _due(visits, limits):
        _check_all_visited(visits, limits)
        return samples
    with contextlib.ExitStack() as stack:
        for bench in dict.fromkeys(owner.values()):
            on_visit(used, limits.seconds, "starting the benches")
            stack.enter_context(bench)
        while due := _due(visits, limits):
            is_first = not all(visits.values())
            for cell in filter(visits.__contains__, due):
                if used >= limits.until(visits):
                    _check_all_visited(visits, limits)
                    return journal.read()
                on_visit(used, limits.until(visits), str(cell))
                visit = _visit(owner[cell], cell, len(visits[cell]), process)
                journal.add(visit)
                visits[cell].append(visit)
                used += visit.facts["took"]
                if text := describe(_leave_out(visits, planned, used, limits, expendable)):
                    on_plan(text)
                _check_pace(visits, planned, used, limits)
            if is_first and (text := _describe_round(visits, planned, limits)):
                on_plan(text)
    return journal.read()


def _leave_out(
    visits: dict[MeasurementCell, list[Visit]],
    planned: Seconds,
    used: float,
    limits: CampaignLimits,
    expendable: Sequence[Sequence[MeasurementCell]],
) -> list[MeasurementCell]:
    """Drop cells without a visit, group by group, until the others have their visits in time.

    Returns them.  An early part of the first round must have shown how long visits take.  A step
    and its anatomy stay together.
    """
    begun = {cell for cell, of in visits.items() if of}
    if len(begun) < max(2, EARLY * len(visits)):
        return []
    timed = [cell for cell in begun if not any(visit.skipped for visit in visits[cell])]
    ratio, left = _pace(visits, planned), list[MeasurementCell]()
    steps = {replace(cell, part="step") for cell in begun}
    for group in expendable:
        new = {cell: planned[cell] for cell in visits if cell not in begun}
        known = sum(max(0, limits.fewest - len(visits[c])) * planned[c][1] for c in timed)
        if used + ratio * (total(new, limits.fewest) + known) <= limits.until(visits):
            break
        idle = [c for c in group if c in visits and replace(c, part="step") not in steps]
        left += idle
        for cell in idle:
            del visits[cell]
    return left


def _pace(visits: Mapping[MeasurementCell, Sequence[Visit]], planned: Seconds) -> float:
    """Seconds of a first visit over those planned; the lower median: some start a process, too."""
    ratios = [
        float(of[0].facts["took"]) / planned[cell][0]
        for cell, of in visits.items()
        if of and not of[0].skipped
    ]
    return median_low(ratios or [1.0])


def _check_pace(
    visits: Mapping[MeasurementCell, Sequence[Visit]],
    planned: Seconds,
    used: float,
    limits: CampaignLimits,
) -> None:
    """Raise `InputError` if an early part of the first round shows that it does not fit.

    planned: seconds of visits by cell, as they were expected.
    """
    begun = [cell for cell, of in visits.items() if of]
    if len(begun) == len(visits) or len(begun) < max(2, EARLY * len(visits)):
        return
    ratio = _pace(visits, planned)
    one = used + ratio * sum(planned[cell][0] for cell in visits if not visits[cell])
    if one > MARGIN * limits.until(visits):
        raise InputError(
            f"{limits.until(visits) / 60:.3g} minutes of calibration: the first {len(begun)} of "
            f"{len(visits)} cells took {ratio:.1f} times as long here as planned, so that one "
            f"round takes about {one / 60:.2g} minutes and {limits.fewest} rounds "
            f"{_minutes(limits.fewest * one)}; the visits are kept: the same command with that "
            "many minutes goes on, or leave out parts or batches"
        )


def _describe_round(
    visits: Mapping[MeasurementCell, Sequence[Visit]],
    planned: Seconds,
    limits: CampaignLimits,
) -> str:
    """What does not fit by the time of the first round; empty if all rounds fit."""
    took = {cell: of[0].facts["took"] for cell, of in visits.items() if not of[0].skipped}
    one, whole = sum(took.values()), max(limits.seconds, limits.first_round)
    first, later = (sum(planned[cell][k] for cell in took) for k in (0, 1))
    later = one * (later / first)
    needed = one + (limits.fewest - 1) * later
    if needed <= MARGIN * whole:
        return ""
    return (
        f"{whole / 60:.3g} minutes of calibration: a round of {len(took)} cells took "
        f"{one / 60:.2g} minutes here, {one / first:.1f} times as long as planned, so that "
        f"{1 + (whole - one) // later:.0f} of {limits.fewest} rounds fit and intervals "
        f"will be wide; all take about {_minutes(needed)} minutes. Visits are kept: "
        "stop, and the same command with that many minutes goes on, or leave out parts or batches"
    )


def _minutes(seconds: float) -> int:
    return math.ceil(seconds / 60)


def interval_widths(
    visits: Mapping[MeasurementCell, Sequence[Visit]],
) -> dict[MeasurementCell, float]:
    """Relative half-width of each cell's interval, the widest first."""
    widths = {
        cell: relative_half_width([visit_statistic(visit) for visit in of])
        for cell, of in visits.items()
    }
    return dict(sorted(widths.items(), key=lambda item: -item[1]))


def _check_all_visited(
    visits: Mapping[MeasurementCell, Sequence[Visit]], limits: CampaignLimits
) -> None:
    left = [cell for cell, of in visits.items() if not of]
    if left:
        raise InputError(
            f"{limits.seconds / 60:g} minutes of calibration are over, and {len(left)} of "
            f"{len(visits)} cells were not visited once, such as {left[0]}; the samples are kept: "
            "the same command with more minutes goes on, or leave out parts or batches"
        )


def _due(
    visits: dict[MeasurementCell, list[Visit]], limits: CampaignLimits
) -> list[MeasurementCell]:
    """The cells of the next round, in its order; none at the end."""
    measurable = {c: of for c, of in visits.items() if not any(v.skipped for v in of)}
    number = min((len(of) for of in measurable.values()), default=limits.fewest)
    if number < limits.fewest:
        cells = [cell for cell, of in measurable.items() if len(of) == number]
    else:
        open_cells = {c: of for c, of in measurable.items() if len(of) < MOST}
        everything = [visit for of in visits.values() for visit in of]
        usual = usual_paces(visit for of in open_cells.values() for visit in of)
        widths = interval_widths({
            c: calm_visits(of, usual if is_host_bound(c, everything) else {})
            for c, of in open_cells.items()
        })  # fmt: skip
        cells = [cell for cell, width in widths.items() if width > limits.target]
        number = max((len(measurable[c]) for c in cells), default=0)
    random.Random(f"{limits.seed} {number} {len(cells)}").shuffle(cells)
    return cells


def _visit(bench: Bench, cell: MeasurementCell, number: int, process: int) -> Visit:
    """One visit; process: number of this process among those that wrote to the journal."""
    start, before, began = time.monotonic(), measure_paces(), time.time()
    try:
        with Occupancy() as occupancy:
            samples, facts = bench.visit(cell)
    except Skipped as reason:
        took = {"process": process, "took": round(time.monotonic() - start, 3)}
        return Visit(cell, number, round(began, 3), facts=took, skipped=str(reason))
    after = measure_paces()
    facts = (
        {"process": process}
        | facts
        | {
            "pace": [[core, round(before[core], 7), round(after[core], 7)] for core in before],
            "took": round(time.monotonic() - start, 3),
            "foreign": round(occupancy.foreign, 4),
            "stolen": round(occupancy.stolen, 4),
        }
    )
    if occupancy.foreign > FOREIGN_LIMIT:
        facts["disturbed"] = True
    return Visit(cell, number, round(began, 3), samples, facts)
