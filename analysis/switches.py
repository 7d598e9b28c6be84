"""When a policy changed its plan in a run, and in what: precision, way, groups, batch shares."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from simstrag.run import Run

__all__ = ["Switch", "switches"]

MOST_RANKS = 8
"""Ranks that are named; of more it is how many."""


class Switch(NamedTuple):
    """A plan that came into force at `time` (s) with an update; what: its changes in words."""

    time: float
    update: int
    what: str


def switches(run: Run) -> list[Switch]:
    """The changes of plan in order, those of suspects alone left out; none where none are kept.

    >>> from types import SimpleNamespace
    >>> same = {"amp": [(), ()], "way": ["server", "server"], "batch": [None, None]}
    >>> decisions = {"time": [0.0, 2.0], "update": [0, 7], "groups": [1, 2]} | same
    >>> switches(SimpleNamespace(decisions=decisions))
    [Switch(time=2.0, update=7, what='groups: 1 → 2')]
    """
    table = run.decisions or {}
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    found = [
        Switch(after["time"], after["update"], "; ".join(_changes(before, after)))
        for before, after in itertools.pairwise(rows)
    ]
    return [s for s in found if s.what]


def _changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
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
