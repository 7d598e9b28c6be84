"""Checks whether a profile still holds here: measures a few of its cells again and compares."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from simstrag.calibration.calibrate import Calibration
from simstrag.calibration.cells import PARTS, MeasurementCell
from simstrag.calibration.compare import ComparedNumber, SideBySide, compare, median_half_width
from simstrag.calibration.fits.contention_estimates import cell_of_level
from simstrag.calibration.measurement_rounds import OnVisit
from simstrag.calibration.plan import CalibrationRequest
from simstrag.errors import InputError
from simstrag.profile.profile import Profile

NEAR = 0.05
"""A cell holds if it differs by at most this, however narrow both intervals are."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The new measurements (b) beside the profile (a)."""

    sides: SideBySide

    @property
    def off(self) -> tuple[ComparedNumber, ...]:
        """The numbers that differ by more than their errors and by more than `NEAR`."""
        judged = self.sides.judged
        return tuple(p for p in judged if not p.agrees and abs(p.ratio - 1) > NEAR)

    @property
    def holds(self) -> bool:
        """Whether at least one number could be judged, and none is off."""
        return bool(self.sides.judged) and not self.off

    @property
    def text(self) -> str:
        """The verdict in a few sentences."""
        profile, judged = self.sides.a, self.sides.judged
        where = "" if self.sides.same_device else " This is another device than the profile's."
        if not judged:
            return f"{profile.name}: no cell could be judged; give more --minutes.{where}"
        rule = f"within errors or {NEAR:.0%}"
        width = (
            f" The median half-width of their new intervals is "
            f"{median_half_width([p.b for p in judged]):.1%}: the wider it is, the easier they "
            "agree."
        )
        if self.holds:
            return (
                f"{profile.name} holds here: {len(judged)} numbers measured again, all {rule}."
                f"{width}"
            )
        worst = max(self.off, key=lambda p: abs(p.ratio - 1))
        return (
            f"{profile.name} does not hold here: {len(self.off)} of {len(judged)} numbers measured "
            f"again are not {rule}; {worst.number.cell} ({worst.number.name}) is "
            f"{worst.ratio:.3g} times the profile's.{width}{where} Calibrate again."
        )


def check(
    profile: Profile, minutes: float = 2.0, device: str | None = None,
    on_visit: OnVisit | None = None,
) -> CheckResult:  # fmt: skip
    """Measure the cells of `cells_to_check` again, and keep nothing.

    Raises `InputError` if `simstrag calibrate` did not measure the profile, or if its workload or
    device is missing here.
    """
    workload = profile.workload
    if workload is None or not profile.cells or profile.origin != "measured":
        raise InputError(
            f"the profile {profile.name} was not measured by simstrag calibrate, so nothing in it "
            "can be measured again; give a profile that simstrag calibrate wrote"
        )
    cells = cells_to_check(profile)
    with tempfile.TemporaryDirectory() as folder:
        request = CalibrationRequest(
            workload.name,
            device or str(profile.device.get("kind", "cpu")),
            tuple(dict.fromkeys(cell.part for cell in cells if cell.part in PARTS)),
            tuple(sorted({cell.batch for cell in cells if cell.batch})),
            (workload.full, workload.amp),
            minutes,
        )
        again = Calibration(request, Path(folder) / "again", workload.batch, cells)
        return CheckResult(compare(profile, again.run(on_visit)))


def cells_to_check(profile: Profile) -> frozenset[MeasurementCell]:
    """The cells that a check measures again.

    They are steps at the nominal batch in both precisions and at the largest batch in full
    precision, with their kernels on a GPU, the first level of each load from 1 on, messages of the
    gradient's size, and ranks in lockstep without load.
    """
    workload = profile.workload
    assert workload is not None
    cells = set()
    timed = {(cell.precision, cell.batch) for cell in profile.cells}
    largest = max(batch for precision, batch in timed if precision == workload.full)
    for precision, batch in (
        (workload.full, workload.batch), (workload.amp, workload.batch), (workload.full, largest),
    ):  # fmt: skip
        if (precision, batch) in timed:
            cells.add(MeasurementCell("step", precision=precision, batch=batch))
            if profile.step is not None and profile.step.streams is not None:
                cells.add(MeasurementCell("anatomy", precision=precision, batch=batch))
    for response in profile.responses:
        if response.precision == workload.full:
            level = min((each.level for each in response.levels if each.level >= 1), default=0.0)
            if level:
                cell = cell_of_level(response, level)
                cells.add(replace(cell, batch=cell.batch or workload.batch))
    gradient = int(profile.allreduce.bytes.value) if profile.allreduce is not None else 0
    for each in profile.collectives:
        alone = each.group == "all" and not each.load and not each.oversubscribed
        if each.bytes == gradient and alone:
            cells.add(MeasurementCell.of("allreduce", each))
    for lockstep in profile.locksteps:
        if not lockstep.load:
            cells.add(MeasurementCell.of("lockstep", lockstep))
    for transfer in profile.transfers:
        if transfer.bytes == gradient:
            cell = MeasurementCell.of("server", transfer)
            if transfer.ranks:
                cell = replace(cell, precision=workload.full, batch=workload.batch)
            cells.add(cell)
    return frozenset(cells)
