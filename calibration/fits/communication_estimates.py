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
    CellEstimate,
    clip,
    estimate,
    measured,
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
    cells = [cell for cell in samples.cells if cell.part == "allreduce"]
    cells.sort(key=lambda c: (c.backend, c.group, c.load, c.level, c.ranks, c.bytes))
    return tuple(_collective_cell(cell, samples.of(cell), cell in held_out) for cell in cells)


def _collective_cell(
    cell: MeasurementCell, visits: Sequence[Visit], held_out: bool
) -> CollectiveCell:
    return CollectiveCell(
        **cell.coordinates,
        seconds=measured(
            visit_medians(visits),
            "latest start to latest end; median of each visit, then over visits",
            sum(len(v.samples["seconds"]) for v in visits),
        ),
        oversubscribed=any(v.facts.get("oversubscribed") for v in visits),
        held_out=held_out,
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
    """Fit the ring formula to cells of one backend; None where they do not determine it.

    Their ranks are on one machine, so that there is one kind of link.
    """
    points = [_point(cell) for cell in cells]
    estimates = [visit_medians(samples.of(MeasurementCell.of("allreduce", cell))) for cell in cells]
    try:
        fit = allreduce_fit.fit(points, estimates=estimates)
    except ValueError:
        return None
    origin = _interval_note(estimates, fit.freedom)
    at_0 = "0 is the least it can be: no interval" if fit.freedom else origin
    return allreduce_fit.record(fit, points, cells[0].backend, note, origin, at_0)


def _interval_note(estimates: Sequence[CellEstimate], freedom: int) -> str:
    """The origin of a constant's interval; see `collective_fit`."""
    if not freedom:
        return "as many sizes as constants: nothing checks them, so no interval"
    if all(math.isfinite(e.error) for e in estimates):
        return (
            "interval: refits to draws within each cell's error, wider where residuals are larger"
        )
    return "interval by the residuals"


def transfer_cells(samples: Samples) -> tuple[TransferCell, ...]:
    """Push, service and pull of the server at each size."""
    cells = sorted((c for c in samples.cells if c.part == "server"), key=lambda c: c.bytes)
    return tuple(_transfer_cell(cell, samples.of(cell)) for cell in cells)


def _transfer_cell(cell: MeasurementCell, visits: Sequence[Visit]) -> TransferCell:
    push, service, pull = (_transfer_part(visits, name) for name in ("push", "service", "pull"))
    return TransferCell(
        bytes=cell.bytes, ranks=cell.ranks or None, push=push, service=service, pull=pull,
        slowdown=interference(visits),
    )  # fmt: skip


def _transfer_part(visits: Sequence[Visit], name: str) -> Quantity:
    """One part of a transfer; stamps may make it 0 or less, and then its error is in seconds."""
    values = [float(np.median(v.samples[name])) for v in visits]
    note = "median of each visit, then over visits"
    n = sum(len(v.samples[name]) for v in visits)
    return clip(measured(estimate(values, relative=min(values) > 0), note, n))


def visit_overlap(visit: Visit) -> float:
    """1 - (together - compute) / (apart - compute) of one visit's medians; below 0 overlap costs.

    NaN where the flat all-reduce took no time, so that there was nothing to hide.
    """
    compute, together, apart = (
        float(np.median(visit.samples[name])) for name in ("compute", "together", "apart")
    )
    return 1 - (together - compute) / (apart - compute) if apart > compute else math.nan


def overlap_cells(samples: Samples) -> tuple[OverlapCell, ...]:
    """The share of an all-reduce that the backward pass hides, over the visits that have one."""
    overlaps = []
    for cell in samples.cells:
        visits = samples.of(cell) if cell.part == "overlap" else ()
        shares = [share for v in visits if not math.isnan(share := visit_overlap(v))]
        if shares:
            note = "1 - (together - compute) / (apart - compute), medians of each visit"
            n = sum(len(v.samples["together"]) for v in visits)
            overlaps.append(
                OverlapCell(
                    **cell.coordinates,
                    bytes=max(int(v.facts.get("bytes", 0)) for v in visits),
                    overlap=measured(estimate(shares, relative=False), note, n),
                )
            )
    return tuple(overlaps)


def predict_held_out_sizes(cells: Sequence[CollectiveCell]) -> HeldOut | None:
    """Predict the all-reduces held out, without load and with no more ranks than cores.

    Each is predicted as a simulation predicts that of a gradient of its size: by a ring fitted to
    the sizes around it that are not held out.  The note has the error of lines between its
    neighbours too, which no simulation uses.
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
