"""Makes a profile of the samples: same samples, same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simstrag.calibration import collective_cells, contended, step_cells
from simstrag.calibration.cells import Cell
from simstrag.calibration.held_out import account
from simstrag.calibration.noise_scale import learning
from simstrag.calibration.samples import Samples
from simstrag.calibration.sections import allreduce_times, server_times, step_times
from simstrag.measurements import Response, SkippedCell
from simstrag.profile import Profile, Workload

__all__ = ["assemble"]

NOTE = (
    "Fits and the constants made of them never saw the cells that are held out, so that the errors "
    "stated are theirs; a constant that is a measured cell's is that cell's."
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
        account("contention", contended.predictions(responses, _cell_of(workload)), OF_LOADS),
        account("allreduce", collective_cells.predictions(reduced), OF_SIZES),
    )
    return Profile(
        name=header["name"],
        note=NOTE,
        missing=tuple(_missing(samples)),
        date=header["date"],
        command=header["command"],
        commit=header.get("commit") or "",
        device=header["device"],
        software=header["software"],
        workload=workload,
        step=step_times(samples, cells, workload),
        allreduce=allreduce_times(reduced, overlaps, gradient),
        server=server_times(transfers, gradient),
        cells=cells,
        batches=fits,
        responses=responses,
        collectives=reduced,
        collective_fits=collective_cells.collective_fits(reduced),
        transfers=transfers,
        overlaps=overlaps,
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
OF_SIZES = "all-reduces of 1 MiB and more that no line saw, alone, no more ranks than cores"

PARTS = {
    "contention": "responses to contention",
    "allreduce": "all-reduce",
    "overlap": "overlap of all-reduce and backward",
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


def _cell_of(workload: Workload) -> Any:
    """The cell of a response's level."""

    def cell(response: Response, level: float) -> Cell:
        if not response.precision:
            return Cell("allreduce", load=response.load, level=level)
        return Cell(
            "contention", precision=response.precision, batch=workload.batch,
            load=response.load, level=level,
        )  # fmt: skip

    return cell


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
