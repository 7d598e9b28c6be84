"""All-reduces, overlap and server transfers: estimates of cells, errors at held-out sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits import allreduce_fit
from simstrag.calibration.fits.allreduce_fit import AllReducePoint, interpolate, points_around
from simstrag.calibration.fits.held_out import CellPrediction, summarize_errors
from simstrag.calibration.fits.step_estimates import interference
from simstrag.calibration.fits.visit_statistics import (
    clip,
    estimate,
    measure,
    measured_quantity,
    visit_medians,
)
from simstrag.calibration.samples import Samples
from simstrag.profile.measurements import (
    CollectiveCell,
    CollectiveFit,
    HeldOut,
    OverlapCell,
    TransferCell,
)
from simstrag.profile.quantity import Quantity

OF_SIZES = (
    "all-reduces of 1 MiB and more, alone, no more ranks than cores: each by a ring fitted to the "
    "sizes around it that are not held out (within a factor of 4, three at least), as the "
    "constants of allreduce are fitted around the gradient's size"
)


def collective_cells(
    samples: Samples, held_out: frozenset[MeasurementCell]
) -> tuple[CollectiveCell, ...]:
    """Every all-reduce that was timed, by backend, group and load, then ranks and bytes."""
    timed = samples.by_cell("allreduce")
    note = "latest start to latest end; median of each visit, then over visits"
    return tuple(
        CollectiveCell(
            **cell.coordinates,
            seconds=measure(timed[cell], Visit.median, note),
            oversubscribed=any(v.facts.get("oversubscribed") for v in timed[cell]),
            held_out=cell in held_out,
        )
        for cell in sorted(
            timed, key=lambda c: (c.backend, c.group, c.load, c.level, c.ranks, c.bytes)
        )
    )


def collective_fits(samples: Samples, cells: Sequence[CollectiveCell]) -> tuple[CollectiveFit, ...]:
    """The ring formula for each backend and number of ranks, over all sizes."""
    groups: dict[tuple[str, int], list[CollectiveCell]] = {}
    for cell in cells:
        if is_fitted(cell):
            groups.setdefault((cell.backend, cell.ranks), []).append(cell)
    fits = (fit_ring(samples, group, "over all sizes") for group in groups.values())
    return tuple(fit for fit in fits if fit is not None)


def is_fitted(cell: CollectiveCell) -> bool:
    """Whether constants are fitted to a cell: without load, of all ranks, not held out."""
    return not (cell.load or cell.held_out) and cell.group == "all" and cell.bytes > 0


def fit_ring(samples: Samples, cells: Sequence[CollectiveCell], note: str) -> CollectiveFit | None:
    """Fit the ring formula to cells of one backend; None if they do not determine it.

    Their ranks are on one machine, so that there is one kind of link.
    """
    points = [_point(cell) for cell in cells]
    estimates = [visit_medians(samples.of(MeasurementCell.of("allreduce", cell))) for cell in cells]
    try:
        fit = allreduce_fit.fit(points, estimates=estimates)
    except ValueError:
        return None
    if not fit.freedom:
        origin = at_0 = "as many sizes as constants: nothing checks them, so no interval"
    else:
        at_0 = "0 is the least it can be: no interval"
        origin = "interval by the residuals"
        if all(math.isfinite(e.error) for e in estimates):
            origin = (
                "interval: refits to draws within each cell's error, wider where residuals are "
                "larger"
            )
    return allreduce_fit.record(fit, points, cells[0].backend, note, origin, at_0)


def transfer_cells(samples: Samples) -> tuple[TransferCell, ...]:
    """Push, service and pull of the server at each size."""
    timed = samples.by_cell("server")
    note = "median of each visit, then over visits"

    def part(visits: Sequence[Visit], name: str) -> Quantity:
        return clip(measure(visits, lambda visit: visit.median(name), note, name))

    return tuple(
        TransferCell(
            bytes=cell.bytes,
            ranks=cell.ranks or None,
            push=part(timed[cell], "push"),
            service=part(timed[cell], "service"),
            pull=part(timed[cell], "pull"),
            slowdown=interference(timed[cell]),
        )
        for cell in sorted(timed, key=lambda c: c.bytes)
    )


def visit_overlap(visit: Visit) -> float:
    """1 - (together - compute) / (apart - compute) of one visit's medians; below 0 overlap costs.

    NaN if the flat all-reduce took no time, so that there was nothing to hide.
    """
    compute, together, apart = map(visit.median, ("compute", "together", "apart"))
    return 1 - (together - compute) / (apart - compute) if apart > compute else math.nan


def overlap_cells(samples: Samples) -> tuple[OverlapCell, ...]:
    """The share of an all-reduce that the backward pass hides, over the visits that have one."""
    overlaps = []
    for cell, visits in samples.by_cell("overlap").items():
        shares = [share for v in visits if not math.isnan(share := visit_overlap(v))]
        if shares:
            note = "1 - (together - compute) / (apart - compute), medians of each visit"
            n = sum(len(v.samples["together"]) for v in visits)
            overlaps.append(
                OverlapCell(
                    **cell.coordinates,
                    bytes=max(int(v.facts.get("bytes", 0)) for v in visits),
                    overlap=measured_quantity(estimate(shares, relative=False), note, n),
                )
            )
    return tuple(overlaps)


def predict_held_out_sizes(cells: Sequence[CollectiveCell]) -> HeldOut | None:
    """Predict the all-reduces held out, without load and with no more ranks than cores.

    Each is predicted as in a simulation with a gradient of its size: by a ring fitted to the sizes
    around it that are not held out.  For comparison, the note also gives the error of log-log
    interpolation between neighbouring sizes, which simulations do not use.
    """
    predictions, line_errors, without_fit = [], [], 0
    for cell in cells:
        if not cell.held_out or cell.load or cell.oversubscribed:
            continue
        seen = [
            c
            for c in cells
            if (c.backend, c.ranks, c.group) == (cell.backend, cell.ranks, cell.group)
            and not (c.held_out or c.load)
        ]
        try:
            fit = allreduce_fit.fit(points_around([_point(c) for c in seen], cell.bytes))
        except ValueError:
            without_fit += 1
            continue
        predictions.append(
            CellPrediction(
                MeasurementCell.of("allreduce", cell), cell.seconds, fit.seconds(_point(cell))
            )
        )
        line = interpolate([c.bytes for c in seen], [c.seconds.value for c in seen], cell.bytes)
        line_errors.append(abs(line / cell.seconds.value - 1))
    if not predictions:
        return None
    left = f"; {without_fit} sizes around which no ring can be fitted are not among them"
    note = (
        f"{OF_SIZES}{left if without_fit else ''}. Lines between the sizes beside them, which no "
        f"simulation uses, would be off by {np.median(line_errors):.1%} in the median"
    )
    return summarize_errors("allreduce", predictions, note)


def _point(cell: CollectiveCell) -> AllReducePoint:
    return AllReducePoint((cell.ranks,), cell.bytes, cell.seconds.value)
