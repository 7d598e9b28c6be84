"""`simstrag sweep`: a grid of scenarios, on this machine or on many."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import capture_warnings, print_json, print_path, warn
from simstrag.cli.errors import Interrupted
from simstrag.cli.options import Jobs, Json, Quiet
from simstrag.cli.progress import show_count
from simstrag.documents.paths import expect
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.experiments.sweep import Sweep

__all__ = ["sweep"]

SHOWN = 10
"""How many failed runs are told."""


def _pair(text: str | None) -> tuple[int, int] | None:
    """A part of several.

    >>> _pair("3/16")
    (3, 16)
    """
    if text is None:
        return None
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise InputError(f"--shard {text}: write i/k, such as 1/16 for the first of 16 parts")
    return int(part), int(parts)


def sweep(
    study: Annotated[
        Path, typer.Argument(help="A study in YAML.", metavar="STUDY", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the results; reports/<study> by default.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="processes by default, dask or ray.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of the cluster.", metavar="ADDRESS", show_default=False)
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(help="Only part i of k, for a batch scheduler.", metavar="I/K"),
    ] = None,
    collect: Annotated[
        bool, typer.Option("--collect", help="Run nothing; make the tables of what there is.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Run nothing; say how far it is.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a grid of scenarios; go on where it stopped, whatever stopped it."""
    from simstrag.experiments.sweep import Sweep
    from simstrag.experiments.sweep import sweep as run_sweep

    folder = Path("reports") / study.stem if out is None else out
    said: list[str] = []
    if status or collect:
        _refuse(
            "--collect" if collect else "--status",
            {"--jobs": jobs, "--backend": backend, "--address": address, "--shard": shard},
        )
        if out is None:  # all that is asked of the study is its name
            expect(study)
        found = Sweep.read(folder)
        if collect:
            found.write()
    else:
        part, path = _pair(shard), expect(study)
        sys.path.append(str(path.absolute().parent))
        try:
            with capture_warnings() as said, show_count(quiet) as show:
                found = run_sweep(
                    path, folder, jobs=jobs, backend=backend or "processes", address=address,
                    shard=part, on_progress=show,
                )  # fmt: skip
        except KeyboardInterrupt as interrupted:
            raise Interrupted(_left(interrupted)) from None
    whole = _show(found, said, as_json, quiet)
    if not whole:
        raise typer.Exit(1)


def _refuse(command: str, given: dict[str, object]) -> None:
    """Raise `InputError` where what only a run needs is given beside what runs nothing.

    >>> _refuse("--status", {"--jobs": None, "--shard": "1/2"})
    Traceback (most recent call last):
    simstrag.errors.InputError: --shard 1/2: --status runs nothing and shows all parts; leave it out
    """
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{name} {value}: {command} runs nothing and shows all parts; leave it out"
            )


def _left(interrupted: KeyboardInterrupt) -> str:
    """What Ctrl-C leaves behind, in words."""
    found = str(interrupted)
    return f"{found}; the same command goes on from there" if found else "nothing was written"


def _show(found: Sweep, said: list[str], as_json: bool, quiet: bool) -> bool:
    """Say how far it is; whether all its runs are finished."""
    from simstrag.experiments.sweep import TABLES

    total, outcomes = len(found.runs), found.outcomes()
    failed = {run: kept["error"] for run, kept in outcomes.items() if kept["error"]}
    finished = len(outcomes) - len(failed)
    tables = [path for name in TABLES if (path := found.folder / name).exists()]
    if as_json:
        print_json({
            "runs": total,
            "finished": finished,
            "failed": [
                {"point": run.point, "policy": run.policy, "seed": run.seed, "error": error}
                for run, error in failed.items()
            ],
            "warnings": said,
            "written": found.folder,
            "tables": tables,
        })  # fmt: skip
        return finished == total
    if not quiet:
        print(f"{finished} of {total} runs are finished, {len(failed)} failed")
        for run, error in islice(failed.items(), SHOWN):
            print(f"failed: point {run.point}, {run.policy}, seed {run.seed}: {error}")
        if len(failed) > SHOWN:
            print(f"and {len(failed) - SHOWN} more; all are in the column 'error'")
        warn(said)
    for path in tables[-1:] or [found.folder]:
        print_path("results", path, quiet)
    return finished == total
