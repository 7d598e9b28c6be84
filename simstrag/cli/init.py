"""`simstrag init`: a first scenario from a contention trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simstrag.cli.console import print_json, print_path
from simstrag.cli.options import Json, Quiet, check_trace


def init(
    trace: Annotated[
        Path, typer.Argument(help="A CSV or parquet trace.", metavar="TRACE", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Scenario to write; never over one.", metavar="FILE"),
    ] = Path("scenario.yaml"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a commented first scenario for a trace.

    It runs as it is; replace the numbers marked ASSUMED by your own.
    """
    from simstrag.cli.init_template import write_first_scenario

    write_first_scenario(check_trace(trace), out)
    if as_json:
        print_json({"scenario": out})
        return
    print_path("scenario", out, quiet)
    if not quiet:
        print("first: put your own numbers where it says ASSUMED")
        print(f"next: simstrag compare {out}")
