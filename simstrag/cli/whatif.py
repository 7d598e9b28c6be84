"""`simstrag whatif`: what a straggler cost a real job, who it was, and what fixing it gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simstrag.cli.console import command_line, print_paragraphs, print_result, print_table, warn
from simstrag.cli.options import Jobs, Json, Quiet, argument, option, out_option, split_policies

if TYPE_CHECKING:
    from simstrag.whatif.analysis import WhatIf

POLICIES = "What policies would have given"


def whatif(
    record: Annotated[
        Path,
        argument("Parquet, CSV, log, run, or folder of rank files.", "RECORD"),
    ],
    out: Annotated[Path | None, out_option("Folder for report.html and whatif.json.")] = None,
    gpu_price: Annotated[
        float | None, option("Of a GPU-hour, in any currency.", "X", "--gpu-price")
    ] = None,
    compare: Annotated[
        str | None,
        option(
            "Policies to simulate on this job, such as korel,lb_bsp.", "POLICY,...", group=POLICIES
        ),
    ] = None,
    amp_ratio: Annotated[
        float | None,
        option("What reduced precision gains in it.", "X", "--amp-ratio", group=POLICIES),
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what stragglers cost a recorded job, who it was, and why."""
    from simstrag.runs.run import check_directory
    from simstrag.whatif.analysis import NUMBERS, analyse

    if out is not None:
        check_directory(out, NUMBERS)
    names = [] if compare is None else split_policies(compare)
    found = analyse(record, gpu_price, compare=names, amp_ratio=amp_ratio, jobs=jobs)
    page = None if out is None else found.write(out, command_line())
    document = {**found.document, "report": page}
    print_result(as_json, quiet, document, lambda: _print(found), report=page)


def _print(found: WhatIf) -> None:
    """Print the warnings, before any number; then what was found."""
    from simstrag.analysis.tables.whatif_tables import fixes_table, policies_table
    from simstrag.analysis.text.whatif_text import policy_sentences, sentences

    warn(found.warnings)
    print_paragraphs("\n".join(sentences(found)))
    if found.fixes:
        table = fixes_table(found)
        print_table(table.headers, table.rows)
        print_paragraphs(*table.notes)
    print_paragraphs(*found.record.notes)
    if found.policies is not None:
        print_paragraphs("\n".join(policy_sentences(found.policies)))
        table = policies_table(found.policies)
        print_table(table.headers, table.rows)
        print_paragraphs(*table.notes)
