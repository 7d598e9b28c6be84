"""The numbers behind the charts of a report, as sheets that its page can save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simstrag.analysis.charts.tracks import spans
from simstrag.analysis.derived.examples import Example
from simstrag.analysis.derived.windows import Window
from simstrag.analysis.pages.sections import progress_axis, progress_series
from simstrag.analysis.tables.sheets import Sheet
from simstrag.analysis.tables.standings import Standings

__all__ = ["MOST", "limited", "progress_sheet", "slowdown_sheet", "steps_sheet", "waits_sheet"]

MOST = 10_000
"""Rows of a sheet, so that a page of very many ranks stays small."""


def progress_sheet(s: Standings) -> Sheet:
    """When each policy reached each level: mean, least and most over seeds."""
    rows = [
        (name, *values)
        for name, series in progress_series(s).items()
        for values in zip(*(column.tolist() for column in series), strict=True)
    ]
    columns = ("policy", "time (s), mean", "time (s), least", "time (s), most", progress_axis(s))
    return Sheet("progress-over-time", columns, tuple(rows))


def steps_sheet(examples: Sequence[Example], shown: Window) -> Sheet:
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
    return limited(Sheet("steps-of-the-close-look", headers, tuple(rows)))


def slowdown_sheet(examples: Sequence[Example], shown: Window) -> Sheet | None:
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
    return limited(Sheet("slowdown-of-ranks", columns, tuple(rows)))


def waits_sheet(examples: Sequence[Example]) -> Sheet:
    """Seconds that ranks waited for ranks, longest first; pairs that never did are left out."""
    rows: list[tuple[str, int, int, float]] = []
    for e in examples:
        seconds = e.waiting.held + e.waiting.blocked
        pairs = zip(*(side.tolist() for side in np.nonzero(seconds > 0)), strict=True)
        rows += [(e.name, rank, other, float(seconds[rank, other])) for rank, other in pairs]
    rows.sort(key=lambda row: -row[-1])
    columns = ("policy", "rank that waited", "for rank", "waited (s)")
    return limited(Sheet("who-waited-for-whom", columns, tuple(rows)))


def limited(sheet: Sheet, most: int = MOST) -> Sheet:
    """The sheet, or its first rows, and then its name says so.

    >>> limited(Sheet("steps", ("rank",), ((0,), (1,), (2,))), most=2).name
    'steps-first-2-rows'
    """
    if len(sheet.rows) <= most:
        return sheet
    return replace(sheet, name=f"{sheet.name}-first-{most}-rows", rows=sheet.rows[:most])
