"""`simstrag claims`: which of the papers' claims hold here, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import capture_warnings, command_line, print_paragraphs, print_table
from simstrag.cli.options import JobsOption, VerboseOption, flag, option, out_option
from simstrag.cli.output import emit
from simstrag.cli.progress import show_count

if TYPE_CHECKING:
    from simstrag.claims.scoreboard import Scoreboard

DRAWING = 3.0
"""About the seconds that the page takes."""


def complete_claim(incomplete: str) -> list[str]:
    """Claims whose names begin with `incomplete`, for shell completion."""
    from simstrag.claims.registry import CLAIMS

    return [claim.name for claim in CLAIMS if claim.name.startswith(incomplete)]


def claims(
    only: Annotated[
        list[str] | None,
        option("A claim; may be repeated.", "NAME", "--only", autocompletion=complete_claim),
    ] = None,
    quick: Annotated[bool, flag("Coarse maps and three seeds; train nothing.", "--quick")] = False,
    out: Annotated[Path | None, out_option("reports/claims by default.")] = None,
    jobs: JobsOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Say which of the papers' claims hold, and where.

    Run it again after an interrupt to go on.
    """
    from simstrag.claims.scoreboard import FOLDER, judge

    folder = FOLDER if out is None else out
    with capture_warnings() as warnings, show_count(DRAWING) as show:
        board = judge(only or (), folder, quick=quick, jobs=jobs, on_progress=show)
        show.begin_last("drawing the page")
        page = board.write(command_line())
    document = {**board.document, "warnings": warnings, "report": page}
    emit(document, lambda: _print(board, verbose), warnings, report=page)
    if any(p.failed for row in board.rows for t in row.trials.values() for p in t.points):
        raise typer.Exit(1)


def _print(board: Scoreboard, verbose: bool) -> None:
    from simstrag.analysis.tables.claim_tables import claims_table, entrants_table
    from simstrag.analysis.text.claim_text import headline, sentences

    table = claims_table(board)
    print_table(table.headers, table.rows, table.wraps, table.least)
    entrants = entrants_table(board.rows)
    if verbose and entrants.rows:
        print_table(entrants.headers, entrants.rows, entrants.wraps, entrants.least)
        print_paragraphs(*entrants.notes)
    print_paragraphs(
        headline(board),
        *(f"{row.claim.name}: {' '.join(sentences(row))}" for row in board.rows if verbose),
        *(f"{each.says}: {each.found} ({each.how})." for each in board.identities),
        *table.notes,
    )
