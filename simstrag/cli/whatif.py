"""`simstrag whatif`: what a straggler cost a real job, who it was, and what fixing it gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simstrag.cli.console import command_line, print_paragraphs, print_result, print_table, warn
from simstrag.cli.options import Json, Quiet, argument, option, out_option

if TYPE_CHECKING:
    from simstrag.whatif.analysis import WhatIf


def whatif(
    record: Annotated[
        Path,
        argument("Parquet, CSV, log, run, or folder of rank files.", "RECORD"),
    ],
    out: Annotated[Path | None, out_option("Folder for report.html and whatif.json.")] = None,
    gpu_price: Annotated[
        float | None, option("Of a GPU-hour, in any currency.", "X", "--gpu-price", min=0)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what stragglers cost a recorded job, who it was, and why."""
    from simstrag.whatif.analysis import analyse

    found = analyse(record, gpu_price)
    page = None if out is None else found.write(out, command_line())
    document = {**found.document, "report": page}
    print_result(as_json, quiet, document, lambda: _print(found), report=page)


def _print(found: WhatIf) -> None:
    """Print the warnings, before any number; then what was found."""
    from simstrag.analysis.tables.whatif_tables import fixes_table
    from simstrag.analysis.text.whatif_text import sentences

    warn(found.warnings)
    print_paragraphs("\n".join(sentences(found)))
    table = fixes_table(found)
    print_table(table.headers, table.rows)
    print_paragraphs(*table.notes, *found.record.notes)
