"""`simstrag calibrate`: measure this machine, and write, check, derive and import profiles."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.calibrate_show import print_pairs
from simstrag.cli.console import print_json, print_paragraphs, print_sentences, print_table
from simstrag.cli.options import SeedOption, argument, flag, option, out_option
from simstrag.cli.output import emit, mode, on_interrupt, warn_of_plan
from simstrag.cli.progress import show_seconds
from simstrag.documents.file_io import writable, write_atomically
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.calibration.plan import Forecast
    from simstrag.profile.profile import Profile

CELLS = "What to measure"

DeviceOption = Annotated[
    str | None, option("cpu or cuda; by default a GPU if any.", "WORD", group=CELLS)
]


def calibrate(
    context: typer.Context,
    workload: Annotated[
        str | None,
        option("Name, or your own module:function.", "NAME", "--workload", "-w", group=CELLS),
    ] = None,
    out: Annotated[
        Path | None,
        out_option("Folder of profile and samples; profiles/<device>-<workload> by default."),
    ] = None,
    device: DeviceOption = None,
    minutes: Annotated[
        float | None, option("Time limit; 10, or what all cells need.", "M", min=0.1)
    ] = None,
    part: Annotated[
        list[str] | None,
        option(
            "Measure only this: step, contention, allreduce, overlap, lockstep, server, "
            "gradient or power; may be repeated.",
            "PART",
            group=CELLS,
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        option("Batch of a step, the middle one nominal.", "N", min=1, group=CELLS),
    ] = None,
    precision: Annotated[
        list[str] | None, option("Full, then reduced precision.", "WORD", group=CELLS)
    ] = None,
    compile_: Annotated[
        bool,
        flag("Compile the model (torch.compile); say what that did.", "--compile", group=CELLS),
    ] = False,
    seed: SeedOption = 0,
    plan: Annotated[
        bool,
        flag("Print what would be measured, and how long it takes; measure nothing.", "--plan"),
    ] = False,
) -> None:
    """Measure steps, contention and communication on this machine; write a profile."""
    if context.invoked_subcommand is not None:
        return
    from simstrag.calibration.calibrate import Calibration
    from simstrag.calibration.plan import CalibrationRequest

    calibration = Calibration(
        CalibrationRequest(
            workload, device, tuple(part or ()), tuple(batch or ()), tuple(precision or ()),
            minutes, seed, compile_,
        ),
        out,
    )  # fmt: skip
    if plan or (mode().talks and not calibration.is_finished):
        _show_plan(calibration.forecast(), calibration.folder)
    if plan:
        return
    with on_interrupt(lambda _: calibration.interruption_note), show_seconds() as show:
        profile = calibration.run(show, on_plan=warn_of_plan)
    _print(profile, calibration.folder / "profile.json", calibration.remarks())


def derive(
    folder: Annotated[Path, argument("Folder or file of samples.", "SAMPLES")],
    out: Annotated[Path | None, out_option("Write the profile there.", "FILE")] = None,
) -> None:
    """Make a profile again from its samples, held-out errors included."""
    from simstrag.calibration.calibrate import derive as derive_profile

    profile = derive_profile(folder)
    if out is not None:
        write_atomically(writable(out, ".json"), lambda path: path.write_text(profile.text))
    _print(profile, out)


def check(
    profile: Annotated[Path, argument("A profile in JSON.", "PROFILE")],
    minutes: Annotated[float, option("Measure no longer than this.", "M", min=0.1)] = 2.0,
    device: DeviceOption = None,
) -> None:
    """Measure a few cells again, and say whether a profile still holds here."""
    from simstrag.calibration.check import check as check_profile
    from simstrag.profile.profile import Profile

    with show_seconds() as show:
        result = check_profile(Profile.read(profile), minutes, device, show)

    def show_cells() -> None:
        print_pairs(result.sides.judged)
        print_sentences(result.text)

    document = {"holds": result.holds, "text": result.text, "cells": result.sides.records}
    emit(document, show_cells)
    if not result.holds:
        raise typer.Exit(1)


def import_(
    tool: Annotated[str, argument("The tool that wrote the logs: nccl-tests.", "TOOL")],
    logs: Annotated[list[Path], argument("One log per number of GPUs.", "LOG")],
    out: Annotated[Path, out_option("The profile to write.", "FILE")],
    gradient_bytes: Annotated[
        int, option("Bytes of one gradient, which no log states; 0 for ResNet-50's.", "N", min=0)
    ] = 0,
) -> None:
    """Make a profile from the logs of another tool."""
    from simstrag.calibration.import_nccl_tests import profile as profile_of_logs

    if tool != "nccl-tests":
        near = nearest(tool, ("nccl-tests",))
        raise InputError(f"there is no importer '{tool}' for profiles; known: nccl-tests{near}")
    profile = profile_of_logs(logs, writable(out, ".json").stem, gradient_bytes)
    write_atomically(out, lambda path: path.write_text(profile.text))
    _print(profile, out)


def workloads() -> None:
    """List the workloads that `calibrate --workload` knows by name."""
    from simstrag.workloads import load, names

    known = [load(name) for name in names()]
    document = [
        {"name": w.name, "device": w.device, "batches": w.batches, "nominal": w.nominal,
         "real_data": w.real_data}
        for w in known
    ]  # fmt: skip
    rows = [
        [w.name, w.device, " ".join(map(str, w.batches)), str(w.nominal), w.about] for w in known
    ]

    def show() -> None:
        print_table(["workload", "for", "batches", "nominal", "what it is"], rows, wraps=4)
        print_sentences(
            "For your own model give --workload module:function; see docs/howto/calibrate.md."
        )

    emit(document, show)


def _show_plan(forecast: Forecast, folder: Path) -> None:
    """Print the cells to measure, and the time that they take."""
    if mode().as_json:
        print_json({**forecast._asdict(), "folder": folder})
        return
    least, most = forecast.least / 60, forecast.most / 60
    print_sentences(
        f"{forecast.workload} on {forecast.device}, {' and '.join(forecast.precisions)}: "
        f"{sum(forecast.cells.values())} cells, {forecast.held_out} of them held out of every fit; "
        f"{least:.1f} to {most:.1f} minutes, into {folder}"
        + (f"; {forecast.left_out}" if forecast.left_out else "")
    )
    rows = [
        [part, str(count), f"{forecast.rounds[part]:.0f}"] for part, count in forecast.cells.items()
    ]
    print_table(["part", "cells", "seconds a round"], rows)


def _print(profile: Profile, out: Path | None, warnings: list[str] | None = None) -> None:
    from simstrag.analysis.text.profile_text import describe

    noted = {} if warnings is None else {"warnings": warnings}
    held_out = [each.model_dump(exclude={"cells"}) for each in profile.held_out]
    document = {"profile": out, **noted, "held_out": held_out}
    shown = partial(print_paragraphs, *describe(profile))
    emit(document, shown, warnings or (), profile=out)
