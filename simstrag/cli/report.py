"""`simstrag report`: draw the report of saved results again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from simstrag.cli.options import argument, option, out_option
from simstrag.cli.output import emit
from simstrag.cli.read_inputs import results_folder
from simstrag.documents.file_io import writable


def report(
    folder: Annotated[
        Path, argument("What compare, sweep, cluster or run wrote, or its file.", "FOLDER")
    ],
    out: Annotated[
        Path | None, out_option("HTML file; report.html in the folder by default.", "FILE")
    ] = None,
    x: Annotated[
        str | None,
        option("A key of a sweep, along x in its picture.", "KEY", "--x"),
    ] = None,
    y: Annotated[str | None, option("Another, along y.", "KEY", "--y")] = None,
) -> None:
    """Draw the report of saved results again."""
    from simstrag.analysis.pages.report import report as write_report

    if out is not None:
        writable(out, ".html")
    page = write_report(results_folder(folder), out, x, y)
    emit({"report": page}, report=page)
