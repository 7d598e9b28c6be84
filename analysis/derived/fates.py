"""What became of the gradient of every step: looked up where it was kept, else derived."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.analysis.derived.waiting import Steps
from simstrag.runs.run import Run

__all__ = ["Fate", "fates_of"]

NOT_KNOWN = "not known"


class Fate(NamedTuple):
    """What became of a gradient, and the version that the update with it made, if any did.

    word: applied, dropped, aborted, in flight (when the run ended), or what is known of these.
    """

    word: str
    update: int | None


def fates_of(run: Run, steps: Steps, step: npt.NDArray[np.int64]) -> list[Fate]:
    """One per step, in the order of `steps`; step: which of its rank's each is."""
    if run.gradients is None:
        return _derived(run, steps)
    g = run.gradients
    columns = zip(g["rank"], g["step"], g["update"], g["fate"], strict=True)
    known = {
        (rank, k): Fate(fate.replace("_", " "), None if fate != "applied" else int(update))
        for rank, k, update, fate in columns
    }
    nothing = Fate(NOT_KNOWN, None)
    pairs = zip(steps.rank.tolist(), step.tolist(), strict=True)
    return [known.get(pair, nothing) for pair in pairs]


def _derived(run: Run, steps: Steps) -> list[Fate]:
    """From which updates hold which ranks, and from what the run counted."""
    applied, lost = steps.applied.tolist(), steps.lost.tolist()
    counted = {name: run.summary[name] for name in ("dropped", "aborted")}
    whole = run.excerpt is None
    if whole and sum(version > 0 for version in applied) != run.summary["applied"]:
        return [Fate(NOT_KNOWN, None)] * len(applied)
    thrown_away = " or ".join(name for name, count in counted.items() if count)
    every = sum(lost) == sum(counted.values())
    at_end = "in flight" if every else f"{thrown_away} or in flight"
    return [
        Fate("applied", version) if version else Fate(thrown_away if gone else at_end, None)
        for version, gone in zip(applied, lost, strict=True)
    ]
