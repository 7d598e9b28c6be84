"""`simstrag compare`: many policies under equal luck, and a report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import capture_warnings, print_json, print_path, print_table, warn
from simstrag.cli.errors import Interrupted
from simstrag.cli.options import (
    Jobs,
    Json,
    Policies,
    Quiet,
    ScenarioFile,
    Seeds,
    comparison_folder,
    partial_folder,
    read_scenario,
)
from simstrag.cli.progress import show_count

if TYPE_CHECKING:
    from simstrag.experiments.compare import Comparison

__all__ = ["compare"]

LEAST = (
    "M by makespan (%)", "speed-up by makespan", "makespan (s)", "updates through",
    "M by time to target (%)", "M (%)", "speed-up by time to target", "speed-up", "place",
)  # fmt: skip
"""Columns of the ranking that a narrow terminal does without, the first of them first."""


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
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Find what turns it over; about twice the time."),
    ] = False,
    jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rank policies under equal luck and contention; write a report.

    Ctrl-C loses no finished run (FOLDER.partial); the same command goes on.
    """
    from simstrag.experiments.cache import Finished
    from simstrag.experiments.compare import compare as run_comparison
    from simstrag.runs.run import check_directory

    case = read_scenario(scenario)
    folder = comparison_folder(out, scenario)
    check_directory(folder, "comparison.csv")
    kept = partial_folder(folder)
    try:
        with capture_warnings() as said, show_count(quiet) as show:
            comparison = run_comparison(
                case, policy, seeds=seeds, sensitivity=sensitivity, jobs=jobs, on_progress=show,
                keep=kept,
            )  # fmt: skip
            show(1, 1, "writing the report")
            comparison.write(folder, shlex.join(["simstrag", *sys.argv[1:]]), scenario)
    except KeyboardInterrupt as interrupted:
        raise Interrupted(_left(kept, interrupted, sensitivity)) from None
    Finished.of(kept, comparison.scenario).forget()
    _show(comparison, [*said, *comparison.warnings], folder, as_json, quiet)
    if kept.exists() and not quiet:
        warn([f"{kept} keeps runs of the scenario or program as it was before; remove it at will"])


def _left(kept: Path, interrupted: KeyboardInterrupt, sensitivity: bool) -> str:
    """What Ctrl-C leaves behind, in words."""
    if not kept.exists():
        return "nothing was written"
    found = str(interrupted) or f"finished runs are kept in {kept}"
    alone = ", or without --sensitivity with the comparison alone" if sensitivity else ""
    return f"{found}; the same command goes on from there{alone}"


def _show(
    comparison: Comparison, warnings: list[str], folder: Path, as_json: bool, quiet: bool
) -> None:
    from simstrag.analysis.tables.comparison_tables import ranking_table
    from simstrag.analysis.tables.standings import standings

    page = folder / "report.html"
    if as_json:
        turns = comparison.thresholds
        print_json({
            "ranking": comparison.ranking.to_dict("records"),
            "thresholds": None if turns is None else turns.to_dict("records"),
            "warnings": warnings,
            "written": folder,
            "report": page,
        })  # fmt: skip
        return
    if not quiet:
        ranking = ranking_table(standings(comparison))
        print_table(ranking.headers, [*ranking.rows, ranking.control], least=LEAST)
        warn(warnings)
    print_path("report", page, quiet)
