"""How far suspicions were right, in words."""

from __future__ import annotations

import numpy as np

from simstrag.analysis.formats import percent
from simstrag.analysis.standings import Standings

__all__ = ["detection"]


def detection(s: Standings) -> list[str]:
    """A sentence per policy that was judged: one that named suspects at its updates.

    Means over the seeds where a share is defined; what is counted are pairs of update and rank.
    """
    found = []
    for p in s.policies:
        right, seen = (_mean(s, p.policy, name) for name in ("precision", "recall"))
        if right is None and seen is None:
            continue
        first = "suspected nobody"
        if right is not None:
            first = f"was right in {percent(right)} % of its suspicions"
        second = "there were no straggler-updates"
        if seen is not None:
            second = f"it missed {percent(1 - seen)} % of the straggler-updates"
        found.append(f"{p.policy} {first}; {second}.")
    return found


def _mean(s: Standings, policy: str, name: str) -> float | None:
    """The mean over seeds of what is defined."""
    values = s.comparison.column(policy, name)
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
