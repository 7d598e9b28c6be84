"""`simstrag trace`: describe, generate, import and resample contention traces."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simstrag.cli.console import (
    format_cell,
    print_line,
    print_paragraphs,
    print_sentences,
    print_table,
)
from simstrag.cli.options import (
    OUTPUT,
    SeedOption,
    TraceFile,
    argument,
    flag,
    option,
    out_option,
    parse_pairs,
)
from simstrag.cli.output import emit, mode, print_path
from simstrag.cli.read_inputs import TRACES, check_trace, find_import
from simstrag.documents.file_io import writable, write_atomically
from simstrag.documents.printable import shell_command, shell_word
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.traces.provenance import Labelled

STEPS, LOADS = "Steps and episodes", "Utilisation"
EPISODES = "Episodes"

PICTURES = (".png", ".svg", ".pdf")
MODELS = ("episodes", "on-off")
LEAST = ("first", "last", "longest_clean")
"""Columns of a description that a narrow terminal leaves out, in this order."""
SHOWN_NAMES = 8
"""Most names of nodes to print; the page has them all."""

FORMATS = "As trace describe names it, such as steps, nvidia-smi, prometheus or kineto."
OutFile = Annotated[Path, out_option("CSV, or parquet by its name.", "FILE")]


def describe(
    file: TraceFile,
    plot: Annotated[Path | None, option("Draw it: *.png, *.svg or *.pdf.", "FILE")] = None,
) -> None:
    """Check a trace and say what is in it; of a log, say which command makes a trace of it."""
    from simstrag.trace.trace import Trace
    from simstrag.traces.describe import describe as describe_trace
    from simstrag.traces.importers import decimal_commas
    from simstrag.traces.provenance import origin_of

    if plot is not None and writable(plot, *PICTURES).suffix not in PICTURES:
        raise InputError(f"{plot}: is no name of a picture; name it {' or '.join(PICTURES)}")
    log = find_import(file)
    if log is not None:
        commas = decimal_commas(file)
        numbers = f" Decimal commas are read as points in: {', '.join(commas)}." if commas else ""
        text = f"{file}: a log in format {log[0]}, and no trace yet.{numbers}"

        def show_next() -> None:
            print_sentences(text)
            print_line(f"next: {log[1]}")

        emit({"text": text, "format": log[0], "next": log[1]}, show_next)
        return
    trace = Trace.read(file)
    description, origin = describe_trace(trace), origin_of(file)
    tables = {"slowdowns": description.slowdowns, "others": description.others}
    if plot is not None:
        from simstrag.analysis.charts.trace_heatmap import heatmap

        figure = heatmap(trace)
        write_atomically(plot, lambda part: figure.savefig(part, format=plot.suffix[1:]))

    def show() -> None:
        label = "" if origin is None else f" Its rows are labelled: {origin}."
        print_sentences(description.text + label)
        if plot is not None:
            print_path("plot", plot)
        for frame in tables.values():
            if len(frame):
                rows = frame.astype(object).itertuples(index=False)
                cells = [[format_cell(value) for value in row] for row in rows]
                print_table(list(frame.columns), cells, least=LEAST)

    records = {name: frame.to_dict("records") for name, frame in tables.items()}
    emit({"text": description.text, "origin": origin, "plot": plot, **records}, show)


def generate(
    out: OutFile,
    nodes: Annotated[int, option("Number of nodes.", "N")] = 8,
    seconds: Annotated[float, option("Length of the trace.", "S")] = 3600.0,
    seed: SeedOption = 0,
    resource: Annotated[str, option("gpu, host, net or step.", "WORD")] = "gpu",
    model: Annotated[str, option("episodes or on-off.", "WORD", group=EPISODES)] = "episodes",
    severity: Annotated[
        str, option("fixed:S, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA.", "HOW", group=EPISODES)
    ] = "fixed:2",
    mean_interarrival: Annotated[
        float, option("Mean clean seconds before one.", "S", group=EPISODES)
    ] = 240.0,
    duration_mean: Annotated[
        float, option("Mean seconds of an episode.", "S", group=EPISODES)
    ] = 120.0,
    duration_sd: Annotated[
        float | None,
        option("Standard deviation; not on-off.", "S", show_default="20", group=EPISODES),
    ] = None,
    gap: Annotated[
        float | None,
        option("Clean seconds after; not on-off.", "S", show_default="60", group=EPISODES),
    ] = None,
) -> None:
    """Draw episodes of slowdown, the same ones for the same seed."""
    from simstrag.traces.generate import generate as generate_trace
    from simstrag.traces.generate import on_off

    if writable(out).suffix not in TRACES:
        raise InputError(f"{out}: is no name of a trace; name it *.csv or *.parquet")
    optional = {"duration_sd": duration_sd, "gap": gap}
    stated = {name: value for name, value in optional.items() if value is not None}
    if model not in MODELS:
        known = ", ".join(MODELS)
        raise InputError(f"--model {model}: there is none{nearest(model, MODELS)}; known: {known}")
    if model == "on-off":
        if stated:
            given = next(iter(stated)).replace("_", "-")
            raise InputError(f"--{given}: needs --model episodes; on-off is memoryless")
        trace = on_off(nodes, seconds, seed, resource, duration_mean, mean_interarrival, severity)
    else:
        trace = generate_trace(
            nodes, seconds, seed, resource, mean_interarrival, duration_mean, severity=severity,
            **stated,
        )  # fmt: skip
    trace.write(out)
    emit({"trace": out, "rows": len(trace.rows)}, trace=out)


def import_(
    name: Annotated[str, argument(FORMATS, "FORMAT")],
    files: Annotated[list[Path] | None, argument("What to import.", "FILE...")] = None,
    out: Annotated[Path | None, out_option("CSV, or parquet by its name.", "TRACE")] = None,
    scenario: Annotated[
        Path | None, option("Write a first scenario, too, as init does.", "FILE", group=OUTPUT)
    ] = None,
    column: Annotated[
        list[str] | None, option("Column of a meaning: time=NAME, gpu=NAME, ...", "WHAT=NAME")
    ] = None,
    resource: Annotated[
        str | None, option("gpu, host, net or step, which is slowed; step.", "WORD", group=STEPS)
    ] = None,
    hosts: Annotated[
        str | None,
        option("Of episodes: all hosts, a number or names.", "N|A,B,...", group=STEPS),
    ] = None,
    response: Annotated[
        str | None, option("What a load costs: fair-share or reciprocal.", "WORD", group=LOADS)
    ] = None,
    fraction: Annotated[
        bool | None, flag("Unit; percent.", "--fraction/--percent", group=LOADS)
    ] = None,
    own: Annotated[
        list[str] | None, option("Share that is the job's own: gpu=0.6.", "WHAT=SHARE", group=LOADS)
    ] = None,
    clean: Annotated[
        float | None, option("Quantile of times taken as clean; 0.", "Q", group="Alibaba PAI")
    ] = None,
) -> None:
    """Make a trace of a log, and a page beside it that says how."""
    from simstrag.cli.init import example_command
    from simstrag.scenario.scenario import Scenario
    from simstrag.traces.importers import FORMATS as IMPORTS
    from simstrag.traces.importers import free_name, import_trace, require_format
    from simstrag.traces.provenance import page_of
    from simstrag.whatif.first_scenario import write_first_scenario

    if name not in IMPORTS and Path(name).suffix:
        log = find_import(Path(name))
        raise InputError(
            f"{name}: is a trace already; simstrag trace describe {shell_word(name)} checks it"
            if log is None
            else f"{name}: is no format but a file in format {log[0]}; import it: {log[1]}"
        )
    require_format(name)
    if files is None or out is None:
        missing = "FILE..." if files is None else "--out TRACE"
        raise InputError(f"{missing} is missing: simstrag trace import {name} FILE... --out TRACE")
    page_of(out)
    if scenario is not None:
        writable(scenario)
    labelled = import_trace(
        name, files, clean=clean, fraction=fraction, columns=parse_pairs("--column", column),
        own=_numbers("--own", parse_pairs("--own", own)), resource=resource,
        response=response, hosts=hosts,
    )  # fmt: skip
    lines, names = labelled.lines(str(out)), labelled.trace.names
    if scenario is not None and not lines:
        raise InputError(
            f"--scenario {scenario}: nothing says what a load costs a step; assume a response "
            "(--response fair-share), or write a scenario with a measured profile"
        )
    page = labelled.write(out)
    written = None if scenario is None else write_first_scenario(out, scenario)
    placeholders = () if written is None else Scenario.read(written).placeholders
    command = _next(out, written, bool(lines))
    document = {
        "scenario": list(lines), "scenario_file": written, "next": command,
        "placeholders": placeholders,
        "nodes": {str(node): called for node, called in names.items()},
    }  # fmt: skip
    _print_written(labelled, out, page, **document)
    if written is not None and not mode().as_json:
        print_path("scenario", written)
    if not mode().talks:
        return
    if lines and written is None:
        for line in ("a scenario that runs as it is:", *(f"  {line}" for line in lines)):
            print_line(line)
    if names:
        called = [f"{node} is {name}" for node, name in names.items()]
        rest = [f"... ({len(names)} in all, in the page)"] if len(names) > SHOWN_NAMES else []
        print_line(f"nodes: {', '.join(called[:SHOWN_NAMES] + rest)}")
    if written is not None and placeholders:
        other = example_command(out, free_name(written, ".yaml"), placeholders)
        how = f", or write another with what you know of the job, such as: {other}" if other else ""
        print_sentences(f"placeholders: {', '.join(placeholders)}; replace them in {written}{how}")
    print_line(f"next: {command}")


def _next(out: Path, scenario: Path | None, is_runnable: bool) -> str:
    """The command that follows an import, as it has to be typed."""
    from simstrag.traces.importers import free_name

    if scenario is not None:
        return shell_command(["simstrag", "compare", str(scenario)])
    free = str(free_name(out.with_suffix(".yaml"), ".yaml"))
    if is_runnable:
        return shell_command(["simstrag", "init", str(out), "--out", free])
    other = free_name(out.with_stem(f"{out.stem}-fair-share"), ".csv", ".parquet", ".md")
    typed = [
        re.sub(rf"^(|-o|--out=){re.escape(str(out))}$", rf"\g<1>{other}", word)
        for word in sys.argv[1:]
    ]
    return shell_command(["simstrag", *typed, "--response", "fair-share", "--scenario", free])


def resample(
    file: TraceFile,
    out: OutFile,
    workers: Annotated[
        int | None, option("Nodes to make; as many as there are.", "N", min=1)
    ] = None,
    seconds: Annotated[float | None, option("Length to make; that of TRACE.", "S")] = None,
    block: Annotated[
        float | None, option("Seconds drawn as a whole; 10 correlation times.", "S")
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Draw more nodes or a longer time from blocks of a recorded trace.

    The rows are labelled as resampled, and a page beside them says how.
    """
    from simstrag.trace.trace import Trace
    from simstrag.traces.provenance import origin_of, page_of
    from simstrag.traces.resample import resample as resample_trace

    page_of(out)
    trace = Trace.read(check_trace(file))
    labelled = resample_trace(
        trace, workers or len(trace.nodes), trace.end if seconds is None else seconds, block, seed
    )
    origin = origin_of(file)
    if origin is not None:
        note = f"Source: its rows are no plain record; they are labelled {origin}."
        labelled = replace(labelled, notes=(*labelled.notes, note))
    _print_written(labelled, out, labelled.write(out))


def _print_written(labelled: Labelled, out: Path, page: Path, **more: Any) -> None:
    """Print a labelled trace that was written, with its sources. more: keys of the JSON."""
    document = {
        "trace": out, "page": page, "rows": len(labelled.trace), "origin": labelled.origin,
        "notes": list(labelled.notes), **more,
    }  # fmt: skip
    emit(document, trace=out)
    if mode().talks:
        print_path("page", page)
        print_paragraphs(*labelled.notes)


def _numbers(option: str, pairs: dict[str, str] | None) -> dict[str, float] | None:
    numbers = {}
    for what, text in (pairs or {}).items():
        try:
            numbers[what] = float(text)
        except ValueError:
            raise InputError(f"{option} {what}={text}: '{text}' is not a number") from None
    return numbers or None
