"""What a calibration measures: its request, the cells with the time they take, and a forecast.

>>> request = CalibrationRequest(
...     "mlp", "cpu", parts=("step",), precisions=("fp64", "fp32_of_fp64"), minutes=2
... )
>>> CalibrationPlan(request).forecast().cells
{'step': 10}
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import NamedTuple

from simstrag.calibration import samples as files
from simstrag.calibration.benches.bench import Bench
from simstrag.calibration.benches.bench_selection import build_benches
from simstrag.calibration.benches.gradient_norms import GradientBench
from simstrag.calibration.benches.machine_state import slug
from simstrag.calibration.benches.measured_device import find_device
from simstrag.calibration.benches.power import PowerBench
from simstrag.calibration.benches.training_jobs import Jobs
from simstrag.calibration.benches.visit_forecast import (
    filling_batch,
    probe,
    require_compiler,
)
from simstrag.calibration.cell_choice import SLACK, describe, leave_out, order, starting, total
from simstrag.calibration.cells import PARTS, MeasurementCell, Part
from simstrag.calibration.fits.held_out import choose_held_out
from simstrag.calibration.measurement_rounds import (
    FEWEST,
    FEWEST_ON_GPU,
    TARGET,
    CampaignLimits,
)
from simstrag.documents.file_io import refuse_file
from simstrag.documents.printable import shell_command
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.processes.children import require_posix
from simstrag.workloads import Precisions, available_precisions, choose_precisions, load
from simstrag.workloads.device import describe_device

DEFAULT_MINUTES = 10

DEFAULT_WORKLOAD = {"cpu": "mlp", "cuda": "resnet50"}

OPTIONS = {"parts": "part", "batches": "batch", "precisions": "precision"}
"""Command-line names of fields of `CalibrationRequest`, where they differ."""


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """The quantities to measure, and on what; defaults depend on the device.

    workload: a name, or module:function.
    device: "cpu" or "cuda".
    parts: names of `PARTS`; all by default.
    batches: samples of a step, the middle one nominal.
    precisions: full and reduced, and no others.
    minutes: limit of the whole; by default ten, or more where the fewest rounds take more.
    seed: determines the order of the visits.
    compile: whether `torch.compile` compiles the model.
    """

    workload: str | None = None
    device: str | None = None
    parts: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    minutes: float | None = None
    seed: int = 0
    compile: bool = False

    def command(self, folder: Path) -> str:
        """The command line of this request.

        >>> CalibrationRequest("mlp", parts=("step",), minutes=5).command(Path("there"))
        'simstrag calibrate --workload mlp --part step --minutes 5 --seed 0 --out there'
        """
        words = ["simstrag", "calibrate"]
        for name, value in asdict(self).items():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, bool):
                    words += [f"--{name}"] * each
                elif each is not None:
                    shown = f"{each:g}" if isinstance(each, float) else str(each)
                    words += [f"--{OPTIONS.get(name, name)}", shown]
        return shell_command([*words, "--out", folder.name])


class Forecast(NamedTuple):
    """The plan of a calibration.

    cells: number of cells of each part.
    rounds: seconds of one round, of each part.
    least: seconds of the fewest rounds.
    most: the limit in seconds; rounds continue up to it where intervals are wide.
    held_out: number of cells that no fit sees.
    left_out: what is left out for want of minutes, in words; empty for nothing.
    """

    workload: str
    device: str
    precisions: tuple[str, str]
    cells: dict[str, int]
    rounds: dict[str, float]
    least: float
    most: float
    held_out: int
    left_out: str = ""


class CalibrationPlan:
    """The plan of one calibration in its folder.

    folder: folder of samples and profile; profiles/<device>-<workload> by default.
    nominal: one of the requested batches, the middle one by default.
    only: the cells to measure; all by default.

    Raises `InputError` for an unknown part, device, workload or precision, `SimstragError` on
    Windows.
    """

    def __init__(
        self,
        request: CalibrationRequest,
        folder: str | Path | None = None,
        nominal: int = 0,
        only: Collection[MeasurementCell] = (),
    ) -> None:
        require_posix("a calibration")
        for part in request.parts:
            if part not in PARTS:
                known = ", ".join(PARTS)
                raise InputError(f"there is no part '{part}'{nearest(part, PARTS)}; known: {known}")
        minutes = request.minutes
        if minutes is not None and not isinstance(minutes, Real):
            raise InputError(f"minutes {minutes!r}: give a number, such as 10")
        device = find_device(request.device or "")
        workload = load(
            request.workload or DEFAULT_WORKLOAD["cpu" if device.name == "cpu" else "cuda"]
        )
        if request.batches:
            workload = workload.with_batches(request.batches, nominal)
        else:
            workload = workload.fill(device.name)
        for each in request.precisions:
            if each not in (available := available_precisions(device.name)):
                listed = ", ".join(available)
                raise InputError(
                    f"there is no precision '{each}' on {device.name}{nearest(each, available)}; "
                    f"known: {listed}"
                )
        if request.precisions and len(request.precisions) != 2:
            raise InputError("give two precisions, full and reduced, or none")
        name = f"{slug(describe_device(device.name))}-{workload.name.replace(':', '-')}"
        self.request, self.workload, self.device, self.only = request, workload, device, only
        self.folder = Path(folder or Path("profiles") / name)
        refuse_file(self.folder)
        self.parts: tuple[Part, ...] = tuple(p for p in PARTS if p in (request.parts or PARTS))
        self.jobs = Jobs(workload, device, request.compile)

    @cached_property
    def precisions(self) -> Precisions:
        """The nominal pair: as in the folder's samples, else as requested, else probed."""
        path = files.find(self.folder)
        if path is not None:
            w = files.read(path).header["workload"]
            return Precisions(w["full"], w["amp"], w["stand_in"], w["probed_gain"] or float("nan"))
        if self.request.precisions:
            full, amp = self.request.precisions
            return Precisions(full, amp, full == "fp64", float("nan"))
        with self.device.on_core():
            return choose_precisions(self.workload, self.device.name)

    @cached_property
    def parameters(self) -> tuple[int, int]:
        """Number of the model's parameters, and bytes of its gradient."""
        job = self.jobs.of(self.precisions.full)
        return job.parameters, job.parameters * job.dtype.itemsize

    @cached_property
    def benches(self) -> list[Bench]:
        """The benches, not started.

        Raises `InputError` if this workload has no cell of a requested part.
        """
        import torch

        if self.request.compile:
            require_compiler(self.jobs, self.precisions.full)
        self._settle_nominal()
        gpus = 0 if self.device.name == "cpu" else torch.cuda.device_count()
        forecast = None
        if gpus and not {*self.parts}.isdisjoint(("step", "contention", "power")):
            timed = available_precisions(self.device.name) if "step" in self.parts else ()
            pair = self.precisions.full, self.precisions.amp
            wanted = self.request.precisions or dict.fromkeys((*pair, *timed))
            forecast = probe(self.jobs, wanted)
        benches = build_benches(
            self.jobs, self.precisions, self.parameters[1], gpus, self.parts, forecast
        )
        for bench in benches:
            without = bench.why_not if isinstance(bench, GradientBench | PowerBench) else ""
            if without and self.request.parts:
                raise InputError(without)
        if "lockstep" in self.request.parts and not any(
            cell.part == "lockstep" for bench in benches for cell in bench.cells
        ):
            raise InputError(
                "--part lockstep: ranks train on the CPU, in fp32 or the stand-in's fp64; give "
                "--device cpu, or leave it out"
            )
        return benches

    def _settle_nominal(self) -> None:
        """Take the nominal batch of the folder's samples, or on a GPU the smallest that fills it.

        The requested batches have their own.
        """
        path = files.find(self.folder)
        if path is not None:
            nominal = files.read(path).header["workload"]["nominal_batch"]
        elif self.request.batches or self.device.name == "cpu":
            return
        else:
            nominal = filling_batch(self.jobs, self.precisions.full)
        if nominal in self.workload.batches:  # else the folder has another workload's samples
            self.workload = self.workload.with_batches(self.workload.batches, nominal)
            self.jobs.workload = self.workload

    @cached_property
    def minutes(self) -> float:
        """The limit of the whole: as requested, else ten or, if more, as the fewest rounds take."""
        if self.request.minutes is not None:
            return self.request.minutes
        slack = 1.0 if self.device.name == "cpu" else SLACK
        return float(max(DEFAULT_MINUTES, math.ceil(slack * self._least(self._wanted) / 60)))

    def _least(self, cells: Mapping[MeasurementCell, tuple[float, float]]) -> float:
        """Seconds of the fewest visits to cells."""
        more = 0.0 if self.device.name == "cpu" else starting(cells)
        return total(cells, self.fewest) + more

    @property
    def fewest(self) -> int:
        """Least visits to a cell."""
        return FEWEST if self.device.name == "cpu" else FEWEST_ON_GPU

    @cached_property
    def _wanted(self) -> dict[MeasurementCell, tuple[float, float]]:
        """The cells that the request wants, and the seconds of a first visit and of a later one."""
        return {
            cell: (bench.seconds(cell), bench.later(cell))
            for bench in self.benches for cell in bench.cells if self.is_wanted(cell)
        }  # fmt: skip

    @cached_property
    def left_out(self) -> list[MeasurementCell]:
        """Cells that are left out for want of minutes (`cell_choice`); of a folder as it began."""
        path = files.find(self.folder)
        if path is not None:
            kept = {MeasurementCell(**cell) for cell in files.read(path).header["plan"]["cells"]}
            return [cell for cell in self._wanted if cell not in kept]
        if self.request.minutes is None:
            return []
        return leave_out(
            self._wanted, 60 * self.minutes, self.fewest, self.groups_to_leave(self._wanted)
        )

    def groups_to_leave(self, cells: Iterable[MeasurementCell]) -> list[list[MeasurementCell]]:
        """Groups of cells to leave out for want of minutes, the first to go first."""
        if self.device.name == "cpu" or self.only:
            return []
        return order(cells, (self.precisions.full, self.precisions.amp), self.workload.nominal)

    @cached_property
    def planned(self) -> dict[MeasurementCell, tuple[float, float]]:
        """The cells to measure, with their seconds."""
        left = {*self.left_out}
        return {cell: seconds for cell, seconds in self._wanted.items() if cell not in left}

    def is_wanted(self, cell: MeasurementCell) -> bool:
        """Whether a cell is to be measured; a request for precisions excludes all others."""
        if self.only:
            return cell in self.only
        requested = self.request.precisions
        return not (requested and cell.precision) or cell.precision in requested

    def forecast(self) -> Forecast:
        """What the calibration will do.

        Raises `InputError` where the minutes do not suffice for the fewest rounds.
        """
        cells = self.planned
        rounds: defaultdict[str, float] = defaultdict(float)
        for cell, (_, later) in cells.items():
            rounds[cell.part] += later
        limits, least = self.limits(self.minutes), self._least(cells)
        limits.check(least, len(cells))
        return Forecast(
            self.workload.name, self.device.name, (self.precisions.full, self.precisions.amp),
            dict(Counter(cell.part for cell in cells)), dict(rounds),
            least, limits.seconds, len(choose_held_out(cells)), describe(self.left_out),
        )  # fmt: skip

    def limits(self, minutes: float) -> CampaignLimits:
        """The limits of so many minutes of the whole."""
        return CampaignLimits(
            60 * minutes, TARGET, self.request.seed, 60 * self.minutes, self.fewest
        )
