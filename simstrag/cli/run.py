"""`simstrag run`: one policy under one seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import format_cell, print_json, print_path, print_table, warn
from simstrag.cli.options import Json, Policy, Quiet, ScenarioFile, Seed, read_scenario
from simstrag.cli.progress import show_run
from simstrag.documents.paths import writable
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.analysis.pages.perfetto import Written
    from simstrag.runs.run import Run
    from simstrag.timing.timing import Timing

__all__ = ["run"]


def run(
    scenario: ScenarioFile,
    policy: Policy = "bsp",
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Run directory to write.", metavar="FOLDER", show_default=False
        ),
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Also write steps.parquet.")] = False,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Also write gradients.parquet.")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            help="Also write a timeline of every step for Perfetto.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            help="Only these seconds of the timeline, such as 10:20.",
            metavar="FROM:TO",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate one policy under one seed and print the summary."""
    from simstrag.engine.simulate import simulate
    from simstrag.runs.run import check_directory, plain

    case = read_scenario(scenario)
    if out is not None:
        check_directory(out, "run.json")
    if timeline is not None:
        writable(timeline, ".json", ".gz")
    stretch = _stretch(window, timeline)
    with show_run(f"{policy}, seed {seed}", case, quiet) as on_update:
        result = simulate(
            case,
            policy,
            seed,
            record_steps=steps or timeline is not None,
            record_gradients=gradients or timeline is not None,
            on_update=on_update,
            out=out,
        )
    drawn = None if timeline is None else _draw(result, timeline, case.timing(seed), stretch)
    if as_json:
        about = None if drawn is None else {"path": timeline, **drawn._asdict()}
        print_json(json.loads(result.to_json()) | {"written": out, "timeline": about})
        return
    if not quiet:
        rows = [[key, format_cell(value)] for key, value in plain(result.summary).items()]
        print_table(["", f"{result.policy}, seed {seed}"], rows, wraps=1)
        warn(result.warnings)
    elif out is None and timeline is None:
        print(result.summary["makespan" if case.progress_target is None else "time_to_target"])
    if out is not None:
        print_path("run", out, quiet)
    if timeline is not None and drawn is not None:
        print_path("timeline", timeline, quiet)
        warn([] if quiet else _left_out(drawn))


def _stretch(window: str | None, timeline: Path | None) -> tuple[float, float] | None:
    """What `--window` asks for, before anything is simulated; None without it."""
    if window is None:
        return None
    if timeline is None:
        raise InputError(f"--window {window}: is of a timeline; ask for one with --timeline FILE")
    if window.endswith(":"):
        way_out = f"has no end; write {window}inf for all that follows"
        raise InputError(f"--window {window}: {way_out}")
    try:
        start, end = map(float, window.split(":"))
    except ValueError:
        way_out = "must be FROM:TO in seconds, such as 10:20, or 10:inf for all that follows"
        raise InputError(f"--window {window}: {way_out}") from None
    if not start < end:
        raise InputError(f"--window {window}: must end after it begins")
    if start < 0:
        raise InputError(f"--window {window}: must not begin before 0, where the run does")
    return start, end


def _draw(result: Run, path: Path, timing: Timing, stretch: tuple[float, float] | None) -> Written:
    from simstrag.analysis.pages.perfetto import write_timeline

    return write_timeline(result, path, timing, stretch)


def _left_out(drawn: Written) -> list[str]:
    if not drawn.cut:
        return []
    return [
        f"the timeline shows {drawn.start:.6g} to {drawn.end:.6g} s, where ranks waited longest "
        f"(--window FROM:TO shows another part); {drawn.steps_left_out} steps are left out"
    ]
