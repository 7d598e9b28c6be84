"""Makes a profile of the samples: same samples, same bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from simstrag.calibration.cells import Cell
from simstrag.calibration.fits import collective_cells, contended, step_cells
from simstrag.calibration.fits.held_out import account
from simstrag.calibration.fits.medians import short
from simstrag.calibration.fits.noise_scale import learning
from simstrag.calibration.fits.sections import allreduce_times, server_times, step_times
from simstrag.calibration.fits.trained_cells import locksteps
from simstrag.calibration.samples import Samples
from simstrag.profile.measurements import SkippedCell
from simstrag.profile.profile import Profile, Workload

__all__ = ["assemble"]

NOTE = (
    "Fits and the constants made of them never saw the cells that are held out. Steps and "
    "slowdowns held out are predicted by the fits of this profile; an all-reduce held out by a "
    "ring fitted to the sizes around it, as the constants of allreduce are fitted around the "
    "gradient's size: the error stated is that of such fits, each at its own size. A constant that "
    "is a measured cell's is that cell's."
)


def assemble(samples: Samples, files: Mapping[str, str] | None = None) -> Profile:
    """The profile of what was measured; nothing but the samples and their header is looked at.

    files: name to SHA-256 of the file that the samples are kept in.
    """
    header = samples.header
    workload = _workload(header["workload"])
    left_out = frozenset(Cell(**cell) for cell in header["plan"].get("held_out", ()))
    gradient = int(header["workload"].get("gradient_bytes") or 0)
    cells = step_cells.step_cells(samples, left_out)
    fits = step_cells.batch_fits(samples, left_out)
    reduced = collective_cells.collective_cells(samples, left_out)
    ranks = max((c.ranks for c in reduced if not c.oversubscribed), default=0)
    responses = contended.responses(samples, left_out, ranks)
    overlaps, transfers = collective_cells.overlaps(samples), collective_cells.transfers(samples)
    scales, untold = learning(samples)
    accounts = (
        account("step", step_cells.predictions(cells, fits), OF_STEPS),
        account("contention", contended.predictions(responses), OF_LOADS),
        collective_cells.at_sizes_left_out(reduced),
    )
    return Profile(
        name=header["name"],
        note=NOTE,
        missing=tuple(_missing(samples)),
        date=header["date"],
        command=header["command"],
        commit=header.get("commit") or "",
        device=header["device"],
        conditions=_conditions(samples),
        software=header["software"],
        workload=workload,
        step=step_times(samples, cells, workload),
        allreduce=allreduce_times(samples, reduced, overlaps, gradient),
        server=server_times(transfers, gradient),
        cells=cells,
        batches=fits,
        responses=responses,
        collectives=reduced,
        collective_fits=collective_cells.collective_fits(samples, reduced),
        transfers=transfers,
        overlaps=overlaps,
        locksteps=locksteps(samples),
        learning=scales,
        held_out=tuple(each for each in accounts if each is not None),
        skipped=(*_skipped(samples), *untold),
        samples=dict(files or {}),
    )


OF_STEPS = "median step at batches that no fit against the batch saw"
OF_LOADS = (
    "slowdown of a step, or an all-reduce, at levels that no law saw: a step beside the load over "
    "one without in the same visit, so that its error is that of the step's time"
)

PARTS = {
    "contention": "responses to contention",
    "allreduce": "all-reduce",
    "overlap": "overlap of all-reduce and backward",
    "lockstep": "steps of ranks in lockstep",
    "server": "parameter server",
    "gradient": "gradient noise scale",
}
"""What a profile lacks where a part was not measured."""


def _workload(given: Mapping[str, Any]) -> Workload:
    return Workload(
        name=given["name"],
        parameters=given["parameters"],
        batch=given["nominal_batch"],
        full=given["full"],
        amp=given["amp"],
        stand_in=given["stand_in"],
    )


def _conditions(samples: Samples) -> dict[str, tuple[float, float]]:
    """Least and most of each clock, temperature and power that visits saw."""
    seen: dict[str, list[float]] = {}
    for visit in samples.visits:
        for name, value in (visit.facts.get("state") or {}).items():
            if math.isfinite(value):
                seen.setdefault(name, []).append(value)
    return {name: (short(min(values)), short(max(values))) for name, values in seen.items()}


def _missing(samples: Samples) -> Iterator[str]:
    there = {cell.part for cell in samples.cells}
    yield from (words for part, words in PARTS.items() if part not in there)
    yield "cost of a change of precision"
    yield "c_tau, what a stale gradient costs"


def _skipped(samples: Samples) -> Iterator[SkippedCell]:
    seen: set[Cell] = set()
    for visit in samples.visits:
        if visit.skipped and visit.cell not in seen:
            seen.add(visit.cell)
            yield SkippedCell(cell=str(visit.cell), reason=visit.skipped)
