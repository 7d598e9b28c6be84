"""The time that each policy saves over bsp, as bars of a page, which any width of screen shows."""

from __future__ import annotations

import math
from typing import NamedTuple

from simstrag.analysis.derived.comparison_decision import ComparisonDecision
from simstrag.analysis.derived.ranking import faster
from simstrag.analysis.text.gain_text import percent_of, saved


class GainRow(NamedTuple):
    """A bar of the chart.

    bars: left end and width in percent of the chart, and what it shows: a style of the page.
    """

    policy: str
    lane: str
    text: str
    bars: tuple[tuple[float, float, str], ...]


def gain_rows(d: ComparisonDecision) -> list[GainRow]:
    """A row for each policy but bsp, best mean first."""
    s = d.s
    gains = {p.policy: saved(s, p) for p in s.others}
    clean = 1 - 1 / s.clean_speedup[s.decides].value
    ends = [0.0, *(x for gain in gains.values() for x in gain), clean]
    known = [x for x in ends if math.isfinite(x)]
    low, high = min(known), max(known)
    scale = 100 / ((high - low) or 1.0)

    def bar(a: float, b: float, kind: str) -> tuple[float, float, str]:
        left, right = sorted((a, b))
        return round((left - low) * scale, 2), round((right - left) * scale, 2), kind

    rows = []
    for p in s.others:
        gain = gains[p.policy]
        bars = [bar(0, gain.value, "bar" if faster(p.difference[s.decides]) else "open")]
        if math.isfinite(gain.low):
            bars.append(bar(gain.low, gain.high, "interval"))
        bars.append(bar(0, 0, "zero"))
        if math.isfinite(clean) and s.scenario.inputs.trace is not None:
            bars.append(bar(clean, clean, "clean"))
        lane = d.effects[p.policy].lane
        rows.append(GainRow(p.policy, lane, percent_of(gain), tuple(bars)))
    return rows
