"""A scoreboard of claims in words: how many hold, and what each trial found."""

# ruff: noqa: RUF001, RUF002 - multiplication signs and dashes are meant

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from simstrag.analysis.text.number_format import MISSING, estimate, join, number, percent, plural
from simstrag.claims.claim import Claim
from simstrag.claims.cluster_claims import QUICK_DRAWS, SHORT
from simstrag.claims.scoreboard import ClaimResult, Scoreboard
from simstrag.claims.trial import ClaimVerdict, MapAverage, Trial
from simstrag.experiments.paired_statistics import Estimate

LEARNERS = {"formula": "by the formula", "real": "trained"}


def headline(board: Scoreboard) -> str:
    """How many claims have which verdict.

    >>> from pathlib import Path
    >>> from simstrag.claims.registry import CLAIMS
    >>> rows = tuple(ClaimResult(claim, {}) for claim in (CLAIMS[-1], CLAIMS[0]))
    >>> headline(Scoreboard(Path(), True, rows))
    '2 claims: not tried: 1; cannot be tested: 1.'
    """
    counts = Counter(row.verdict for row in board.rows)
    listed = [f"{verdict}: {counts[verdict]}" for verdict in ClaimVerdict if counts[verdict]]
    return f"{plural(len(board.rows), 'claim')}: {'; '.join(listed)}."


def value_text(claim: Claim, value: float) -> str:
    """A value of the claim's measure with its unit.

    >>> from simstrag.claims.registry import CLAIMS
    >>> value_text(CLAIMS[0], 0.794), value_text(CLAIMS[1], 1.14)
    ('79.4 %', '1.14×')
    """
    if math.isnan(value):
        return MISSING
    return f"{percent(value)} %" if claim.measure.unit == "%" else f"{number(value)}×"


def estimate_text(claim: Claim, found: Estimate) -> str:
    """An estimate of the claim's measure with its interval and unit.

    >>> from simstrag.claims.registry import CLAIMS
    >>> estimate_text(CLAIMS[0], Estimate(0.444, 0.413, 0.475))
    '44 % (41–48)'
    """
    is_share = claim.measure.unit == "%"
    value, bracket, interval = estimate(*found, percent=is_share).partition(" (")
    return value if value == MISSING else f"{value}{' %' if is_share else '×'}{bracket}{interval}"


def sentences(row: ClaimResult) -> Iterator[str]:
    """What each trial found, and why one is missing."""
    claim = row.claim
    for learner, trial in row.trials.items():
        if trial.average:
            yield from _average(claim, trial, trial.average)
            continue
        yield f"{LEARNERS[learner].capitalize()}, in the nearest setting: {_here(claim, trial)}."
        if trial.region:
            yield f"It holds at {trial.region}."
        elif len(trial.points) > 1:
            best = trial.best
            value = value_text(claim, best.estimate.value)
            yield f"The most on the map is {value}, at {trial.describe(best)}."
    if claim.draw and any(not trial.axes for trial in row.trials.values()):
        yield (
            f"Tried with {SHORT['jobs']} jobs of about {SHORT['seconds']:g} s in place of the "
            f"scenario's, in {QUICK_DRAWS} draws."
        )
    if claim.untestable:
        yield f"It cannot be tested: {claim.untestable}."
    elif isinstance(claim.real, str):
        yield f"Nothing is trained: {claim.real}."
    elif "real" not in row.trials:
        yield "This quick scoreboard trains nothing."


def _average(claim: Claim, trial: Trial, found: MapAverage) -> Iterator[str]:
    """The average of a map, and where the largest speed-up over each rival is."""
    over = f"over {len(trial.points)} scenarios and {len(claim.rivals)} methods"
    if not found.largest:
        notes = dict.fromkeys(point.note for point in trial.points if point.note)
        yield f"The mean {over} is not known: {'; '.join(notes)}."
        return
    yield (
        f"The arithmetic mean {over} is {estimate_text(claim, found.estimate)}, the geometric mean "
        f"{value_text(claim, found.geometric)}."
    )
    for name, point in found.largest.items():
        value = value_text(claim, point.versus[name].value)
        yield f"The largest over {name} is {value}, at {trial.describe(point)}."


def _here(claim: Claim, trial: Trial) -> str:
    here = trial.here
    alone = [f"{value_text(claim, e.value)} against {name}" for name, e in here.versus.items()]
    shown = f"{claim.measure.words} {estimate_text(claim, here.estimate)}"
    each = [join(alone)] if len(alone) > 1 else []
    return "; ".join([shown, *each, *filter(None, [here.note])])
