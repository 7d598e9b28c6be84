"""How often policies suspected the right ranks, in sentences."""

from __future__ import annotations

import math

from simstrag.analysis.derived.ranking import Standings
from simstrag.analysis.text.number_format import percent


def detection(s: Standings) -> list[str]:
    """How often suspicions were right: a sentence per policy that named suspects at its updates.

    Shares are means over the seeds where they are defined; counts are pairs of update and rank over
    all seeds.  A comparison of an older version has no counts.
    """

    def counted(policy: str, *names: str) -> str:
        """The count over all seeds, in parentheses; empty where it was not counted."""
        if not set(names) <= set(s.comparison.runs):
            return ""
        count = sum(float(s.comparison.column(policy, name).sum()) for name in names)
        return f" ({count:,.0f} in all)"

    found = []
    for p in s.policies:
        right, seen = (
            s.known_mean(p.policy, f"detection_{name}") for name in ("precision", "recall")
        )
        if math.isnan(right) and math.isnan(seen):
            continue
        first, second = "suspected no rank", "there were no straggler-updates"
        if not math.isnan(right):
            suspicions = counted(p.policy, "hits", "false_alarms")
            first = f"was right in {percent(right)} % of its suspicions{suspicions}"
        if not math.isnan(seen):
            stragglers = counted(p.policy, "hits", "misses")
            second = f"it missed {percent(1 - seen)} % of the straggler-updates{stragglers}"
        found.append(f"{p.policy} {first}; {second}.")
    return found
