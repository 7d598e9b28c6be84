"""STAR in its own setting without the map, and what c_tau decides there.

    python -m benchmarks.star_cluster FOLDER [--jobs N] [--write]

Prints how long jobs take under every entrant of the two claims of `simstrag.claims.cluster_claims`
in the nearest setting, also of the parts of STAR and of the job that trains; and how long at other
costs of staleness.  Runs are kept in the folder, and the same command goes on.  `--write` replaces
docs/measured/star-cluster.txt.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag.analysis.tables.claim_tables import entrants_table
from simstrag.analysis.tables.table import Number
from simstrag.analysis.text.claim_text import LEARNERS, estimate_text
from simstrag.analysis.text.number_format import MISSING
from simstrag.claims import judge
from simstrag.claims.claim import Claim
from simstrag.claims.cluster_claims import CLUSTER_CLAIMS, draw
from simstrag.claims.scoreboard import Scoreboard

STATED = 1.0
C_TAUS = (0.0, STATED, 4.0)


def of_c_tau(claim: Claim, c_tau: float) -> Claim:
    """The claim in its nearest setting with a cost of staleness; parts and training at 1 alone."""
    case = replace(claim, axes=tuple(axis.nearest() for axis in claim.axes))
    if c_tau == STATED:
        return case
    return replace(
        case, draw=partial(draw, c_tau=c_tau), parts=(), real="c_tau is of the formula alone"
    )


def run_boards(folder: Path, jobs: int | None, c_taus: Sequence[float]) -> dict[float, Scoreboard]:
    """The two claims at each cost of staleness."""
    return {
        c_tau: judge(
            [of_c_tau(claim, c_tau) for claim in CLUSTER_CLAIMS], folder / f"c_tau-{c_tau:g}",
            jobs=jobs,
        ) for c_tau in c_taus
    }  # fmt: skip


def entrants(board: Scoreboard) -> Iterator[Table]:
    """A table of each claim and learner, without columns that nothing is known of."""
    found = entrants_table(board.rows)
    groups = dict.fromkeys(tuple(map(str, cells[:2])) for cells in found.rows)
    for claim, learner in groups:
        rows = [
            [*map(str, r[2:])] for r in found.rows if (str(r[0]), str(r[1])) == (claim, learner)
        ]
        known = [k for k in range(len(rows[0])) if {row[k] for row in rows} - {MISSING, "0"}]
        header = [found.headers[2 + k] for k in known]
        picked = [tuple(row[k].replace(" | ", ", ") for k in known) for row in rows]
        yield Table(f"{claim}, {LEARNERS[learner]}", tuple(header), picked)


def by_c_tau(boards: Mapping[float, Scoreboard]) -> Iterator[Table]:
    """What the two claims come to at each cost of staleness, and the seconds of their entrants."""
    for k, claim in enumerate(CLUSTER_CLAIMS):
        trials = [board.rows[k].trials["formula"] for board in boards.values()]
        judged = (*claim.beside, *claim.rivals, claim.policy)
        times = [{one.entrant: one.seconds for one in trial.entrants} for trial in trials]
        rows = [
            (name.replace(" | ", ", "), *(str(Number.estimate(own[name])) for own in times))
            for name in judged
        ]
        found = (estimate_text(claim, trial.here.estimate) for trial in trials)
        header = (f"{claim.name}, s", *(f"c_tau {c:g}" for c in boards))
        yield Table("By the cost of staleness", header, [*rows, (claim.measure.words, *found)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int)
    add_write(parser, "star-cluster")
    options = parser.parse_args(arguments)
    boards = run_boards(options.folder, options.jobs, C_TAUS)
    found = [*entrants(boards[STATED]), *by_c_tau(boards)]
    show(found)
    if options.write:
        keep_tables("star-cluster", found, describe_machine())


if __name__ == "__main__":
    main()
