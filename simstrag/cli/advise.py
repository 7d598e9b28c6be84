"""`simstrag advise`: which policy for a job, how sure that is, and what to measure first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import (
    capture_warnings,
    command_line,
    print_paragraphs,
    print_result,
    print_sentences,
    print_table,
)
from simstrag.cli.errors import Interrupted
from simstrag.cli.init import (
    Batch,
    Latency,
    Link,
    Parameters,
    Step,
    Width,
    Workers,
    describe_job,
)
from simstrag.cli.options import (
    Jobs,
    Json,
    Quiet,
    argument,
    given_options,
    option,
    out_option,
    policy_option,
)
from simstrag.cli.progress import show_count
from simstrag.cli.read_inputs import SCENARIOS, TRACES, check_trace, partial_folder, read_scenario
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.advice.advice import Advice
    from simstrag.advice.power import PowerPoint
    from simstrag.cli.first_scenario import JobDescription
    from simstrag.scenario.scenario import Scenario

OF_JOB = ("step", "parameters", "link", "batch", "latency", "precision", "workers")
"""The options that describe the job of a trace; a scenario describes it itself."""
SHOWN = 12
"""Most candidates that the table shows."""


def advise(
    context: typer.Context,
    job: Annotated[Path, argument("A scenario, a trace or a record.", "SCENARIO|TRACE|RECORD")],
    policy: Annotated[
        list[str] | None, policy_option("A candidate instead of all; may be repeated.")
    ] = None,
    change: Annotated[
        str,
        option("Most change of training: none, some gradients, all.", "A|B|C"),
    ] = "C",
    seeds: Annotated[
        int | None, option("Number of seeds instead of the scenario's.", "N", min=2)
    ] = None,
    power: Annotated[
        Path | None, option("Measured caps: CSV of power_limit, seconds, watts.", "FILE")
    ] = None,
    jobs: Jobs = None,
    step: Step = None,
    parameters: Parameters = None,
    link: Link = None,
    batch: Batch = None,
    latency: Latency = None,
    precision: Width = "fp32",
    workers: Workers = None,
    out: Annotated[
        Path | None, out_option("Folder to write; reports/advice-<name> by default.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say which policy to run, how sure that is, what to measure.

    Ctrl-C keeps finished runs in FOLDER.partial; the same command goes on.
    """
    from simstrag.advice.advise import advise as search
    from simstrag.advice.power import power_points, read_power_caps
    from simstrag.experiments.runner import RunCache
    from simstrag.runs.run import check_directory, plain

    described = describe_job(
        {"step": step, "parameters": parameters, "link": link, "latency": latency, "batch": batch},
        precision, workers,
    )  # fmt: skip
    scenario = _scenario(job, described, given_options(context, OF_JOB))
    caps = None if power is None else read_power_caps(power)
    folder = out or Path("reports") / f"advice-{job.stem}"
    check_directory(folder, "comparison.csv")
    kept = partial_folder(folder)
    try:
        with capture_warnings() as warnings, show_count(quiet, after=10.0) as show:
            advice = search(
                scenario, policy, change=change, seeds=seeds, jobs=jobs, on_progress=show,
                keep=kept,
            )  # fmt: skip
            points = () if caps is None else power_points(
                advice, caps, jobs=jobs, on_progress=show
            )  # fmt: skip
            show.begin_last("drawing the report")
            advice.comparison.write(folder, command_line(), job)
            document = advice.to_dict() | {"power": [point._asdict() for point in points]}
            text = json.dumps(plain(document), indent=2)
            (folder / "advice.json").write_text(text, encoding="utf-8")
    except KeyboardInterrupt:
        where = f"finished runs are kept in {kept}; the same command goes on from there"
        raise Interrupted(where if kept.exists() else "nothing was written") from None
    RunCache.of(kept, advice.comparison.scenario).clear()
    page, banner = folder / "report.html", str(advice.comparison.placeholders)
    told = (w for w in advice.comparison.warnings if as_json or w != banner)
    warnings += told  # where candidates are printed, the placeholders stand above them
    document |= {"warnings": warnings, "written": folder, "report": page}
    print_result(as_json, quiet, document, lambda: _print(advice, points), warnings, report=page)


def _scenario(path: Path, job: JobDescription, given: list[str]) -> Scenario:
    """The scenario of a file, of a record, or the first scenario of a trace."""
    from simstrag.cli.first_scenario import read_first_scenario
    from simstrag.whatif.job_scenario import read_job_scenario

    refused = None
    if path.suffix in TRACES:
        try:
            return read_first_scenario(check_trace(path), job)
        except InputError as error:
            refused = error
    is_scenario = path.suffix in SCENARIOS
    if given:
        kind = "a scenario" if is_scenario else "a record"
        raise refused or InputError(f"{given[0]}: {path} is {kind}, which says that itself")
    if is_scenario:
        return read_scenario(path)
    try:
        return read_job_scenario(path)
    except InputError as error:
        raise refused or error from None


def _print(advice: Advice, points: tuple[PowerPoint, ...]) -> None:
    """Print the candidates, what to do, the lines that do it, and the caps worth choosing."""
    from simstrag.advice.advice_text import candidates_table
    from simstrag.advice.power import power_table

    if banner := str(advice.comparison.placeholders):
        print_sentences(f"{banner}\n")
    table = candidates_table(advice, SHOWN)
    print_table(table.headers, table.rows)
    print_paragraphs(*table.notes, *advice.sentences)
    print("On real ranks:")
    for line in advice.lines:
        print(f"  {line}")
    if points:
        table = power_table(points)
        print_table(table.headers, table.rows)
        print_paragraphs(*table.notes)
