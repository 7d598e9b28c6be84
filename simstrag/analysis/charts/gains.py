"""The time that each policy saves over bsp, as bars of a page, which any width of screen shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from simstrag.analysis.derived.comparison_decision import ComparisonDecision
from simstrag.analysis.derived.ranking import Standing, Standings, faster
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate


class GainRow(NamedTuple):
    """A bar of the chart.

    bars: left end and width in percent of the chart, and what it shows: a style of the page.
    """

    policy: str
    lane: str
    text: str
    bars: tuple[tuple[float, float, str], ...]


def gain_rows(
    d: ComparisonDecision,
    saved: Callable[[Standings, Standing], Estimate],
    text_of: Callable[[Estimate], str],
) -> list[GainRow]:
    """A row for each policy but bsp, best mean first.

    saved: the share of bsp's time that a policy saves; text_of: such a share in words.
    """
    s = d.s
    shown = [p for p in s.policies if p.policy != BASELINE]
    gains = {p.policy: saved(s, p) for p in shown}
    clean = 1 - 1 / s.clean_speedup[s.decides].value
    ends = [0.0, *(x for gain in gains.values() for x in gain), clean]
    known = [x for x in ends if math.isfinite(x)]
    low, high = min(known), max(known)
    scale = 100 / ((high - low) or 1.0)

    def bar(a: float, b: float, kind: str) -> tuple[float, float, str]:
        left, right = sorted((a, b))
        return round((left - low) * scale, 2), round((right - left) * scale, 2), kind

    rows = []
    for p in shown:
        gain = gains[p.policy]
        bars = [bar(0, gain.value, "bar" if faster(p.difference[s.decides]) else "open")]
        if math.isfinite(gain.low):
            bars.append(bar(gain.low, gain.high, "interval"))
        bars.append(bar(0, 0, "zero"))
        if math.isfinite(clean) and s.comparison.scenario.inputs.trace is not None:
            bars.append(bar(clean, clean, "clean"))
        lane = d.effects[p.policy].lane
        rows.append(GainRow(p.policy, lane, text_of(gain), tuple(bars)))
    return rows
