"""What a policy decided in a run: in what its plan changed, and whom it suspected from when on."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from simstrag.run import Run

__all__ = ["Suspicion", "changes", "suspicions"]

WORDS = {
    "suspects": "suspects", "amp": "precision", "way": "way", "groups": "groups", "batch": "batch",
}  # fmt: skip
"""What a column of `Run.decisions` is called where it changes."""


class Suspicion(NamedTuple):
    """A stretch, in seconds, over which a rank was suspected, and the update it began after."""

    rank: int
    start: float
    end: float
    update: int


def changes(run: Run) -> list[str]:
    """What changed in each row of the decisions, from the first plan on; none where none are kept.

    >>> from simstrag import Scenario, simulate
    >>> changes(simulate(Scenario(workers=2, updates=3, step={"compute": 0.1}), "bsp"))
    ['first plan']
    """
    if run.decisions is None:
        return []
    rows = zip(*(run.decisions[name] for name in WORDS), strict=True)
    pairs = itertools.pairwise(rows)
    return ["first plan", *(", ".join(_different(before, after)) for before, after in pairs)]


def _different(before: tuple[object, ...], after: tuple[object, ...]) -> list[str]:
    columns = zip(WORDS.values(), before, after, strict=True)
    return [word for word, old, new in columns if old != new]


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
