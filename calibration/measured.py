"""The numbers in a profile, each with the name of its cell, as calibration itself names cells.

Where a profile does not say a coordinate (the backend of all-reduces beside a load, batches where
it was made by hand) the name is without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simstrag.calibration.cells import Cell
from simstrag.profile.measurements import Response
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import Part, Quantity

__all__ = ["CONSTANTS", "Measured", "beside", "measured"]

CONSTANTS = {
    "step": {
        "compute": "s", "host_share": "", "amp_ratio": "", "amp_ratio_contended": "",
        "amp_switch": "s",
    },
    "allreduce": {
        "alpha": "s", "bandwidth": "B/s", "bytes": "B", "overlap": "", "intra_alpha": "s",
        "intra_bandwidth": "B/s",
    },
    "server": {"service": "s", "push": "s", "pull": "s"},
}  # fmt: skip
"""Units of what a simulation reads; "" is a ratio or a share."""


class Measured(NamedTuple):
    """Which number it is. part: as in `calibration.cells.PARTS`, `amp` or `constant`.

    unit: "" for a ratio or a share.
    """

    part: str
    cell: str
    name: str
    unit: str

    @property
    def key(self) -> tuple[str, str]:
        """What it has in common with the same number of another profile."""
        return self.cell, self.name


def beside(response: Response, level: float) -> Cell:
    """The cell of one level of a response.

    >>> levels = [{"level": 0.5, "slowdown": {"value": 1.0, "kind": "measured"}}]
    >>> of = {"resource": "gpu", "load": "cpu", "law": "none", "levels": levels}
    >>> steps = Response.model_validate({**of, "precision": "fp32", "batch": 8})
    >>> str(beside(steps, 0.5))
    'contention fp32 batch 8 beside cpu 0.5'
    >>> str(beside(Response.model_validate({**of, "ranks": 2, "bytes": 1024}), 0.5))
    'allreduce 2 ranks 1024 B beside cpu 0.5'
    """
    return Cell(
        "contention" if response.precision else "allreduce", precision=response.precision,
        batch=response.batch or 0, load=response.load, level=level, ranks=response.ranks or 0,
        bytes=response.bytes or 0,
    )  # fmt: skip


def measured(profile: Profile) -> Iterator[tuple[Measured, Quantity]]:
    """All of them: cells first, then the constants, which are made of cells."""
    for step in profile.cells:
        cell = Cell("step", precision=step.precision, batch=step.batch)
        yield _of(cell, "median", "s"), step.seconds
    for response in profile.responses:
        for at in response.levels:
            name = f"slowdown of {response.resource}"
            loaded = str(beside(response, at.level))
            yield Measured("contention", loaded, name, ""), at.slowdown
    for each in profile.collectives:
        cell = Cell(
            "allreduce", load=each.load, level=each.level, backend=each.backend, ranks=each.ranks,
            bytes=each.bytes, group=each.group,
        )  # fmt: skip
        yield _of(cell, "median", "s"), each.seconds
    yield from _rest(profile)
    for part, units in CONSTANTS.items():
        yield from _constants(part, getattr(profile, part), units)


def _rest(profile: Profile) -> Iterator[tuple[Measured, Quantity]]:
    for transfer in profile.transfers:
        cell = Cell("server", ranks=transfer.ranks or 0, bytes=transfer.bytes)
        for name in ("push", "service", "pull"):
            yield _of(cell, name, "s"), getattr(transfer, name)
        yield from _slowdown(cell, transfer.slowdown)
    for together in profile.locksteps:
        cell = Cell(
            "lockstep", precision=together.precision, batch=together.batch, ranks=together.ranks,
            bytes=together.bytes, load=together.load, level=together.level,
        )  # fmt: skip
        yield _of(cell, "rest", "s"), together.rest
        yield from _slowdown(cell, together.slowdown)
        if together.interference is not None:
            yield _of(cell, "interference", ""), together.interference
    for each in profile.overlaps:
        cell = Cell(
            "overlap", precision=each.precision, batch=each.batch, backend=each.backend,
            ranks=each.ranks, bytes=each.bytes,
        )  # fmt: skip
        yield _of(cell, "overlap", ""), each.overlap
    for at in profile.learning:
        cell = Cell("gradient", batch=at.batch or 0)
        name = f"scale after {at.trained} samples"
        yield _of(cell, name, "samples"), at.scale
    for gain in profile.amp_ratios:
        words = (f"{gain.model} {gain.full} over {gain.amp}", gain.device)
        batch = "" if gain.batch is None else f"batch {gain.batch}"
        named = " ".join(filter(None, (*words, batch)))
        yield Measured("amp", f"amp {named}", "ratio", ""), gain.ratio


def _slowdown(cell: Cell, found: Quantity | None) -> Iterator[tuple[Measured, Quantity]]:
    if found is not None:
        yield _of(cell, "slowdown", ""), found


def _of(cell: Cell, name: str, unit: str) -> Measured:
    return Measured(cell.part, str(cell), name, unit)


def _constants(
    part: str, times: Part | None, units: dict[str, str]
) -> Iterator[tuple[Measured, Quantity]]:
    for name, unit in units.items():
        quantity = getattr(times, name, None)
        if quantity is not None:
            yield Measured("constant", f"{part}.{name}", "value", unit), quantity
