"""`simstrag compare`: many policies under equal luck, and a report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import document, table, warn, written
from simstrag.cli.inputs import scenario_at
from simstrag.cli.mistakes import Interrupted
from simstrag.cli.options import Jobs, Json, Policies, Quiet, ScenarioFile, Seeds
from simstrag.cli.progress import counted

if TYPE_CHECKING:
    from simstrag.comparison import Comparison

__all__ = ["compare"]


def compare(
    scenario: ScenarioFile,
    policy: Policies = None,
    seeds: Seeds = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder to write; reports/<scenario> by default.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rank policies under equal luck and contention; write a report.

    Ctrl-C loses no finished run: they are kept in FOLDER.partial, and the same command goes on.
    """
    from simstrag.comparison import compare as run_comparison
    from simstrag.finished import Finished
    from simstrag.run import check_directory

    case = scenario_at(scenario)
    folder = out or Path("reports") / scenario.stem
    check_directory(folder, "comparison.csv")
    kept = _partial(folder)
    try:
        with counted(quiet) as show:
            comparison = run_comparison(
                case, policy, seeds=seeds, jobs=jobs, on_progress=show, keep=kept
            )
            show(1, 1, "writing the report")
            comparison.write(folder, shlex.join(["simstrag", *sys.argv[1:]]))
    except KeyboardInterrupt as interrupted:
        raise Interrupted(_left(kept, interrupted)) from None
    Finished.of(kept, comparison.scenario).forget()
    _show(comparison, folder, as_json, quiet)


def _partial(folder: Path) -> Path:
    """Where finished runs are kept until all are."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.partial")


def _left(kept: Path, interrupted: KeyboardInterrupt) -> str:
    """What Ctrl-C leaves behind, in words."""
    if not kept.exists():
        return "nothing was written"
    found = str(interrupted) or f"finished runs are kept in {kept}"
    return f"{found}; the same command goes on from there"


def _show(comparison: Comparison, folder: Path, as_json: bool, quiet: bool) -> None:
    from simstrag.analysis.tables import ranking_rows

    page = folder / "report.html"
    if as_json:
        document({
            "ranking": comparison.ranking.to_dict("records"),
            "warnings": comparison.warnings,
            "written": folder,
            "report": page,
        })  # fmt: skip
        return
    if not quiet:
        table(*ranking_rows(comparison))
        warn(comparison.warnings)
    written("report", page, quiet)
