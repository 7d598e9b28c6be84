"""What a policy decided in a run: in what its plan changed, and whom it suspected from when on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simstrag.runs.run import Run

__all__ = ["PlanChange", "Suspicion", "headings", "plan_changes", "suspicions"]

WORDS = {
    "suspects": "suspects", "amp": "precision", "way": "way", "groups": "groups", "batch": "batch",
}  # fmt: skip
"""What a column of `Run.decisions` is called where it changes."""
MOST_RANKS = 8
"""Ranks that are named; of more it is how many."""

Decision = Mapping[str, Any]
"""One row of `Run.decisions`, by column."""


class PlanChange(NamedTuple):
    """A plan that came into force at `time` (s) with an update; what: its changes in words."""

    time: float
    update: int
    what: str


class Suspicion(NamedTuple):
    """A stretch, in seconds, over which a rank was suspected, and the update it began after."""

    rank: int
    start: float
    end: float
    update: int


def headings(run: Run) -> list[str]:
    """What changed in each row of the decisions, from the first plan on; none where none are kept.

    >>> from simstrag import Scenario, simulate
    >>> headings(simulate(Scenario(workers=2, updates=3, step={"compute": 0.1}), "bsp"))
    ['first plan']
    """
    rows = _rows(run)
    changed = (
        [word for column, word in WORDS.items() if before[column] != after[column]]
        for before, after in itertools.pairwise(rows)
    )
    return ["first plan", *map(", ".join, changed)] if rows else []


def plan_changes(run: Run) -> list[PlanChange]:
    """The changes of plan in order, those of suspects alone left out; none where none are kept.

    >>> from types import SimpleNamespace
    >>> same = {"amp": [(), ()], "way": ["server", "server"], "batch": [None, None]}
    >>> decisions = {"time": [0.0, 2.0], "update": [0, 7], "groups": [1, 2]} | same
    >>> plan_changes(SimpleNamespace(decisions=decisions))
    [PlanChange(time=2.0, update=7, what='groups: 1 → 2')]
    """
    found = (
        PlanChange(after["time"], after["update"], "; ".join(_said(before, after)))
        for before, after in itertools.pairwise(_rows(run))
    )
    return [change for change in found if change.what]


def suspicions(run: Run) -> list[Suspicion]:
    """Who was suspected from when until when, in order of the beginnings, then of ranks.

    One that nobody lifted lasts until the last update.
    """
    if run.decisions is None:
        return []
    found: list[Suspicion] = []
    began: dict[int, tuple[float, int]] = {}
    columns = (run.decisions[name] for name in ("time", "update", "suspects"))
    end = float(run.updates["time"][-1])
    for time, update, suspects in (*zip(*columns, strict=True), (end, None, ())):
        now = set(suspects or ())
        for rank in began.keys() - now:
            start, since = began.pop(rank)
            found.append(Suspicion(rank, start, time, since))
        for rank in now - began.keys():
            began[rank] = time, update
    return sorted(found, key=lambda s: (s.start, s.rank))


def _rows(run: Run) -> list[Decision]:
    table = run.decisions or {}
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _said(before: Decision, after: Decision) -> Iterator[str]:
    if after["amp"] != before["amp"]:
        yield f"reduced precision: {_ranks(before['amp'])} → {_ranks(after['amp'])}"
    if after["way"] != before["way"]:
        yield f"updates by {before['way']} → {after['way']}"
    if after["groups"] != before["groups"]:
        yield f"groups: {before['groups']} → {after['groups']}"
    if after["batch"] != before["batch"]:
        yield f"shares of the batch: {_shares(before['batch'])} → {_shares(after['batch'])}"


def _ranks(ranks: Sequence[int]) -> str:
    """Which ranks, in words.

    >>> _ranks(()), _ranks((3,)), _ranks((1, 2)), _ranks(range(9))
    ('no rank', 'rank 3', 'ranks 1, 2', '9 ranks')
    """
    if len(ranks) > MOST_RANKS:
        return f"{len(ranks)} ranks"
    listed = ", ".join(map(str, ranks))
    return f"rank{'s' * (len(ranks) > 1)} {listed}" if ranks else "no rank"


def _shares(batch: Sequence[float] | None) -> str:
    """The shares of a batch, in words.

    >>> _shares(None), _shares((0.5, 1.25, 1.25))
    ('equal', '0.5 to 1.25 of the nominal')
    """
    return "equal" if batch is None else f"{min(batch):.3g} to {max(batch):.3g} of the nominal"
