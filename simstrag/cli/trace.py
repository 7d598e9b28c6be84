"""`simstrag trace describe` and `generate`: look into a contention trace, or draw one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simstrag.cli.console import format_cell, print_json, print_path, print_sentences, print_table
from simstrag.cli.options import TRACES, Json, Quiet, Seed, check_trace
from simstrag.documents.paths import writable, write_whole
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

__all__ = ["describe", "generate"]

PICTURES = (".png", ".svg", ".pdf")
MODELS = ("episodes", "on-off")
LEAST = ("first", "last", "longest_clean")
"""Columns of a description that a narrow terminal does without, the first of them first."""


def describe(
    file: Annotated[
        Path, typer.Argument(help="A CSV or parquet trace.", metavar="TRACE", show_default=False)
    ],
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw it: *.png, *.svg or *.pdf.", metavar="FILE", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a trace and say what is in it."""
    from simstrag.trace.trace import Trace
    from simstrag.traces.describe import describe as describe_trace
    from simstrag.traces.labelled import origin_of

    if plot is not None and writable(plot, *PICTURES).suffix not in PICTURES:
        raise InputError(f"{plot}: is no name of a picture; name it {' or '.join(PICTURES)}")
    trace = Trace.read(check_trace(file))
    found, origin = describe_trace(trace), origin_of(file)
    tables = {"slowdowns": found.slowdowns, "others": found.others}
    if plot is not None:
        from simstrag.analysis.charts.heatmap import heatmap

        drawn = heatmap(trace)
        write_whole(plot, lambda part: drawn.savefig(part, format=plot.suffix[1:]))
    if as_json:
        records = {name: frame.to_dict("records") for name, frame in tables.items()}
        print_json({"text": found.text, "origin": origin, "plot": plot, **records})
        return
    print_sentences(
        found.text if origin is None else f"{found.text} Its rows are labelled: {origin}."
    )
    if plot is not None:
        print_path("plot", plot)
    for frame in tables.values():
        if len(frame):
            rows = frame.astype(object).itertuples(index=False)
            cells = [[format_cell(value) for value in row] for row in rows]
            print_table(list(frame.columns), cells, least=LEAST)


def generate(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="CSV, or parquet by its name.", metavar="FILE")
    ],
    nodes: Annotated[int, typer.Option(help="Number of nodes.", metavar="N")] = 8,
    seconds: Annotated[float, typer.Option(help="Length of the trace.", metavar="S")] = 3600.0,
    seed: Seed = 0,
    resource: Annotated[str, typer.Option(help="gpu, host, net or step.", metavar="WORD")] = "gpu",
    model: Annotated[str, typer.Option(help="episodes or on-off.", metavar="WORD")] = "episodes",
    severity: Annotated[
        str,
        typer.Option(help="fixed:S, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA.", metavar="HOW"),
    ] = "fixed:2",
    mean_interarrival: Annotated[
        float, typer.Option(help="Mean clean seconds before one.", metavar="S")
    ] = 240.0,
    duration_mean: Annotated[
        float, typer.Option(help="Mean seconds of an episode.", metavar="S")
    ] = 120.0,
    duration_sd: Annotated[
        float | None,
        typer.Option(help="Standard deviation; not on-off.", metavar="S", show_default="20"),
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(help="Clean seconds after; not on-off.", metavar="S", show_default="60"),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw episodes of slowdown, the same ones for the same seed."""
    from simstrag.traces.generate import generate as generate_trace
    from simstrag.traces.on_off import on_off

    if writable(out).suffix not in TRACES:
        raise InputError(f"{out}: is no name of a trace; name it *.csv or *.parquet")
    own = {"duration_sd": duration_sd, "gap": gap}
    given = {name: value for name, value in own.items() if value is not None}
    if model not in MODELS:
        known = ", ".join(MODELS)
        raise InputError(f"--model {model}: there is none{nearest(model, MODELS)}; known: {known}")
    if model == "on-off":
        for name in given:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: is of --model episodes; on-off is without memory")
        trace = on_off(nodes, seconds, seed, resource, duration_mean, mean_interarrival, severity)
    else:
        trace = generate_trace(
            nodes, seconds, seed, resource, mean_interarrival, duration_mean, severity=severity,
            **given,
        )  # fmt: skip
    trace.write(out)
    if as_json:
        print_json({"trace": out, "rows": len(trace.rows)})
    else:
        print_path("trace", out, quiet)
