"""`simstrag trace resample`: more of a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simstrag.cli.console import print_json, print_paragraphs, print_path
from simstrag.cli.options import Json, Quiet, Seed, check_trace

__all__ = ["resample"]


def resample(
    file: Annotated[
        Path, typer.Argument(help="A CSV or parquet trace.", metavar="TRACE", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="CSV, or parquet by its name.", metavar="FILE")
    ],
    workers: Annotated[
        int | None,
        typer.Option(
            help="Nodes to make; as many as there are.", min=1, metavar="N", show_default=False
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Length to make; that of TRACE.", metavar="S", show_default=False),
    ] = None,
    block: Annotated[
        float | None,
        typer.Option(
            help="Seconds drawn as a whole; 10 correlation times.", metavar="S", show_default=False
        ),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw more nodes or a longer time from blocks of a recorded trace.

    The rows are labelled as resampled, and a page beside them says how.
    """
    from simstrag.trace.trace import Trace
    from simstrag.traces.labelled import origin_of, page_of
    from simstrag.traces.resample import resample as resample_trace

    page_of(out)
    trace = Trace.read(check_trace(file))
    found = resample_trace(
        trace, workers or len(trace.nodes), trace.end if seconds is None else seconds, block, seed
    )
    origin = origin_of(file)
    if origin is not None:
        found = found.noting(f"Source: its rows are no plain record; they are labelled {origin}.")
    page = found.write(out)
    if as_json:
        print_json({
            "trace": out, "page": page, "rows": len(found.trace), "origin": found.origin,
            "notes": list(found.notes),
        })  # fmt: skip
        return
    print_path("trace", out, quiet)
    if not quiet:
        print_path("page", page)
        print_paragraphs(*found.notes)
