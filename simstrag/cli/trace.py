"""`simstrag trace`: look into a contention trace, or make one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simstrag.cli.console import document, sentences, table, text, written
from simstrag.cli.inputs import TRACES, trace_at
from simstrag.cli.options import Json, Quiet, Seed
from simstrag.errors import InputError
from simstrag.paths import writable

__all__ = ["describe", "generate"]

LEAST = ("first", "last", "longest_clean")
"""Columns of a description that a narrow terminal does without, the first of them first."""


def describe(
    file: Annotated[
        Path, typer.Argument(help="A CSV or parquet trace.", metavar="TRACE", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Check a trace and say what is in it."""
    from simstrag.trace import Trace
    from simstrag.traces.describe import describe as describe_trace

    found = describe_trace(Trace.read(trace_at(file)))
    tables = {"slowdowns": found.slowdowns, "others": found.others}
    if as_json:
        records = {name: frame.to_dict("records") for name, frame in tables.items()}
        document({"text": found.text, **records})
        return
    sentences(found.text)
    for frame in tables.values():
        if len(frame):
            rows = frame.astype(object).itertuples(index=False)
            cells = [[text(value) for value in row] for row in rows]
            table(list(frame.columns), cells, least=LEAST)


def generate(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="CSV, or parquet by its name.", metavar="FILE")
    ],
    nodes: Annotated[int, typer.Option(help="Number of nodes.", metavar="N")] = 8,
    seconds: Annotated[float, typer.Option(help="Length of the trace.", metavar="S")] = 3600.0,
    seed: Seed = 0,
    resource: Annotated[str, typer.Option(help="gpu, host, net or step.", metavar="WORD")] = "gpu",
    severity: Annotated[
        str,
        typer.Option(help="fixed:S, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA.", metavar="HOW"),
    ] = "fixed:2",
    mean_interarrival: Annotated[
        float,
        typer.Option(help="Mean clean seconds before an episode, beyond the gap.", metavar="S"),
    ] = 240.0,
    duration_mean: Annotated[
        float, typer.Option(help="Mean seconds of an episode.", metavar="S")
    ] = 120.0,
    duration_sd: Annotated[float, typer.Option(help="Standard deviation.", metavar="S")] = 20.0,
    gap: Annotated[float, typer.Option(help="Clean seconds after an episode.", metavar="S")] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw fail-slow episodes, the same ones for the same seed."""
    from simstrag.traces.generate import generate as generate_trace

    if writable(out).suffix not in TRACES:
        raise InputError(f"{out}: is no name of a trace; name it *.csv or *.parquet")
    trace = generate_trace(
        nodes, seconds, seed, resource, mean_interarrival, duration_mean, duration_sd, gap, severity
    )
    trace.write(out)
    if as_json:
        document({"trace": out, "rows": len(trace.rows)})
    else:
        written("trace", out, quiet)
