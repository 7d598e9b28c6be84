"""The tables of a scoreboard of claims: a row a claim, and a row a point of a map."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.claim_text import estimate_text, value_text
from simstrag.analysis.text.number_format import MISSING
from simstrag.claims.claim import Claim, Learner
from simstrag.claims.scoreboard import ClaimResult, Scoreboard

ENTRANTS = (
    "claim",
    "learner",
    "what",
    "entrant",
    "time (s)",
    "saved (%)",
    "stragglers (\N{PER MILLE SIGN})",
    "accuracy (%)",
    "missed",
)
HEADERS = ("claim", "claimed", "formula", "trained", "verdict", "where it holds")


def claims_table(board: Scoreboard) -> Table:
    """A row a claim: its number, what each learner found in the nearest setting, the verdict."""
    rows = tuple(
        (
            row.claim.name,
            _claimed(row.claim),
            _found(row, "formula"),
            _found(row, "real"),
            row.verdict.value,
            next((trial.region for trial in row.trials.values() if trial.region), MISSING),
        )
        for row in board.rows
    )
    notes = (
        "Formula and trained are of the nearest setting, with 95 % intervals over seeds or draws "
        "of jobs; a dash is no result; of a claim about an average, over all points of its map. A "
        "claim holds where the whole interval lies above the number.",
    )
    return Table(HEADERS, rows, len(HEADERS), (), notes, wraps=5)


def entrants_table(rows: Sequence[ClaimResult]) -> Table:
    """What jobs that share a cluster used, and how long they took."""
    cells = tuple(
        (
            row.claim.name, learner, one.words, one.entrant, Number.estimate(one.seconds),
            Number.estimate(one.saved, percent=True, sign=True), Number.of(one.stragglers),
            Number.estimate(one.accuracy, percent=True), Number.of(one.missed),
        )
        for row in rows
        for learner, trial in row.trials.items()
        for one in trial.entrants
    )  # fmt: skip
    notes = (
        "Time is a job's from its start to its target, the mean of all jobs; intervals (95 %) are "
        "over draws of the jobs. Saved is against synchronous training, bsp, of the same claim and "
        "learner. Stragglers are gradients of slow ranks. An entrant is a policy for all jobs | "
        "placer | manager.",
    )
    least = ("claim", "missed", "learner", "stragglers (\N{PER MILLE SIGN})")
    return Table(ENTRANTS, cells, 4, (), notes, wraps=3, least=least)


def points_table(board: Scoreboard) -> Table:
    """A row a point of every map, unrounded in the saved file."""
    rows = tuple(
        (
            row.claim.name, learner, trial.describe(point),
            Number.estimate(point.estimate, percent=row.claim.measure.unit == "%"),
        )
        for row in board.rows
        for learner, trial in row.trials.items()
        for point in trial.points
    )  # fmt: skip
    return Table(("claim", "learner", "at", "measure (% or times)"), rows, 3)


def _claimed(claim: Claim) -> str:
    if claim.untestable:
        return MISSING
    is_faster = claim.number == 1 and claim.measure.unit == "x"
    return "faster" if is_faster else value_text(claim, claim.number)


def _found(row: ClaimResult, learner: Learner) -> str:
    trial = row.trials.get(learner)
    if trial is None:
        return MISSING
    if trial.average:
        return estimate_text(row.claim, trial.average.estimate)
    here = trial.here
    return here.note if math.isnan(here.estimate.value) else estimate_text(row.claim, here.estimate)
