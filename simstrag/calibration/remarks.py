"""What went wrong in a calibration, and what bounds its steps, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from simstrag.calibration.benches.machine_state import (
    FOREIGN_LIMIT,
    PACE_LIMIT,
    usual_paces,
    visit_deviation,
)
from simstrag.calibration.cell_choice import describe
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.measurement_rounds import FEWEST, interval_widths
from simstrag.calibration.regimes import is_device_bound, is_host_bound
from simstrag.calibration.samples import Samples, calm_visits

NOISY = 0.03
"""Median relative half-width of the cells' intervals above which a machine is called noisy."""

OPEN = 0.5
"""Relative half-width above which an interval says nothing, as after two visits that differ."""

SHOWN = 5
"""Number of cells that one remark names."""


def remarks(samples: Samples) -> list[str]:
    """What went wrong in a campaign, a line each: skipped cells, disturbances, wide intervals."""
    visits = samples.visits
    lines = [f"skipped: {visit.cell}: {visit.skipped}" for visit in visits if visit.skipped]
    plan, visited = samples.header["plan"], {visit.cell for visit in visits}
    wanted = (MeasurementCell(**c) for c in (*plan.get("left_out", ()), *plan.get("cells", ())))
    lines += [text] if (text := describe(c for c in wanted if c not in visited)) else []
    off = [visit.cell for visit in visits if visit.facts.get("load_off")]
    if off:
        shown = ", ".join(map(str, list(dict.fromkeys(off))[:SHOWN]))
        lines.append(f"loads did less or more than their level in {len(off)} visits: {shown}")
    disturbed = [v.facts["foreign"] for v in visits if v.facts.get("disturbed")]
    if disturbed:
        lines.append(
            f"other processes were at work: during {len(disturbed)} of {len(visits)} "
            f"visits they used more than {FOREIGN_LIMIT:g} cores, {np.median(disturbed):.2g} in "
            "the median; these visits do not count for a cell that has enough calm ones"
        )
    usual = usual_paces(visits)
    cells = dict.fromkeys(visit.cell for visit in visits)
    paced = {cell for cell in cells if is_host_bound(cell, visits)}
    felt = [visit for visit in visits if visit.cell in paced]
    slowed = sum(visit_deviation(visit, usual) > PACE_LIMIT for visit in felt)
    if slowed:
        whose = "" if len(felt) == len(visits) else " to cells that the host bounds"
        lines.append(
            f"this machine has neighbours that change: around {slowed} of {len(felt)} "
            f"visits{whose} the pace of a core differed from its usual pace by more than a factor "
            f"of {PACE_LIMIT:g}; {_count_left_out(felt, usual)} of them do not count, the others "
            "are of cells with too few usual visits"
        )
    stolen = [v.facts.get("stolen", 0.0) for v in visits]
    if stolen and np.mean(stolen) > FOREIGN_LIMIT / 10:
        lines.append(
            f"the hypervisor used {np.mean(stolen):.2g} cores for other machines on average"
        )
    return [*lines, *_describe_nominal(samples), *_describe_widths(samples)]


def _count_left_out(visits: Sequence[Visit], usual: Mapping[int, float]) -> int:
    """Number of visits that do not count because of the pace of cores."""
    by_cell: dict[MeasurementCell, list[Visit]] = {}
    for visit in visits:
        by_cell.setdefault(visit.cell, []).append(visit)
    return sum(len(calm_visits(of, {})) - len(calm_visits(of, usual)) for of in by_cell.values())


def _describe_nominal(samples: Samples) -> Iterator[str]:
    """What bounds a step of the nominal batch, and what `torch.compile` did to it."""
    stated = samples.header["workload"]
    precision, batch = stated["full"], stated["nominal_batch"]
    cell = MeasurementCell("step", precision=precision, batch=batch)
    visits = samples.of(cell)
    if not visits:
        return
    step = float(np.median([visit.median() for visit in visits]))
    launches = [visit.median("launch") for visit in visits if visit.samples.get("launch")]
    launch = float(np.median(launches)) if launches else None
    facts = (v.facts for v in samples.visits if v.cell == cell)
    before = next((each["uncompiled"] for each in facts if "uncompiled" in each), None)
    if before is not None:
        what, now = ("launching", launch) if launch is not None else ("a step", step)
        then = before["seconds" if launch is None else "launch"]
        yield (
            f"torch.compile: {what} takes {1e3 * now:.3g} ms, and {1e3 * then:.3g} ms without it "
            f"({precision}, batch {batch})"
        )
    if launch is None:
        return
    times = f"a step takes {1e3 * step:.3g} ms in {precision}, its launching {1e3 * launch:.3g} ms"
    if is_device_bound(cell, samples.visits):
        yield f"the device bounds a step of batch {batch}: {times}"
    else:
        yield (
            f"launching bounds a step of batch {batch}: {times}; a larger --batch, --compile or "
            "CUDA graphs fill the device, and reduced precision gains little before"
        )


def _describe_widths(samples: Samples) -> Iterator[str]:
    """Cells without an interval, and with too wide a one."""
    timed = {cell: samples.of(cell) for cell in samples.cells if cell.part != "gradient"}
    single = [cell for cell, visits in timed.items() if len(visits) == 1]
    widths = interval_widths({c: visits for c, visits in timed.items() if len(visits) > 1})
    if single:
        yield (
            f"one visit, no interval: {len(single)} of {len(timed)} cells, such as {single[0]}; "
            "give more --minutes, or leave out parts or batches"
        )
    target = float(samples.header["plan"]["target"])
    wide = [cell for cell, width in widths.items() if width > target]
    if not wide:
        return
    fewest = min(len(timed[cell]) for cell in widths)
    if fewest < samples.header["plan"].get("fewest", FEWEST):
        yield f"the minutes sufficed for only {fewest} visits to some cells; give more --minutes"
    middle = float(np.median([*widths.values()]))
    if middle > NOISY and fewest > 2:
        yield (
            f"this machine is too noisy: the median interval is {_percent(middle)} to either side, "
            f"above {NOISY:.0%}; measure when the machine is idle, or give more --minutes"
        )
    worst = ", ".join(f"{cell} {_percent(widths[cell])}" for cell in wide[:SHOWN])
    yield (
        f"the 95 % intervals of {len(wide)} of {len(widths)} cells are wider than {target:.0%} to "
        f"either side; the widest: {worst}"
    )


def _percent(width: float) -> str:
    """A half-width in percent, up to one that leaves a number open.

    >>> _percent(0.235), _percent(14.2)
    ('23.5%', 'over 50%')
    """
    return f"{width:.1%}" if width <= OPEN else f"over {OPEN:.0%}"
