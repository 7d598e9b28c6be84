"""`simstrag report`: draw the report of a saved comparison or run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from simstrag.cli.console import print_result
from simstrag.cli.options import Json, Quiet, argument, out_option
from simstrag.documents.file_io import require_path, writable


def report(
    folder: Annotated[Path, argument("What compare or run wrote.", "FOLDER")],
    out: Annotated[
        Path | None, out_option("HTML file; report.html in the folder by default.", "FILE")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw the HTML report of a saved comparison or run again."""
    from simstrag.analysis.pages.report import report as write_report

    if out is not None:
        writable(out, ".html")
    page = write_report(require_path(folder), out)
    print_result(as_json, quiet, {"report": page}, report=page)
