"""Calibrates this machine: one device, one workload, one profile.

>>> asked = Asked("mlp", "cpu", parts=("step",), precisions=("fp64", "fp32_of_fp64"), minutes=2)
>>> Calibration.of(asked).forecast().cells
{'step': 10}
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from simstrag.calibration import samples as files
from simstrag.calibration.assemble import assemble
from simstrag.calibration.benches.device import Device, device
from simstrag.calibration.benches.equipment import equipped
from simstrag.calibration.benches.gradient import GradientBench
from simstrag.calibration.benches.machine import slug
from simstrag.calibration.benches.steps import Jobs
from simstrag.calibration.campaign import FEWEST, TARGET, Bounds, OnVisit, run
from simstrag.calibration.cells import PARTS, Bench, Cell, Part
from simstrag.calibration.fits.held_out import held_out
from simstrag.calibration.header import Asked, header_of, refuse_other
from simstrag.calibration.remarks import remarks
from simstrag.calibration.samples import Journal, Samples
from simstrag.documents.paths import write_whole
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.processes.affinity import keep_memory
from simstrag.profile.profile import Profile
from simstrag.workloads import Precisions, Workload, available_precisions, choose_precisions, load
from simstrag.workloads.device import describe_device

__all__ = ["Asked", "Calibration", "Forecast", "derive"]

PROFILE = "profile.json"


class Forecast(NamedTuple):
    """What is going to be measured: cells of each part, and seconds of one round and in all.

    least: seconds of the fewest rounds; more are made, up to the bound, where intervals are wide.
    """

    workload: str
    device: str
    precisions: tuple[str, str]
    cells: dict[str, int]
    rounds: dict[str, float]
    least: float
    most: float
    held_out: int


def derive(folder: str | Path) -> Profile:
    """Make the profile anew of a folder's samples, finished or not; nothing is written.

    Raises `InputError` where there are none.
    """
    path = Path(folder)
    return _profile(files.read(path), path)


class Calibration:
    """One calibration in its folder, asked for and not yet run; see `of`."""

    def __init__(
        self, asked: Asked, workload: Workload, place: Device, folder: Path, only: Collection[Cell]
    ) -> None:
        self.asked, self.workload, self.place, self.folder = asked, workload, place, folder
        self.only = only
        self.parts: tuple[Part, ...] = tuple(p for p in PARTS if p in (asked.parts or PARTS))
        self.jobs = Jobs(workload, place)
        self.journal = Journal(folder)

    @classmethod
    def of(
        cls,
        asked: Asked,
        folder: str | Path | None = None,
        nominal: int = 0,
        only: Collection[Cell] = (),
    ) -> Calibration:
        """Find device and workload. folder: profiles/<name> by default.

        nominal: one of the batches asked for, the middle one by default.  only: of all cells, if
        there are any, these.  Raises `InputError` for what there is not.
        """
        for part in asked.parts:
            if part not in PARTS:
                known = ", ".join(PARTS)
                raise InputError(f"there is no part '{part}'{nearest(part, PARTS)}; known: {known}")
        place = device(asked.device or "")
        kind = "cpu" if place.name == "cpu" else "cuda"
        workload = load(asked.workload or DEFAULT[kind])
        if asked.batches:
            workload = workload.with_batches(asked.batches, nominal)
        for each in asked.precisions:
            if each not in (known_here := available_precisions(place.name)):
                listed = ", ".join(known_here)
                raise InputError(
                    f"there is no precision '{each}' on {place.name}{nearest(each, known_here)}; "
                    f"known: {listed}"
                )
        if asked.precisions and len(asked.precisions) != 2:
            raise InputError("give two precisions, full and reduced, or none")
        name = f"{slug(describe_device(place.name))}-{workload.name.replace(':', '-')}"
        return cls(asked, workload, place, Path(folder or Path("profiles") / name), only)

    @cached_property
    def chosen(self) -> Precisions:
        """The nominal pair: of what was begun here, or asked for, or what suits the device."""
        begun = files.find(self.folder)
        if begun is not None:
            w = files.read(begun).header["workload"]
            return Precisions(w["full"], w["amp"], w["stand_in"], w["probed_gain"] or float("nan"))
        if self.asked.precisions:
            full, amp = self.asked.precisions
            return Precisions(full, amp, full == "fp64", float("nan"))
        with self.place.placed():
            return choose_precisions(self.workload, self.place.name)

    @cached_property
    def parameters(self) -> tuple[int, int]:
        """Of the model: how many, and the bytes of a gradient."""
        job = self.jobs.of(self.chosen.full)
        return job.parameters, job.parameters * job.dtype.itemsize

    @cached_property
    def benches(self) -> list[Bench]:
        """What measures, nothing of it started.

        Raises `InputError` for a part asked for by name that this workload has nothing of.
        """
        found = equipped(self.jobs, self.chosen, self.parameters[1], self.gpus, self.parts)
        for bench in found:
            if isinstance(bench, GradientBench) and bench.why and self.asked.parts:
                raise InputError(bench.why)
        if "lockstep" in self.asked.parts and not any(
            cell.part == "lockstep" for bench in found for cell in bench.cells
        ):
            raise InputError(
                "--part lockstep: ranks train on the CPU, in fp32 or the stand-in's fp64; give "
                "--device cpu, or leave it out"
            )
        return found

    @cached_property
    def minutes(self) -> float:
        """The bound of the whole: what was asked for, or ten, or what the fewest rounds take."""
        if self.asked.minutes is not None:
            return self.asked.minutes
        return float(max(USUAL, math.ceil(FEWEST * sum(self._round.values()) / 60)))

    @cached_property
    def _round(self) -> dict[Cell, float]:
        """What is to be measured, and the seconds of each in a round."""
        return {c: b.seconds(c) for b in self.benches for c in b.cells if self.wanted(c)}

    @property
    def gpus(self) -> int:
        """How many there are, 0 where steps run on the CPU."""
        import torch

        return 0 if self.place.name == "cpu" else torch.cuda.device_count()

    def wanted(self, cell: Cell) -> bool:
        """Whether a cell is to be measured: with precisions asked for, no others."""
        if self.only:
            return cell in self.only
        return not (self.asked.precisions and cell.precision) or (
            cell.precision in self.asked.precisions
        )

    def forecast(self) -> Forecast:
        """What `run` will do.

        Raises `InputError` where the minutes do not even suffice for the fewest rounds.
        """
        cells = self._round
        rounds: defaultdict[str, float] = defaultdict(float)
        for cell, seconds in cells.items():
            rounds[cell.part] += seconds
        bounds = self._bounds(self.minutes)
        bounds.check(sum(rounds.values()), len(cells))
        return Forecast(
            self.workload.name, self.place.name, (self.chosen.full, self.chosen.amp),
            dict(Counter(cell.part for cell in cells)), dict(rounds),
            FEWEST * sum(rounds.values()), bounds.seconds, len(held_out(cells)),
        )  # fmt: skip

    def run(self, on_visit: OnVisit | None = None, minutes: float | None = None) -> Profile:
        """Measure and write samples and `profile.json`; the profile.

        What was interrupted goes on, and so does what is finished where more minutes are asked for
        than it was given; else that is read.  minutes: after which to stop for now, of those asked
        for.  Raises `InputError` for what cannot be measured here, and for a folder with another
        calibration.
        """
        minutes = self.minutes if minutes is None else minutes
        begun, header = files.find(self.folder), self._header()
        kept = None if begun is None else files.read(begun)
        given = minutes
        if kept is not None:
            refuse_other(kept.header, header, self.folder)
            header, given = kept.header, max(minutes, kept.header["plan"]["minutes"])
        header = {**header, "plan": {**header["plan"], "minutes": given}}
        if not self._has(minutes):
            self.forecast()
            if begun != self.journal.path:
                self.journal.start(header, () if kept is None else kept.visits)
            planned = {Cell(**cell) for cell in header["plan"]["cells"]}
            with self.journal.held():
                found = run(
                    self.benches, self.journal, self._bounds(minutes), on_visit or _silent,
                    planned.__contains__,
                )  # fmt: skip
                begun = files.write(Samples(header, found.visits), self.folder)
        assert begun is not None
        profile = _profile(files.read(begun), begun)
        write_whole(self.folder / PROFILE, lambda path: path.write_text(profile.text))
        return Profile.read(self.folder / PROFILE)

    def check_kept(self) -> None:
        """Raises `InputError` where its folder has another calibration, or one of elsewhere."""
        begun = files.find(self.folder)
        if begun is not None:
            refuse_other(files.read(begun).header, self._header(), self.folder)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to measure in the minutes asked for."""
        return self._has(self.minutes)

    def _has(self, minutes: float) -> bool:
        found = files.find(self.folder)
        if found is None or found == self.journal.path:
            return False
        return bool(files.read(found).header["plan"]["minutes"] >= minutes)

    def remarks(self) -> list[str]:
        """What somebody who reads the profile should know of how it went, a line each."""
        return remarks(files.read(self.folder))

    @property
    def kept(self) -> str:
        """What an interruption leaves, in words."""
        if not self.journal.path.exists():
            return "nothing was written"
        count = len(self.journal.read().visits)
        return f"{count} visits are kept in {self.folder}; the same command goes on from there"

    def _bounds(self, minutes: float) -> Bounds:
        return Bounds(60 * minutes, TARGET, self.asked.seed)

    def _header(self) -> dict[str, Any]:
        cells = [c for b in self.benches for c in b.cells if self.wanted(c)]
        return header_of(
            replace(self.asked, minutes=self.minutes), self.folder, self.place.name,
            self.workload, self.chosen, *self.parameters, cells,
            () if self.only else held_out(cells), keep_memory(),
        )  # fmt: skip


USUAL = 10
"""Minutes, where none are given and the fewest rounds need no more."""

DEFAULT = {"cpu": "mlp", "cuda": "resnet50"}
"""The workload where none is named."""


def _silent(used: float, total: float, what: str) -> None:
    """Told nobody."""


def _profile(samples: Samples, path: Path) -> Profile:
    found = path if path.is_file() else files.find(path)
    assert found is not None
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    return assemble(samples, {found.name: digest})
