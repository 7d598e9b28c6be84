"""What is asked to be measured, and the header that says so in the file of samples."""

from __future__ import annotations

import datetime
import math
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.machine import describe_software
from simstrag.calibration.campaign import TARGET
from simstrag.calibration.cells import Cell
from simstrag.errors import InputError
from simstrag.runs.run import provenance
from simstrag.workloads.device import describe_device

if TYPE_CHECKING:
    from simstrag.workloads import Precisions, Workload

__all__ = ["Asked", "header_of", "refuse_other"]

OPTIONS = {"parts": "part", "batches": "batch", "precisions": "precision"}
"""Fields of `Asked` that the command line names otherwise."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured, as a person asks for it; what is left out is chosen by device.

    workload: a name, or module:function.  device: "cpu" or "cuda".  batches: samples of a step,
    the middle one nominal.  precisions: full and reduced, instead of the pair that suits the
    device; then no others are timed.  minutes: bound of the whole; ten by default, or what the
    fewest rounds of all cells take, if that is more.
    """

    workload: str | None = None
    device: str | None = None
    parts: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    minutes: float | None = None
    seed: int = 0

    def command(self, folder: Path) -> str:
        """The command line that asks for it.

        >>> Asked(workload="mlp", parts=("step",), minutes=5).command(Path("there"))
        'simstrag calibrate --workload mlp --part step --minutes 5 --seed 0 --out there'
        """
        words = ["simstrag", "calibrate"]
        for name, value in asdict(self).items():
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None:
                    shown = f"{each:g}" if isinstance(each, float) else str(each)
                    words += [f"--{OPTIONS.get(name, name)}", shown]
        return shlex.join([*words, "--out", folder.name])


def header_of(
    asked: Asked,
    folder: Path,
    device: str,
    workload: Workload,
    chosen: Precisions,
    parameters: int,
    gradient_bytes: int,
    cells: Iterable[Cell],
    held_out: Iterable[Cell],
    keeps_memory: bool,
) -> dict[str, Any]:
    """Machine, software, workload and plan; all that `assemble` knows beside the samples."""
    gain = chosen.probed_gain
    return {
        "name": folder.name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": asked.command(folder),
        "commit": provenance()["commit"],
        "device": describe_device(device),
        "software": {
            **describe_software(),
            "freed_memory": "kept" if keeps_memory else "given back",
        },
        "workload": {
            "name": workload.name,
            "parameters": parameters,
            "gradient_bytes": gradient_bytes,
            "batches": list(workload.batches),
            "nominal_batch": workload.nominal,
            "full": chosen.full,
            "amp": chosen.amp,
            "stand_in": chosen.stand_in,
            "probed_gain": gain if math.isfinite(gain) else None,
            "real_data": workload.real_data,
        },
        "plan": {
            "minutes": asked.minutes,
            "seed": asked.seed,
            "target": TARGET,
            "parts": list(asked.parts),
            "precisions": list(asked.precisions),
            "cells": [cell.changed for cell in cells],
            "held_out": [cell.changed for cell in held_out],
        },
    }


def refuse_other(kept: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raises `InputError` where what is kept was asked for otherwise, or measured elsewhere."""
    for name in ("device", "software", "workload"):
        for key, value in now[name].items():
            if key != "probed_gain" and kept[name].get(key) != value:
                raise InputError(
                    f"{path}: was measured with {name} {key} {kept[name].get(key)}, now it is "
                    f"{value}; choose another --out"
                )
    for key in ("parts", "precisions", "seed"):
        if kept["plan"][key] != now["plan"][key]:
            raise InputError(
                f"{path}: was measured with {key} {kept['plan'][key]}, now {now['plan'][key]} "
                "is asked for; choose another --out"
            )
