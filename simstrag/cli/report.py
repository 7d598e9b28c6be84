"""`simstrag report`: the page of what was written earlier, written anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simstrag.cli.console import print_json, print_path
from simstrag.cli.options import Json, Quiet
from simstrag.documents.paths import expect, writable

__all__ = ["report"]


def report(
    folder: Annotated[
        Path,
        typer.Argument(help="What compare or run wrote.", metavar="FOLDER", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="HTML file; report.html in the folder by default.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the HTML report of a comparison or run anew."""
    from simstrag.analysis.pages.saved_reports import report as write_report

    if out is not None:
        writable(out, ".html")
    page = write_report(expect(folder), out)
    if as_json:
        print_json({"report": page})
    else:
        print_path("report", page, quiet)
