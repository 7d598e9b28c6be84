"""The numbers in a profile, each with the name of its cell, as calibration itself names cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simstrag.calibration.cells import Cell
from simstrag.profile import Profile
from simstrag.quantity import Part, Quantity

__all__ = ["Measured", "measured"]

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


def measured(profile: Profile) -> Iterator[tuple[Measured, Quantity]]:
    """All of them: cells first, then the constants, which are made of cells."""
    for step in profile.cells:
        cell = Cell("step", precision=step.precision, batch=step.batch)
        yield _of(cell, "median", "s"), step.seconds
    for response in profile.responses:
        for at in response.levels:
            cell = Cell(
                "contention", precision=response.precision, load=response.load, level=at.level
            )
            yield _of(cell, f"slowdown of {response.resource}", ""), at.slowdown
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
        cell = Cell("server", bytes=transfer.bytes)
        for name in ("push", "service", "pull"):
            yield _of(cell, name, "s"), getattr(transfer, name)
    for each in profile.overlaps:
        cell = Cell(
            "overlap", precision=each.precision, batch=each.batch, backend=each.backend,
            ranks=each.ranks, bytes=each.bytes,
        )  # fmt: skip
        yield _of(cell, "overlap", ""), each.overlap
    for at in profile.learning:
        number = Measured("gradient", f"gradient after {at.trained} samples", "scale", "samples")
        yield number, at.scale
    for gain in profile.amp_ratios:
        words = (f"{gain.model} {gain.full} over {gain.amp}", gain.device)
        batch = "" if gain.batch is None else f"batch {gain.batch}"
        named = " ".join(filter(None, (*words, batch)))
        yield Measured("amp", f"amp {named}", "ratio", ""), gain.ratio


def _of(cell: Cell, name: str, unit: str) -> Measured:
    return Measured(cell.part, str(cell), name, unit)


def _constants(
    part: str, times: Part | None, units: dict[str, str]
) -> Iterator[tuple[Measured, Quantity]]:
    for name, unit in units.items():
        quantity = getattr(times, name, None)
        if quantity is not None:
            yield Measured("constant", f"{part}.{name}", "value", unit), quantity
