"""Does a profile still hold here? Measures a few of its cells again and puts both side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simstrag.calibration.calibrate import Asked, Calibration
from simstrag.calibration.campaign import OnVisit
from simstrag.calibration.cells import Cell
from simstrag.calibration.comparing import Pair, SideBySide, compare, half_width
from simstrag.errors import InputError
from simstrag.profile.profile import Profile

__all__ = ["NEAR", "Checked", "cells_to_check", "check"]

NEAR = 0.05
"""A cell that is no farther off than this holds, however narrow both intervals are."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was measured again (b) beside the profile (a)."""

    sides: SideBySide

    @property
    def off(self) -> tuple[Pair, ...]:
        """The cells that differ by more than their errors and by more than `NEAR`."""
        judged = self.sides.judged
        return tuple(p for p in judged if not p.agrees and abs(p.ratio - 1) > NEAR)

    @property
    def holds(self) -> bool:
        """Whether every cell that could be judged does."""
        return bool(self.sides.judged) and not self.off

    @property
    def text(self) -> str:
        """The verdict in a few sentences."""
        profile, judged = self.sides.a, self.sides.judged
        where = "" if self.sides.same_device else " This is another device than the profile's."
        if not judged:
            return f"{profile.name}: no cell could be judged; give more --minutes.{where}"
        rule = f"within errors or {NEAR:.0%}"
        sure = (
            f" They are now known to {half_width([p.b for p in judged]):.1%} to either side in "
            "the median: the wider that is, the easier they agree."
        )
        if self.holds:
            found = f"{len(judged)} numbers measured again, all {rule}"
            return f"{profile.name} holds here: {found}.{sure}"
        worst = max(self.off, key=lambda p: abs(p.ratio - 1))
        return (
            f"{profile.name} does not hold here: {len(self.off)} of {len(judged)} numbers measured "
            f"again are not {rule}; {worst.number.cell} ({worst.number.name}) is "
            f"{worst.ratio:.3g} times the profile's.{sure}{where} Calibrate again."
        )


def check(
    profile: Profile, minutes: float = 2.0, device: str | None = None,
    on_visit: OnVisit | None = None,
) -> Checked:  # fmt: skip
    """Measure the cells of `cells_to_check` again; nothing is written.

    Raises `InputError` for a profile that was not measured by `simstrag calibrate`, or whose
    workload or device is not here.
    """
    workload = profile.workload
    if workload is None or not profile.cells or profile.origin != "measured":
        raise InputError(
            f"the profile {profile.name} was not measured by simstrag calibrate: nothing in it "
            "could be measured again"
        )
    cells = cells_to_check(profile)
    batches = {cell.batch for cell in cells if cell.batch}
    with tempfile.TemporaryDirectory() as folder:
        asked = Asked(
            workload.name,
            device or str(profile.device.get("kind", "cpu")),
            tuple(dict.fromkeys(cell.part for cell in cells)),
            tuple(sorted(batches)),
            (workload.full, workload.amp),
            minutes,
        )
        again = Calibration.of(asked, Path(folder) / "again", workload.batch, cells)
        return Checked(compare(profile, again.run(on_visit)))


def cells_to_check(profile: Profile) -> frozenset[Cell]:
    """Steps at the nominal batch in both precisions and at the largest in full, the first level of
    each load from 1 on, messages of the gradient's size, and ranks in lockstep without load."""
    return frozenset(_cells(profile))


def _cells(profile: Profile) -> Iterator[Cell]:
    workload = profile.workload
    assert workload is not None
    timed = {(cell.precision, cell.batch) for cell in profile.cells}
    largest = max(batch for precision, batch in timed if precision == workload.full)
    for precision, batch in (
        (workload.full, workload.batch), (workload.amp, workload.batch), (workload.full, largest),
    ):  # fmt: skip
        if (precision, batch) in timed:
            yield Cell("step", precision=precision, batch=batch)
    for response in profile.responses:
        if response.precision == workload.full:
            level = min((each.level for each in response.levels if each.level >= 1), default=0.0)
            if level:
                yield Cell(
                    "contention", precision=response.precision,
                    batch=response.batch or workload.batch, load=response.load, level=level,
                )  # fmt: skip
    gradient = int(profile.allreduce.bytes.value) if profile.allreduce is not None else 0
    for each in profile.collectives:
        alone = each.group == "all" and not each.load and not each.oversubscribed
        if each.bytes == gradient and alone:
            yield Cell(
                "allreduce", backend=each.backend, ranks=each.ranks, bytes=gradient, group="all"
            )
    for together in profile.locksteps:
        if not together.load:
            yield Cell(
                "lockstep", precision=together.precision, batch=together.batch,
                ranks=together.ranks, bytes=together.bytes,
            )  # fmt: skip
    for transfer in profile.transfers:
        if transfer.bytes == gradient:
            served = (workload.full, workload.batch) if transfer.ranks else ("", 0)
            yield Cell(
                "server", precision=served[0], batch=served[1], ranks=transfer.ranks or 0,
                bytes=gradient,
            )  # fmt: skip
