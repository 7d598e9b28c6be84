"""One calibration of this machine: one device, one workload, one profile; `plan` says of what."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from simstrag.calibration import measurement_rounds
from simstrag.calibration import samples as files
from simstrag.calibration.assemble import assemble
from simstrag.calibration.benches.machine_state import describe_software
from simstrag.calibration.benches.power import PowerBench
from simstrag.calibration.cells import MeasurementCell
from simstrag.calibration.fits.held_out import choose_held_out
from simstrag.calibration.measurement_rounds import (
    TARGET,
    OnPlan,
    OnVisit,
)
from simstrag.calibration.plan import CalibrationPlan, CalibrationRequest
from simstrag.calibration.remarks import remarks as describe_remarks
from simstrag.calibration.samples import Samples, VisitJournal
from simstrag.documents.file_io import require_path, write_atomically
from simstrag.errors import InputError
from simstrag.processes.affinity import keep_memory
from simstrag.profile.profile import Profile
from simstrag.runs.run import provenance
from simstrag.workloads.device import describe_device

PROFILE = "profile.json"


def calibrate(
    workload: str | None = None,
    folder: str | Path | None = None,
    *,
    device: str | None = None,
    parts: Sequence[str] = (),
    batches: Sequence[int] = (),
    precisions: Sequence[str] = (),
    minutes: float | None = None,
    seed: int = 0,
    compile: bool = False,
    on_visit: OnVisit | None = None,
) -> Profile:
    """Measure this machine, write samples and `profile.json` to a folder, and return the profile.

    folder: profiles/<device>-<workload> by default; an unfinished calibration there goes on.
    on_visit: called as (seconds used, most seconds, next cell).
    The others are those of `CalibrationRequest`.

    Raises `InputError` as `Calibration` does.

    >>> calibrate("mlp", parts=["steps"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no part 'steps'. Did you mean 'step'?; known: step, ...
    """
    request = CalibrationRequest(
        workload, device, tuple(parts), tuple(batches), tuple(precisions), minutes, seed, compile
    )
    return Calibration(request, folder).run(on_visit)


def derive(folder: str | Path) -> Profile:
    """Make the profile of a folder's samples, finished or not, and write nothing.

    Raises `InputError` where there are no samples.
    """
    paths = files.find_all(require_path(folder))
    samples = files.join([files.read(path) for path in paths])
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return assemble(samples, sums)


class Calibration(CalibrationPlan):
    """One calibration in its folder; `run` measures."""

    @cached_property
    def journal(self) -> VisitJournal:
        """The visits that are not among the samples yet."""
        return VisitJournal(self.folder)

    def run(
        self,
        on_visit: OnVisit | None = None,
        minutes: float | None = None,
        on_plan: OnPlan = lambda text: None,
    ) -> Profile:
        """Measure, write samples and `profile.json`, and return the profile.

        An interrupted calibration goes on, and so does a finished one if it now gets more minutes;
        otherwise its samples are read.

        minutes: stop after this part of the requested minutes, but not before every cell has a
            visit, if all the minutes suffice for that.
        on_plan: receives a sentence on rounds that do not fit, once the first one is timed.

        Raises `InputError` if a part cannot be measured here or the folder has another calibration.
        """
        minutes = self.minutes if minutes is None else minutes
        path, header = files.find(self.folder), self._header()
        earlier = None if path is None else files.read(path)
        granted = minutes
        if earlier is not None:
            _check_same(earlier.header, header, self.folder)
            header, granted = earlier.header, max(minutes, earlier.header["plan"]["minutes"])
        header = {**header, "plan": {**header["plan"], "minutes": granted}}
        if not self._has(minutes):
            self.forecast()
            if path != self.journal.path:
                self.journal.start(header, () if earlier is None else earlier.visits)
            planned = {MeasurementCell(**cell) for cell in header["plan"]["cells"]}
            with self.journal.lock():
                samples = measurement_rounds.run(
                    self.benches, self.journal, self.limits(minutes),
                    on_visit or (lambda used, total, what: None), planned.__contains__, on_plan,
                    self.groups_to_leave(planned),
                )  # fmt: skip
                files.write(Samples(header, samples.visits), self.folder)
        profile = derive(self.folder)
        write_atomically(self.folder / PROFILE, lambda path: path.write_text(profile.text))
        return Profile.read(self.folder / PROFILE)

    def check_folder(self) -> None:
        """Raise `InputError` if the folder's calibration has another request or machine."""
        path = files.find(self.folder)
        if path is not None:
            _check_same(files.read(path).header, self._header(), self.folder)

    @property
    def is_finished(self) -> bool:
        """Whether the folder has a calibration of at least the requested minutes."""
        return self._has(self.minutes)

    def _has(self, minutes: float) -> bool:
        path = files.find(self.folder)
        if path is None or path == self.journal.path:
            return False
        return bool(files.read(path).header["plan"]["minutes"] >= minutes)

    def remarks(self) -> list[str]:
        """Troubles of the measurement, a line each."""
        reasons = (b.why_not for b in self.benches if isinstance(b, PowerBench) and b.why_not)
        lines = [f"no power was measured: {reason}" for reason in reasons]
        return [*describe_remarks(files.read(self.folder)), *lines]

    @property
    def interruption_note(self) -> str:
        """The results that an interruption leaves, in words."""
        if not self.journal.path.exists():
            return "nothing was written"
        count = len(self.journal.read().visits)
        return f"{count} visits are kept in {self.folder}; the same command goes on from there"

    def _header(self) -> dict[str, Any]:
        """Machine, software, workload and plan: all that `assemble` needs beside the samples."""
        cells = [*self.planned]
        request = replace(self.request, minutes=self.minutes)
        parameters, gradient_bytes = self.parameters
        gain = self.precisions.probed_gain
        return {
            "name": self.folder.name,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "command": request.command(self.folder),
            "commit": provenance()["commit"],
            "device": describe_device(self.device.name),
            "software": {
                **describe_software(),
                "freed_memory": "kept" if keep_memory() else "given back",
            },
            "workload": {
                "name": self.workload.name,
                "parameters": parameters,
                "gradient_bytes": gradient_bytes,
                "batches": list(self.workload.batches),
                "nominal_batch": self.workload.nominal,
                "full": self.precisions.full,
                "amp": self.precisions.amp,
                "stand_in": self.precisions.stand_in,
                "probed_gain": gain if math.isfinite(gain) else None,
                "real_data": self.workload.real_data,
            },
            "plan": {
                "minutes": request.minutes,
                "seed": request.seed,
                "target": TARGET,
                "fewest": self.fewest,
                "parts": list(request.parts),
                "precisions": list(request.precisions),
                **({"compile": True} if request.compile else {}),
                "cells": [cell.document for cell in cells],
                "left_out": [cell.document for cell in self.left_out],
                "held_out": [
                    cell.document for cell in (() if self.only else choose_held_out(cells))
                ],
            },
        }


def _check_same(kept: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raise `InputError` where two headers differ in machine, software, workload or request."""
    for name in ("device", "software", "workload"):
        for key, value in now[name].items():
            if key != "probed_gain" and kept[name].get(key) != value:
                raise InputError(
                    f"{path}: was measured with {name} {key} {kept[name].get(key)}, now it is "
                    f"{value}; choose another --out"
                )
    for key in ("parts", "precisions", "seed", "compile"):
        before, after = (plan["plan"].get(key, False) for plan in (kept, now))
        if before != after:
            raise InputError(
                f"{path}: was measured with {key} {before}, now {key} is {after}; choose another "
                "--out"
            )
