"""`simstrag calibrate`: measure this machine, and make, check and re-make profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import (
    print_json,
    print_paragraphs,
    print_path,
    print_sentences,
    print_table,
    warn,
)
from simstrag.cli.errors import Interrupted
from simstrag.cli.options import Json, Quiet, Seed
from simstrag.cli.profiles import profile_at, show_pairs
from simstrag.cli.progress import show_seconds
from simstrag.documents.paths import expect, writable, write_whole
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.calibration.calibrate import Forecast
    from simstrag.profile.profile import Profile

__all__ = ["calibrate", "check", "derive", "import_", "workloads"]

Device = Annotated[
    str | None,
    typer.Option(help="cpu or cuda; a GPU where there is one.", metavar="WORD", show_default=False),
]


def calibrate(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            "-w",
            help="A name of `calibrate workloads`, or your own module:function.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of profile and samples; profiles/<device>-<workload> by default.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    device: Device = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="At most; by default 10, or what is needed.",
            min=0.1,
            metavar="M",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="step, contention, allreduce, overlap, lockstep, server or gradient; may be "
            "repeated. All by default.",
            metavar="PART",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Samples of a step, the middle one nominal; may be repeated.",
            min=1,
            metavar="N",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="Full and reduced, given one after the other, instead of what suits the device.",
            metavar="WORD",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    plan: Annotated[
        bool, typer.Option("--plan", help="Measure nothing; show what would be measured.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure steps, contention and communication here; write a profile."""
    if context.invoked_subcommand is not None:
        return
    from simstrag.calibration.calibrate import Calibration, CalibrationRequest

    made = Calibration.of(
        CalibrationRequest(
            workload, device, tuple(part or ()), tuple(batch or ()), tuple(precision or ()),
            minutes, seed,
        ),
        out,
    )  # fmt: skip
    if plan or not (quiet or as_json or made.is_finished):
        _show_plan(made.forecast(), made.folder, as_json)
    if plan:
        return
    try:
        with show_seconds(quiet) as show:
            profile = made.run(show)
    except KeyboardInterrupt:
        raise Interrupted(made.interruption_note) from None
    said = made.remarks()
    path = made.folder / "profile.json"
    if as_json:
        print_json({"profile": path, "warnings": said, "held_out": _held_out(profile)})
        return
    if not quiet:
        _show(profile)
        warn(said)
    print_path("profile", path, quiet)


def derive(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder or file of samples.", metavar="SAMPLES", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the profile there.", metavar="FILE"),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a profile anew of its samples, with its held-out errors."""
    from simstrag.calibration.calibrate import derive as derived

    profile = derived(expect(folder))
    if out is not None:
        write_whole(writable(out, ".json"), lambda path: path.write_text(profile.text))
    if as_json:
        print_json({"profile": out, "held_out": _held_out(profile)})
        return
    if not quiet:
        _show(profile)
    if out is not None:
        print_path("profile", out, quiet)


def check(
    profile: Annotated[
        Path, typer.Argument(help="A profile in JSON.", metavar="PROFILE", show_default=False)
    ],
    minutes: Annotated[
        float, typer.Option(help="Measure no longer than this.", min=0.1, metavar="M")
    ] = 2.0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure a few cells again; say whether a profile still holds here."""
    from simstrag.calibration.check import check as checked

    with show_seconds(as_json) as show:
        found = checked(profile_at(profile), minutes, device, show)
    if as_json:
        print_json({"holds": found.holds, "text": found.text, "cells": found.sides.records})
    else:
        show_pairs(found.sides.judged)
        print_sentences(found.text)
    if not found.holds:
        raise typer.Exit(1)


def import_(
    tool: Annotated[
        str,
        typer.Argument(help="What wrote the logs: nccl-tests.", metavar="TOOL", show_default=False),
    ],
    logs: Annotated[
        list[Path],
        typer.Argument(help="One log per number of GPUs.", metavar="LOG", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The profile to write.", metavar="FILE")],
    gradient_bytes: Annotated[
        int, typer.Option(help="Of one gradient; 0 for ResNet-50's.", min=0, metavar="N")
    ] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a profile of the logs of another tool."""
    from simstrag.calibration.nccl import profile

    if tool != "nccl-tests":
        near = nearest(tool, ("nccl-tests",))
        raise InputError(f"there is no importer '{tool}' for profiles; known: nccl-tests{near}")
    found = profile([expect(log) for log in logs], writable(out, ".json").stem, gradient_bytes)
    write_whole(out, lambda path: path.write_text(found.text))
    if as_json:
        print_json({"profile": out, "held_out": _held_out(found)})
        return
    if not quiet:
        _show(found)
    print_path("profile", out, quiet)


def workloads(as_json: Json = False) -> None:
    """List what `calibrate --workload` knows by name."""
    from simstrag.workloads import load, names

    known = [load(name) for name in names()]
    if as_json:
        print_json([
            {"name": w.name, "device": w.device, "batches": w.batches, "nominal": w.nominal,
             "real_data": w.real_data}
            for w in known
        ])  # fmt: skip
        return
    rows = [
        [w.name, w.device, " ".join(map(str, w.batches)), str(w.nominal), w.about] for w in known
    ]
    print_table(["workload", "for", "batches", "nominal", "what it is"], rows, wraps=4)
    print_sentences("Your own: --workload module:function; see docs/howto/calibrate.md.")


def _show_plan(found: Forecast, folder: Path, as_json: bool) -> None:
    """What is going to be measured, and how long it takes."""
    if as_json:
        print_json({**found._asdict(), "folder": folder})
        return
    least, most = found.least / 60, found.most / 60
    print_sentences(
        f"{found.workload} on {found.device}, {found.precisions[0]} and {found.precisions[1]}: "
        f"{sum(found.cells.values())} cells, {found.held_out} of them held out of every fit; "
        f"{least:.1f} to {most:.1f} minutes, into {folder}"
    )
    rows = [[part, str(count), f"{found.rounds[part]:.0f}"] for part, count in found.cells.items()]
    print_table(["part", "cells", "seconds a round"], rows)


def _held_out(profile: Profile) -> list[dict[str, object]]:
    return [each.model_dump(exclude={"cells"}) for each in profile.held_out]


def _show(profile: Profile) -> None:
    """What a person asks first of a profile; `calibrate show` says all of it."""
    from simstrag.analysis.tables.profile_tables import describe

    print_paragraphs(*describe(profile))
