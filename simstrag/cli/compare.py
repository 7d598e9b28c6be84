"""`simstrag compare`: rank policies under equal noise and contention, and write a report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simstrag.cli.console import (
    capture_warnings,
    command_line,
    print_brief,
    print_paragraphs,
    print_sentences,
    print_table,
    warn,
)
from simstrag.cli.options import (
    JobsOption,
    PoliciesOption,
    ScenarioFile,
    SeedsOption,
    VerboseOption,
    flag,
    out_option,
)
from simstrag.cli.output import emit, mode, on_interrupt
from simstrag.cli.progress import show_count, warn_of_hours
from simstrag.cli.read_inputs import folder_of, partial_folder, read_scenario, refuse_other
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.experiments.comparison import Comparison
    from simstrag.scenario.scenario import Scenario

NUMBERS = "Numbers that were not measured"

DRAWING = 10.0
"""Seconds that drawing a report takes."""


def compare(
    scenario: ScenarioFile,
    policy: PoliciesOption = None,
    seeds: SeedsOption = None,
    out: Annotated[
        Path | None, out_option("Folder to write; reports/<scenario> by default.")
    ] = None,
    sensitivity: Annotated[
        bool,
        flag(
            "Find what else would change the ranking; takes longer.", "--sensitivity", group=NUMBERS
        ),
    ] = False,
    no_sensitivity: Annotated[
        bool, flag("Try no other values of what is assumed.", "--no-sensitivity", group=NUMBERS)
    ] = False,
    jobs: JobsOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Rank policies under equal contention; write a report.

    Ctrl-C keeps finished runs in FOLDER.partial; the same command goes on.
    """
    if sensitivity and no_sensitivity:
        raise InputError("--sensitivity, --no-sensitivity: give one of them")
    case = read_scenario(scenario)
    folder = folder_of(scenario, out)
    refuse_other(folder, scenario)
    tried = True if sensitivity else False if no_sensitivity else None
    alone = "without --sensitivity" if sensitivity else ""
    if tried is None and not case.learner.is_real:  # which is searched when asked alone
        alone = "with --no-sensitivity"
    with on_interrupt(partial(_describe_kept, partial_folder(folder), alone)):
        compare_scenario(case, scenario, folder, policy, seeds, tried, jobs, verbose)


def compare_scenario(
    case: Scenario,
    file: Path,
    folder: Path,
    policy: list[str] | None = None,
    seeds: int | None = None,
    sensitivity: bool | None = None,
    jobs: int | None = None,
    verbose: bool = False,
) -> Path:
    """Compare the policies of a scenario, write the report and print the answer.

    file: of the scenario.
    folder: to write; finished runs are kept beside it until it is written.
    sensitivity: as in `simstrag.compare`.

    Returns the page of the report.
    """
    from simstrag.analysis.derived.ranking import standings
    from simstrag.analysis.text.cautions import cautions, doubtful_constants
    from simstrag.experiments.compare import compare as run_comparison
    from simstrag.experiments.compare import count_runs
    from simstrag.experiments.runner import RunCache
    from simstrag.runs.run import check_directory

    check_directory(folder, "comparison.csv")
    kept = partial_folder(folder)
    with capture_warnings() as warnings, show_count(DRAWING) as show:
        if case.updates is None:  # which compare refuses
            names = policy or case.policies
            runs = count_runs(case, names, seeds, sensitivity)
            warn_of_hours(case, names, runs, jobs)
        comparison = run_comparison(
            case, policy, seeds=seeds, sensitivity=sensitivity, jobs=jobs, on_progress=show,
            keep=kept,
        )  # fmt: skip
        show.begin_last("drawing the report")
        comparison.write(folder, command_line(), file)
    RunCache.of(kept, comparison.scenario).clear()
    page, thresholds = folder / "report.html", comparison.thresholds
    placeholders = comparison.placeholders
    told = list(warnings)  # others are among the cautions
    warnings += comparison.warnings
    warnings += doubtful_constants(comparison.scenario)
    document = {
        "answer": comparison.answer.to_dict(),
        "ranking": comparison.ranking.to_dict("records"),
        "thresholds": None if thresholds is None else thresholds.to_dict("records"),
        "placeholders": placeholders._asdict(),
        "cautions": [each.to_dict() for each in cautions(standings(comparison))],
        "warnings": warnings,
        "written": folder,
        "report": page,
    }
    shown = partial(print_brief, comparison.answer.brief)
    if verbose:
        shown = partial(_print_ranking, comparison)
    emit(document, shown, told, report=page)
    if kept.exists() and not mode().quiet:
        warn([f"{kept} keeps runs of an earlier scenario or program; you may remove it"])
    return page


def _describe_kept(kept: Path, alone: str, interrupt: str) -> str:
    """A message on the files that an interrupted comparison keeps.

    alone: the option under which the same command makes the comparison alone, if any.
    """
    if not kept.exists():
        return "nothing was written"
    runs = interrupt or f"finished runs are kept in {kept}"
    how = alone and f", or {alone} with the comparison alone"
    return f"{runs}; the same command goes on from there{how}"


def _print_ranking(comparison: Comparison) -> None:
    from simstrag.analysis.derived.ranking import standings
    from simstrag.analysis.tables.comparison_tables import (
        accuracy_table,
        explain_dashes,
        failures_table,
        ranking_table,
    )
    from simstrag.analysis.text.cautions import cautions
    from simstrag.analysis.text.spread_text import spread_table

    if banner := str(comparison.placeholders):
        print_sentences(f"{banner}\n")
    found = standings(comparison)
    ranking, accuracy = ranking_table(found), accuracy_table(found)
    print_table(ranking.headers, [*ranking.rows, *ranking.controls])
    for note in explain_dashes(found):
        print_sentences(note)
    for table in (spread_table(found), accuracy, failures_table(found)):
        if table is not None:
            print_table(table.headers, [*table.rows, *table.controls])
    print_paragraphs(*comparison.answer.sentences)
    for text in cautions(found):
        print_sentences(f"caution: {text}")
