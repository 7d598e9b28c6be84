"""The cells that no fit sees, chosen by rule before anything is measured, and the errors there.

Held out are, per precision, the largest batch and every second batch between it and the smallest;
per load and step the highest level and one between it and the lowest; of all-reduces without load
every second size from 1 MiB on.  They are measured like all others.  Of three batches or levels
only the largest is held out, so that two remain for a fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from simstrag.calibration.cells import MeasurementCell
from simstrag.calibration.fits.visit_statistics import round_digits
from simstrag.profile.measurements import CellError, HeldOut
from simstrag.profile.quantity import Quantity

LARGE = 1 << 20
"""Bytes from which an all-reduce is predicted: below, latency and chance dominate."""

THRESHOLDS = {"step": 0.05, "contention": 0.10, "allreduce": 0.15}
"""Largest median absolute relative error expected of each part; fixed beforehand."""


class CellPrediction(NamedTuple):
    """A cell held out, its measurement, and the prediction of a fit without it."""

    cell: MeasurementCell
    measured: Quantity
    predicted: float


def choose_held_out(cells: Iterable[MeasurementCell]) -> tuple[MeasurementCell, ...]:
    """The cells that no fit may see, in their order.

    >>> cells = [MeasurementCell("step", precision="fp32", batch=2**k) for k in range(6)]
    >>> [cell.batch for cell in choose_held_out(cells)]
    [2, 8, 32]
    >>> loaded = MeasurementCell("contention", precision="fp32", batch=8, load="cpu")
    >>> levels = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
    >>> [cell.level for cell in choose_held_out(replace(loaded, level=level) for level in levels)]
    [0.75, 3.0]
    """
    cells = list(dict.fromkeys(cells))
    steps = _groups(cells, "step", "batch")
    loaded = [*_groups(cells, "contention", "level"), *_groups(cells, "allreduce", "level")]
    alone = [
        [c for c in group if c.bytes >= LARGE] for group in _groups(cells, "allreduce", "bytes")
    ]
    chosen = {
        *(cell for group in steps if len(group) > 2 for cell in group[:0:-2]),
        *(cell for group in alone for cell in group[1::2]),
    }
    for group in loaded:
        if len(group) > 1:
            chosen.add(group[-1])
        if len(group) > 3:
            chosen.add(group[(len(group) - 1) // 2])
    return tuple(cell for cell in cells if cell in chosen)


def summarize_errors(
    part: Literal["step", "contention", "allreduce"],
    predictions: Sequence[CellPrediction],
    note: str,
) -> HeldOut | None:
    """The errors of one part, in the order of its cells; None where no cell was held out."""
    if not predictions:
        return None
    errors = [predicted / measured.value - 1 for _, measured, predicted in predictions]
    cells = tuple(
        CellError(
            cell=str(cell), measured=measured, predicted=round_digits(predicted),
            error=round_digits(error),
        )
        for (cell, measured, predicted), error in zip(predictions, errors, strict=True)
    )  # fmt: skip
    return HeldOut(
        part=part,
        cells=cells,
        median=round_digits(float(np.median(np.abs(errors)))),
        worst=round_digits(float(np.max(np.abs(errors)))),
        threshold=THRESHOLDS[part],
        note=note,
    )


def _groups(
    cells: Iterable[MeasurementCell], part: str, along: Literal["batch", "level", "bytes"]
) -> list[list[MeasurementCell]]:
    """Cells of a part that differ in one coordinate only, in its order; by level if loaded."""
    none: dict[str, Any] = {along: 0.0 if along == "level" else 0}
    groups: dict[MeasurementCell, list[MeasurementCell]] = {}
    for cell in cells:
        if cell.part == part and bool(cell.load) == (along == "level"):
            groups.setdefault(replace(cell, **none), []).append(cell)
    return [sorted(group, key=lambda c: getattr(c, along)) for group in groups.values()]
