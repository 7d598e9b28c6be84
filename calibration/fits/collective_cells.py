"""All-reduces and transfers: what each cell's visits say, and what sizes left out should take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simstrag.calibration.cells import Cell, Visit
from simstrag.calibration.fits import collective_fit
from simstrag.calibration.fits.collective_fit import Point, around, between
from simstrag.calibration.fits.held_out import Prediction, account
from simstrag.calibration.fits.medians import Estimate, cut, over_visits, short, told
from simstrag.calibration.fits.step_cells import medians
from simstrag.calibration.fits.trained_cells import beside_others
from simstrag.calibration.samples import Samples
from simstrag.profile.measurements import (
    CollectiveCell,
    CollectiveFit,
    HeldOut,
    OverlapCell,
    Residual,
    TransferCell,
)
from simstrag.profile.quantity import Quantity

__all__ = [
    "at_sizes_left_out", "collective_cells", "collective_fits", "in_fit", "overlap", "overlaps",
    "ring", "transfers",
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


def collective_fits(samples: Samples, cells: Sequence[CollectiveCell]) -> tuple[CollectiveFit, ...]:
    """The ring formula for each backend and number of ranks, over all sizes that are in fits."""
    groups: dict[tuple[str, int], list[CollectiveCell]] = {}
    for cell in cells:
        if in_fit(cell):
            groups.setdefault((cell.backend, cell.ranks), []).append(cell)
    made = (ring(samples, group, "over all sizes") for group in groups.values())
    return tuple(fit for fit in made if fit is not None)


def in_fit(cell: CollectiveCell) -> bool:
    """Whether a cell is one that constants are fitted to: alone, of all ranks, not held out."""
    return not (cell.load or cell.held_out) and cell.group == "all" and cell.bytes > 0


def ring(samples: Samples, cells: Sequence[CollectiveCell], note: str) -> CollectiveFit | None:
    """The ring formula fitted to cells of one backend; None where they do not tell its constants.

    Their ranks are on one machine, so that its links are all there is.
    """
    points = [_point(cell) for cell in cells]
    estimates = [medians(samples.of(_place(cell))) for cell in cells]
    try:
        fitted = collective_fit.fit(points, estimates=estimates)
    except ValueError:
        return None
    how = _interval(estimates, fitted.freedom)

    def constant(name: str, value: float) -> Quantity:
        low, high = (ends.get(name) for ends in (fitted.low, fitted.high))
        at_0 = low is None and fitted.freedom
        return Quantity(
            value=short(value), kind="fitted", n=len(points),
            note="0 is the least it can be: no interval" if at_0 else how,
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
            if fitted.freedom
        ),
        note=note,
    )


def _interval(estimates: Sequence[Estimate], freedom: int) -> str:
    """How the interval of a constant was found; see `calibration.collective_fit`."""
    if not freedom:
        return "as many sizes as constants: nothing checks them, so no interval"
    if all(math.isfinite(e.error) for e in estimates):
        return (
            "interval: refits to draws within each cell's error, wider where residuals are larger"
        )
    return "interval by the residuals"


def transfers(samples: Samples) -> tuple[TransferCell, ...]:
    """The server at each size."""
    cells = sorted((c for c in samples.cells if c.part == "server"), key=lambda c: c.bytes)
    return tuple(_transfer(cell, samples.of(cell)) for cell in cells)


def _transfer(cell: Cell, visits: Sequence[Visit]) -> TransferCell:
    push, service, pull = (_part(visits, name) for name in ("push", "service", "pull"))
    return TransferCell(
        bytes=cell.bytes, ranks=cell.ranks or None, push=push, service=service, pull=pull,
        slowdown=beside_others(visits),
    )  # fmt: skip


def _part(visits: Sequence[Visit], name: str) -> Quantity:
    """One part of a transfer; where stamps make it 0 or less, with an error in seconds, and cut."""
    values = [float(np.median(v.samples[name])) for v in visits]
    found = over_visits(values, relative=min(values) > 0)
    note = "median of each visit, then over visits"
    return cut(told(found, note, sum(len(v.samples[name]) for v in visits)))


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


def at_sizes_left_out(cells: Sequence[CollectiveCell]) -> HeldOut | None:
    """The all-reduces left out, alone and with no more ranks than cores, as a simulation has them.

    Each is predicted as that of a gradient of its size would be: by a ring fitted to the sizes
    around it that are not left out.  How well lines between its neighbours would do, which nobody
    simulates, is in the note.
    """
    found, lines, untold = [], [], 0
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
            fitted = collective_fit.fit(around([_point(c) for c in seen], cell.bytes))
        except ValueError:
            untold += 1
            continue
        found.append(Prediction(_place(cell), cell.seconds, fitted.seconds(_point(cell))))
        beside = between([c.bytes for c in seen], [c.seconds.value for c in seen], cell.bytes)
        lines.append(abs(beside / cell.seconds.value - 1))
    if not found:
        return None
    left = f"; {untold} sizes around which no ring can be fitted are not among them"
    note = (
        f"{OF_SIZES}{left if untold else ''}. Lines between the sizes beside them, which no "
        f"simulation uses, would be off by {np.median(lines):.1%} in the median"
    )
    return account("allreduce", found, note)


OF_SIZES = (
    "all-reduces of 1 MiB and more, alone, no more ranks than cores: each by a ring fitted to the "
    "sizes around it that are not held out (within a factor of 4, three at least), as the "
    "constants of allreduce are fitted around the gradient's size"
)


def _point(cell: CollectiveCell) -> Point:
    return Point((cell.ranks,), cell.bytes, cell.seconds.value)


def _place(cell: CollectiveCell) -> Cell:
    return Cell(
        "allreduce", backend=cell.backend, ranks=cell.ranks, bytes=cell.bytes, group=cell.group
    )
