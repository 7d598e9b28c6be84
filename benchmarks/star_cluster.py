"""STAR in its own setting without the map, and what c_tau decides there.

    python -m benchmarks.star_cluster FOLDER [--jobs N] [--c-tau 0 1 4]

Prints, for each cost of staleness, how long jobs take under every entrant of the two claims of
`simstrag.claims.cluster_claims` in the nearest setting.  At 1, the stated one, the parts of STAR
and the trained job are there, too.  Runs are kept in the folder, and the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from simstrag.analysis.tables.claim_tables import claims_table, entrants_table
from simstrag.analysis.tables.table import Table
from simstrag.claims import judge
from simstrag.claims.claim import Claim
from simstrag.claims.cluster_claims import CLUSTER_CLAIMS, draw

STATED = 1.0


def of_c_tau(claim: Claim, c_tau: float) -> Claim:
    """The claim in its nearest setting with a cost of staleness; parts and training at 1 alone."""
    case = replace(claim, axes=tuple(axis.nearest() for axis in claim.axes))
    if c_tau == STATED:
        return case
    return replace(
        case, draw=partial(draw, c_tau=c_tau), parts=(), real="c_tau is of the formula alone"
    )


def print_table(table: Table) -> None:
    """Print a table as Markdown."""
    for cells in (table.headers, ["---"] * len(table.headers), *table.rows):
        print("| " + " | ".join(cell.replace(" | ", ", ") for cell in cells) + " |")
    print(flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--c-tau", type=float, nargs="+", default=[STATED, 0.0, 4.0])
    options = parser.parse_args(arguments)
    for c_tau in options.c_tau:
        claims = [of_c_tau(claim, c_tau) for claim in CLUSTER_CLAIMS]
        board = judge(claims, options.folder / f"c_tau-{c_tau:g}", jobs=options.jobs)
        print(f"c_tau {c_tau:g}\n")
        print_table(claims_table(board))
        print_table(entrants_table(board.rows))


if __name__ == "__main__":
    main()
