"""`simstrag advise`: which policy for a job, how sure that is, and what to measure first.

With `--timeouts`: when to take a rank for lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simstrag.cli.cluster import draw
from simstrag.cli.console import (
    capture_warnings,
    command_line,
    print_brief,
    print_line,
    print_paragraphs,
    print_sentences,
    print_table,
)
from simstrag.cli.init import (
    BatchOption,
    LatencyOption,
    LinkOption,
    ParametersOption,
    StepOption,
    WidthOption,
    WorkersOption,
    describe_job,
)
from simstrag.cli.options import (
    JobsOption,
    VerboseOption,
    argument,
    flag,
    given_options,
    option,
    out_option,
    policy_option,
)
from simstrag.cli.output import emit, mode, on_interrupt
from simstrag.cli.progress import Count, show_count
from simstrag.cli.read_inputs import (
    SCENARIOS,
    TRACES,
    check_trace,
    partial_folder,
    read_scenario,
    refuse_other,
)
from simstrag.documents.yaml_file import read_mapping
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.advice.power import PowerPoint
    from simstrag.advice.recommendation import Recommendation
    from simstrag.profile.power_caps import PowerCaps
    from simstrag.scenario.scenario import Scenario
    from simstrag.whatif.first_scenario import JobDescription

    Found = tuple[Recommendation, str, tuple[PowerPoint, ...], Path | None]
    """The advice, its placeholders, its power caps, and the page of its finalists."""

OF_JOB = ("step", "parameters", "link", "batch", "latency", "precision", "workers")
"""The options that describe the job of a trace; a scenario describes it itself."""
SHOWN = 12
"""Most candidates that the table shows."""


def advise(
    context: typer.Context,
    job: Annotated[
        Path,
        argument("A scenario, trace, record or cluster study.", "JOB"),
    ],
    policy: Annotated[
        list[str] | None, policy_option("A candidate instead of all; may be repeated.")
    ] = None,
    change: Annotated[
        str,
        option("Changes: none, some gradients, all.", "A|B|C"),
    ] = "C",
    seeds: Annotated[
        int | None, option("Number of seeds instead of the scenario's.", "N", min=2)
    ] = None,
    quantile: Annotated[
        float | None, option("Choose by this quantile of one run, not the mean.", "Q")
    ] = None,
    power: Annotated[
        Path | None, option("Measured caps: CSV of power_limit, seconds, watts.", "FILE")
    ] = None,
    timeouts: Annotated[
        bool, flag("When to take a rank for lost, instead of a policy.", "--timeouts")
    ] = False,
    failures: Annotated[
        Path | None, option("A scenario with the failures, for --timeouts.", "FILE")
    ] = None,
    jobs: JobsOption = None,
    step: StepOption = None,
    parameters: ParametersOption = None,
    link: LinkOption = None,
    batch: BatchOption = None,
    latency: LatencyOption = None,
    precision: WidthOption = "fp32",
    workers: WorkersOption = None,
    out: Annotated[
        Path | None, out_option("Folder to write; reports/advice-<name> by default.")
    ] = None,
    verbose: VerboseOption = False,
) -> None:
    """Say which policy to run, how sure that is, what to measure.

    Ctrl-C keeps finished runs in FOLDER.partial; the same command goes on.
    """
    from simstrag.advice.power import read_power_caps
    from simstrag.runs.run import plain

    described = describe_job(
        {"step": step, "parameters": parameters, "link": link, "latency": latency, "batch": batch},
        precision, workers,
    )  # fmt: skip
    given = given_options(context, OF_JOB)
    folder = out or Path("reports") / f"{'timeouts' if timeouts else 'advice'}-{job.stem}"
    if timeouts:
        if others := given_options(context, ("policy", "change", "quantile", "power", "jobs")):
            raise InputError(f"{others[0]} says nothing about timeouts; leave it out")
        from simstrag.cli.timeouts import advise_on_timeouts

        scenario = _scenario(job, described, given)
        advise_on_timeouts(scenario, job.stem, failures, seeds, folder, verbose)
        return
    if failures is not None:
        raise InputError("--failures is for --timeouts; a scenario says its own failures")
    options = {"policies": policy, "change": change, "seeds": seeds, "jobs": jobs}
    advise_on: Callable[[Count], Found]
    if _is_study(job):
        if quantile is not None:
            raise InputError(
                f"--quantile: {job} is a study of jobs on a cluster, compared by mean completion "
                "times; leave it out"
            )
        if given or power is not None:
            raise InputError(f"{[*given, '--power'][0]}: {job} is a study of jobs on a cluster")
        advise_on = partial(_advise_on_cluster, job, folder, options)
    else:
        caps = None if power is None else read_power_caps(power)
        scenario = _scenario(job, described, given)
        own = options | {"quantile": quantile}
        advise_on = partial(_advise_on_job, job, scenario, folder, own, caps)
    with capture_warnings() as warnings, show_count(after=10.0) as show:
        advice, banner, points, page = advise_on(show)
        document = advice.to_dict() | {"power": [point._asdict() for point in points]}
        text = json.dumps(plain(document), indent=2)
        (folder / "advice.json").write_text(text, encoding="utf-8")
    told = list(warnings)  # before any run
    # The table of candidates already has the banner of placeholders above it.
    warnings += [each for each in advice.warnings if mode().as_json or each != banner]
    document |= {"warnings": warnings, "written": folder, "report": page}
    shown = partial(_print if verbose else _print_brief, advice, banner, points)
    emit(document, shown, warnings if verbose else told, report=page)


def _is_study(path: Path) -> bool:
    """Whether a file is a cluster study by its keys."""
    if path.suffix not in SCENARIOS or not path.is_file():
        return False
    return "workloads" in read_mapping(path, "scenario", "workers: 8")


def _advise_on_cluster(path: Path, folder: Path, options: Mapping[str, Any], show: Count) -> Found:
    """Advice on a cluster study, and the page of its finalists."""
    from simstrag.advice.cluster_advice import advise_cluster

    sys.path.append(str(path.absolute().parent))
    advice = advise_cluster(path, folder, **options, on_progress=show)
    show.begin_last("drawing the report")
    return advice, "", (), draw(advice.results)


def _advise_on_job(
    path: Path, scenario: Scenario, folder: Path, options: Mapping[str, Any],
    caps: PowerCaps | None, show: Count,
) -> Found:  # fmt: skip
    """Advice on one job, with power caps if any, and the page of its finalists."""
    from simstrag.advice.advise import advise as search
    from simstrag.advice.power import power_points
    from simstrag.experiments.runner import RunCache
    from simstrag.runs.run import check_directory

    check_directory(folder, "comparison.csv")
    refuse_other(folder, path, advises=True)
    kept = partial_folder(folder)
    with on_interrupt(lambda _: _describe_kept(kept)):
        advice = search(scenario, **options, on_progress=show, keep=kept)
        points = () if caps is None else power_points(
            advice, caps, jobs=options["jobs"], on_progress=show
        )  # fmt: skip
        show.begin_last("drawing the report")
        advice.comparison.write(folder, command_line(), path)
    RunCache.of(kept, advice.comparison.scenario).clear()
    return advice, str(advice.comparison.placeholders), points, folder / "report.html"


def _describe_kept(kept: Path) -> str:
    where = f"finished runs are kept in {kept}; the same command goes on from there"
    return where if kept.exists() else "nothing was written"


def _scenario(path: Path, job: JobDescription, given: list[str]) -> Scenario:
    """The scenario of a file, of a record, or the first scenario of a trace."""
    from simstrag.whatif.first_scenario import read_first_scenario
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


def _print_brief(advice: Recommendation, _: str, points: tuple[PowerPoint, ...]) -> None:
    """Print what to run, and the caps worth choosing."""
    from simstrag.analysis.text.advice_text import brief

    print_brief(brief(advice))
    _print_power(points)


def _print(advice: Recommendation, banner: str, points: tuple[PowerPoint, ...]) -> None:
    """Print the candidates, what to do, the lines that do it, and the caps worth choosing."""
    from simstrag.analysis.text.advice_text import candidates_table

    if banner:
        print_sentences(f"{banner}\n")
    table = candidates_table(advice, SHOWN)
    print_table(table.headers, table.rows)
    print_paragraphs(*table.notes, *advice.sentences)
    print_line("On real ranks:")
    for line in advice.lines:
        print_line(f"  {line}")
    _print_power(points)


def _print_power(points: tuple[PowerPoint, ...]) -> None:
    from simstrag.analysis.text.advice_text import power_table

    if points:
        table = power_table(points)
        print_table(table.headers, table.rows)
        print_paragraphs(*table.notes)
