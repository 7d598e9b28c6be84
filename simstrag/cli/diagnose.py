"""`simstrag diagnose`: what a job's own files say: who was slow, what it cost, what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simstrag.cli.console import command_line, print_lines
from simstrag.cli.options import (
    JobsOption,
    VerboseOption,
    argument,
    option,
    out_option,
    parse_pairs,
    split_policies,
)
from simstrag.cli.output import emit

if TYPE_CHECKING:
    from simstrag.whatif.diagnosis import Diagnosis

POLICIES, NAMES = "What policies would give", "What the files are"


def diagnose(
    files: Annotated[
        list[Path],
        argument("Logs, profiles, metrics or folders of one job.", "FILE..."),
    ],
    out: Annotated[
        Path | None, out_option("Folder for report.html, diagnosis.json and a scenario.")
    ] = None,
    gpu_price: Annotated[
        float | None, option("Of a GPU-hour, in any currency.", "X", "--gpu-price")
    ] = None,
    form: Annotated[
        str | None, option("Format, where the content does not tell.", "NAME", "--format",
                           group=NAMES)
    ] = None,
    column: Annotated[
        list[str] | None,
        option("Column of a meaning: rank=NAME, seconds=NAME, ...", "WHAT=NAME", group=NAMES),
    ] = None,
    compare: Annotated[
        str | None,
        option("Policies to simulate instead of the usual ones, or none.", "POLICY,...",
               group=POLICIES),
    ] = None,
    amp_ratio: Annotated[
        float | None,
        option("What reduced precision gains in this job.", "X", "--amp-ratio", group=POLICIES),
    ] = None,
    jobs: JobsOption = None,
    verbose: VerboseOption = False,
) -> None:  # fmt: skip
    """Say who was slow in a job, what it cost, and what would help."""
    from simstrag.runs.run import check_directory
    from simstrag.whatif.diagnosis import NUMBERS
    from simstrag.whatif.diagnosis import diagnose as diagnose_files

    if out is not None:
        check_directory(out, NUMBERS)
    found = diagnose_files(
        *files, gpu_price=gpu_price, compare=_policies(compare), amp_ratio=amp_ratio, jobs=jobs,
        columns=parse_pairs("--column", column), form=form,
    )  # fmt: skip
    page = None if out is None else found.write(out, command_line())
    document = {**found.document, "report": page}
    emit(document, lambda: _print(found, out, verbose), report=page)


def _policies(text: str | None) -> list[str] | None:
    """The policies asked for; None for the usual ones."""
    if text is None:
        return None
    return [] if text == "none" else split_policies(text)


def _print(found: Diagnosis, out: Path | None, verbose: bool) -> None:
    from simstrag.analysis.text.diagnosis_lines import brief, lines

    print_lines(lines(found, out) if verbose else brief(found, out), unbroken="next")
