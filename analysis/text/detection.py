"""How often a policy's suspicions were right, in sentences."""

from __future__ import annotations

import numpy as np

from simstrag.analysis.tables.comparison_result import Standings
from simstrag.analysis.text.number_format import percent


def detection(s: Standings) -> list[str]:
    """A sentence per policy that named suspects at its updates.

    Shares are means over the seeds where they are defined; counts are pairs of update and rank over
    all seeds.  A comparison of an older version has no counts.
    """
    found = []
    for p in s.policies:
        right, seen = (_mean(s, p.policy, name) for name in ("precision", "recall"))
        if right is None and seen is None:
            continue
        first = "suspected no rank"
        if right is not None:
            suspicions = _in_all(s, p.policy, "hits", "false_alarms")
            first = f"was right in {percent(right)} % of its suspicions{suspicions}"
        second = "there were no straggler-updates"
        if seen is not None:
            stragglers = _in_all(s, p.policy, "hits", "misses")
            second = f"it missed {percent(1 - seen)} % of the straggler-updates{stragglers}"
        found.append(f"{p.policy} {first}; {second}.")
    return found


def _mean(s: Standings, policy: str, name: str) -> float | None:
    """The mean over the seeds where a column is defined."""
    values = s.comparison.column(policy, name)
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _in_all(s: Standings, policy: str, *names: str) -> str:
    """The count over all seeds, in parentheses; empty where it was not counted."""
    if not set(names) <= set(s.comparison.runs):
        return ""
    count = sum(float(s.comparison.column(policy, name).sum()) for name in names)
    return f" ({count:,.0f} in all)"
