"""All-reduces and transfers: what each cell's visits say, and what sizes left out should take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simstrag.calibration import collective_fit
from simstrag.calibration.cells import Cell, Visit
from simstrag.calibration.collective_fit import Point
from simstrag.calibration.held_out import Prediction
from simstrag.calibration.medians import over_visits, short, told
from simstrag.calibration.samples import Samples
from simstrag.calibration.step_cells import medians
from simstrag.measurements import (
    CollectiveCell,
    CollectiveFit,
    OverlapCell,
    Residual,
    TransferCell,
)
from simstrag.quantity import Quantity

__all__ = [
    "between", "collective_cells", "collective_fits", "in_fit", "overlap", "overlaps",
    "predictions", "ring", "transfers",
]  # fmt: skip


def collective_cells(samples: Samples, held_out: frozenset[Cell]) -> tuple[CollectiveCell, ...]:
    """Every all-reduce that was timed, by backend, group and load, then ranks and bytes."""
    cells = [cell for cell in samples.cells if cell.part == "allreduce"]
    cells.sort(key=lambda c: (c.backend, c.group, c.load, c.level, c.ranks, c.bytes))
    return tuple(_cell(cell, samples.of(cell), cell in held_out) for cell in cells)


def _cell(cell: Cell, visits: Sequence[Visit], held_out: bool) -> CollectiveCell:
    return CollectiveCell(
        backend=cell.backend,
        ranks=cell.ranks,
        bytes=cell.bytes,
        group=cell.group,
        load=cell.load,
        level=cell.level,
        seconds=told(
            medians(visits), "latest start to latest end; median of each visit, then over visits",
            sum(len(v.samples["seconds"]) for v in visits),
        ),
        oversubscribed=any(v.facts.get("oversubscribed") for v in visits),
        held_out=held_out,
    )  # fmt: skip


def collective_fits(cells: Sequence[CollectiveCell]) -> tuple[CollectiveFit, ...]:
    """The ring formula for each backend and number of ranks, over all sizes that are in fits."""
    groups: dict[tuple[str, int], list[CollectiveCell]] = {}
    for cell in cells:
        if in_fit(cell):
            groups.setdefault((cell.backend, cell.ranks), []).append(cell)
    made = (ring(group, "over all sizes") for group in groups.values())
    return tuple(fit for fit in made if fit is not None)


def in_fit(cell: CollectiveCell) -> bool:
    """Whether a cell is one that constants are fitted to: alone, of all ranks, not held out."""
    return not (cell.load or cell.held_out) and cell.group == "all" and cell.bytes > 0


def ring(cells: Sequence[CollectiveCell], note: str) -> CollectiveFit | None:
    """The ring formula fitted to cells of one backend; None where they do not tell its constants.

    Their ranks are on one machine, so that its links are all there is.
    """
    points = [Point((cell.ranks,), cell.bytes, cell.seconds.value) for cell in cells]
    try:
        fitted = collective_fit.fit(points)
    except ValueError:
        return None

    def constant(name: str, value: float) -> Quantity:
        low, high = (ends.get(name) for ends in (fitted.low, fitted.high))
        return Quantity(
            value=short(value), kind="fitted", n=len(points), note="interval by the residuals",
            low=None if low is None else short(low), high=None if high is None else short(high),
        )  # fmt: skip

    sizes = [cell.bytes for cell in cells]
    return CollectiveFit(
        backend=cells[0].backend,
        ranks=tuple(sorted({cell.ranks for cell in cells})),
        smallest=min(sizes),
        largest=max(sizes),
        alpha=constant("alpha", fitted.alpha),
        bandwidth=constant("bandwidth", fitted.bandwidth),
        residuals=tuple(
            Residual(ranks=cell.ranks, bytes=cell.bytes, error=short(error))
            for cell, error in zip(cells, fitted.residuals(points), strict=True)
        ),
        note=note,
    )


def transfers(samples: Samples) -> tuple[TransferCell, ...]:
    """The server at each size."""
    cells = sorted((c for c in samples.cells if c.part == "server"), key=lambda c: c.bytes)
    return tuple(_transfer(cell, samples.of(cell)) for cell in cells)


def _transfer(cell: Cell, visits: Sequence[Visit]) -> TransferCell:
    push, service, pull = (
        told(medians(visits, name), "median of each visit, then over visits",
             sum(len(v.samples[name]) for v in visits))
        for name in ("push", "service", "pull")
    )  # fmt: skip
    return TransferCell(bytes=cell.bytes, push=push, service=service, pull=pull)


def overlap(visit: Visit) -> float:
    """Of one visit: 1 - (together - compute) / (apart - compute), medians; below 0 it costs.

    NaN where the flat all-reduce took no time, so that there was nothing to hide.
    """
    compute, together, apart = (
        float(np.median(visit.samples[name])) for name in ("compute", "together", "apart")
    )
    return 1 - (together - compute) / (apart - compute) if apart > compute else math.nan


def overlaps(samples: Samples) -> tuple[OverlapCell, ...]:
    """The share of an all-reduce that backward hides, as the visits that can tell have it."""
    found = []
    for cell in samples.cells:
        visits = samples.of(cell) if cell.part == "overlap" else ()
        shares = [share for v in visits if not math.isnan(share := overlap(v))]
        if shares:
            note = "1 - (together - compute) / (apart - compute), medians of each visit"
            size = max(int(v.facts.get("bytes", 0)) for v in visits)
            found.append(
                OverlapCell(
                    backend=cell.backend,
                    ranks=cell.ranks,
                    precision=cell.precision,
                    batch=cell.batch,
                    bytes=size,
                    overlap=told(
                        over_visits(shares, relative=False), note,
                        sum(len(v.samples["together"]) for v in visits),
                    ),
                )
            )  # fmt: skip
    return tuple(found)


def between(sizes: Sequence[int], seconds: Sequence[float], size: float) -> float:
    """Seconds at a size, on straight lines between (log bytes, log seconds).

    The outer lines are prolonged.  Sizes increase; there are two at least.

    >>> round(between([1000, 100_000], [1.0, 10.0], 10_000), 6)
    3.162278
    """
    x, y = np.log(sizes), np.log(seconds)
    k = int(np.clip(np.searchsorted(x, math.log(size)) - 1, 0, len(x) - 2))
    slope = (y[k + 1] - y[k]) / (x[k + 1] - x[k])
    return float(np.exp(y[k] + slope * (math.log(size) - x[k])))


def predictions(cells: Sequence[CollectiveCell]) -> list[Prediction]:
    """What sizes beside them say of those left out, alone and with no more ranks than cores."""
    found = []
    for cell in cells:
        if not cell.held_out or cell.load or cell.oversubscribed:
            continue
        alike = [
            c
            for c in cells
            if (c.backend, c.ranks, c.group) == (cell.backend, cell.ranks, cell.group)
            and not (c.held_out or c.load)
        ]
        if len(alike) > 1:
            predicted = between(
                [c.bytes for c in alike], [c.seconds.value for c in alike], cell.bytes
            )
            found.append(Prediction(_place(cell), cell.seconds, predicted))
    return found


def _place(cell: CollectiveCell) -> Cell:
    return Cell(
        "allreduce", backend=cell.backend, ranks=cell.ranks, bytes=cell.bytes, group=cell.group
    )
