"""The cells that no fit sees, chosen by rule beforehand, and how well fits do there.

Left out are, per precision, the largest batch and every second one between it and the smallest; per
load (and what runs beside it) the highest level and one between it and the lowest; of all-reduces
alone, every second size from 1 MiB on.  They are measured like all others.  Of few cells, less is
left out, so that two remain for a fit where there are three.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from simstrag.calibration.cells import Cell
from simstrag.calibration.fits.medians import short
from simstrag.profile.measurements import CellError, HeldOut
from simstrag.profile.quantity import Quantity

__all__ = ["LARGE", "THRESHOLDS", "Prediction", "account", "held_out"]

LARGE = 1 << 20
"""Bytes from which on an all-reduce is to be predicted: below, latency and luck rule."""

THRESHOLDS = {"step": 0.05, "contention": 0.10, "allreduce": 0.15}
"""What the median absolute relative error of each part is to be at most; fixed beforehand."""


class Prediction(NamedTuple):
    """A cell left out, what was measured, and what a fit without it says."""

    cell: Cell
    measured: Quantity
    predicted: float


def held_out(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Those of the cells that no fit may see, in the order in which they came.

    >>> cells = [Cell("step", precision="fp32", batch=2**k) for k in range(6)]
    >>> [cell.batch for cell in held_out(cells)]
    [2, 8, 32]
    >>> beside = Cell("contention", precision="fp32", batch=8, load="cpu")
    >>> levels = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
    >>> [cell.level for cell in held_out(replace(beside, level=level) for level in levels)]
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
        *(cell for group in loaded if len(group) > 1 for cell in _levels(group)),
        *(cell for group in alone for cell in group[1::2]),
    }
    return tuple(cell for cell in cells if cell in chosen)


def account(
    part: Literal["step", "contention", "allreduce"], found: Sequence[Prediction], note: str
) -> HeldOut | None:
    """The errors of one part, in the order of its cells; None where no cell was left out."""
    if not found:
        return None
    errors = [predicted / measured.value - 1 for _, measured, predicted in found]
    cells = tuple(
        CellError(cell=str(cell), measured=measured, predicted=short(predicted), error=short(error))
        for (cell, measured, predicted), error in zip(found, errors, strict=True)
    )
    return HeldOut(
        part=part,
        cells=cells,
        median=short(float(np.median(np.abs(errors)))),
        worst=short(float(np.max(np.abs(errors)))),
        threshold=THRESHOLDS[part],
        note=note,
    )


def _levels(group: Sequence[Cell]) -> list[Cell]:
    """The highest, and of four levels or more the middle one of those between it and the lowest."""
    inner = group[1:-1] if len(group) > 3 else []
    return [group[-1], *inner[(len(inner) - 1) // 2 :][:1]]


def _groups(
    cells: Iterable[Cell], part: str, along: Literal["batch", "level", "bytes"]
) -> list[list[Cell]]:
    """Cells that differ in one coordinate only, in order of it: beside a load where it is level."""
    found: dict[Cell, list[Cell]] = {}
    for cell in cells:
        if cell.part == part and bool(cell.load) == (along == "level"):
            rest = (
                {"batch": 0}
                if along == "batch"
                else {"level": 0.0}
                if along == "level"
                else {"bytes": 0}
            )
            found.setdefault(replace(cell, **rest), []).append(cell)
    return [sorted(group, key=lambda c: getattr(c, along)) for group in found.values()]
