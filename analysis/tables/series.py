"""The numbers behind the charts of a report, as tables that its page saves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.analysis.charts.tracks import spans
from simstrag.analysis.derived.examples import Example
from simstrag.analysis.derived.windows import Window
from simstrag.analysis.pages.sections import progress_axis, progress_series
from simstrag.analysis.tables.standings import Standings
from simstrag.analysis.tables.table import Table

__all__ = ["progress_table", "slowdown_table", "steps_table", "waits_table"]


def progress_table(s: Standings) -> Table:
    """When each policy reached each level: mean, least and most over seeds."""
    rows = [
        (name, *values)
        for name, series in progress_series(s).items()
        for values in zip(*(column.tolist() for column in series), strict=True)
    ]
    columns = ("policy", "time (s), mean", "time (s), least", "time (s), most", progress_axis(s))
    return Table(columns, tuple(rows))


def steps_table(examples: Sequence[Example], shown: Window) -> Table:
    """The steps of the close look, each whole even where the picture cuts it off."""
    rows: list[tuple[str | float | int, ...]] = []
    for e in examples:
        t = e.steps
        near = np.isin(t.rank, shown.ranks) & (t.start < shown.end)
        near &= np.maximum(t.gap_end, t.finish) > shown.start
        columns = (t.rank, t.start, t.finish, t.wait, t.gap_end, t.amp, t.lost)
        rows += [
            (e.name, rank, start, finish, wait, end, ("full", "amp")[amp], str(lost))
            for rank, start, finish, wait, end, amp, lost in zip(
                *(column[near].tolist() for column in columns), strict=True
            )
        ]
    headers = (
        "policy", "rank", "computes from (s)", "to (s)", "waited (s)",
        "computes again, or its update is made, at (s)", "precision", "thrown away",
    )  # fmt: skip
    return Table(headers, tuple(rows))


def slowdown_table(examples: Sequence[Example], shown: Window) -> Table | None:
    """Slowdown of the ranks of the close look over the longest run; None without contention."""
    timing = next((e.timing for e in examples if e.timing and e.timing.contention.slowdowns), None)
    if timing is None:
        return None
    until = max(e.end for e in examples)
    rows = [
        (s.rank, "network" if s.network else "step in full precision", s.start, s.end, s.factor)
        for s in spans(timing, shown.ranks, 0.0, until)
    ]
    columns = ("rank", "what", "from (s)", "to (s)", "slowdown (factor)")
    return Table(columns, tuple(rows))


def waits_table(examples: Sequence[Example]) -> Table:
    """Seconds that ranks waited for ranks, longest first; pairs that never did are left out."""
    rows: list[tuple[str, int, int, float]] = []
    for e in examples:
        seconds = e.waiting.held + e.waiting.blocked
        pairs = zip(*(side.tolist() for side in np.nonzero(seconds > 0)), strict=True)
        rows += [(e.name, rank, other, float(seconds[rank, other])) for rank, other in pairs]
    rows.sort(key=lambda row: -row[-1])
    columns = ("policy", "rank that waited", "for rank", "waited (s)")
    return Table(columns, tuple(rows))
