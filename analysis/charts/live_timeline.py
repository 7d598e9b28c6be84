"""The worker-by-time picture to move about in: steps, slowdowns, suspicions, updates, new plans.

How much of it is drawn, `simstrag.analysis.charts.scopes` bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, FixedTicker, Range1d

from simstrag.analysis.charts import drawing, plots
from simstrag.analysis.charts.scopes import Scope
from simstrag.analysis.charts.timeline import PLAN, UPDATES, kept_ranks, mixed, slowed
from simstrag.analysis.charts.tracks import PARTS, pieces_of, spans
from simstrag.analysis.derived.decisions import plan_changes, suspicions
from simstrag.analysis.derived.examples import Example
from simstrag.analysis.derived.fates import fates_of
from simstrag.analysis.derived.waiting import Steps
from simstrag.runs.run import Run
from simstrag.timing.timing import Timing

__all__ = ["contention", "timeline", "together"]

Floats = npt.NDArray[np.float64]

COMPUTING = ("full", "amp")
SAID = {
    "full": "computes step {step}",
    "amp": "computes step {step} in reduced precision",
    "full, lost": "computes step {step}, for nothing",
    "amp, lost": "computes step {step} in reduced precision, for nothing",
    "wait": "waits",
    "blocked": "is blocked",
    "communication": "communicates",
}
LEFT = 62
"""Pixels for the labels of ranks, the same in all plots, so that their times are below another."""


def together(examples: Sequence[Example], scope: Scope) -> Any:
    """Timelines below each other on one axis of time, each under its name if there are several."""
    axis = scope.axis()
    layouts = [timeline(e, scope, axis) for e in examples]
    if len(examples) == 1:
        return layouts[0]
    for e, layout in zip(examples, layouts, strict=True):
        layout.children[0].title = e.name
    return column(*layouts, sizing_mode="stretch_width")


def timeline(e: Example, scope: Scope, axis: Range1d | None = None) -> Any:
    """A run as a Bokeh layout: its steps, and below them all of it, to choose what is shown.

    axis: of time, where several timelines have one.
    """
    run, steps, timing = e.run, e.steps, e.timing
    axis = axis or scope.axis()
    rows = {rank: row for row, rank in enumerate(scope.shown.ranks)}
    top = PLAN if plan_changes(run) else UPDATES
    made = plots.plot(
        ("time (s)", ""), round(70 + 19 * (len(rows) - top)), "width", x_range=axis,
        y_range=Range1d(start=len(rows) - 0.4, end=top - 0.6), min_border_left=LEFT,
    )  # fmt: skip
    made.ygrid.grid_line_color = None
    labels = {row: f"rank {rank}" for rank, row in rows.items()} | {int(UPDATES): "updates"}
    _label(made, labels | ({int(PLAN): "plan"} if top == PLAN else {}))
    shades = [] if timing is None else list(_shade(made, timing, scope, rows))
    bars = list(_steps(made, run, steps, timing, scope, rows))
    suspected = list(_suspicions(made, run, scope, rows))
    when = f"@left{_fixed(scope)} to @right{_fixed(scope)} s@more"
    for side, renderers in (("above", [*bars, *suspected]), ("below", shades)):
        plots.told(made, renderers, ("", "rank @rank @what"), ("", when), side=side)
    _updates(made, run, scope)
    _plan_changes(made, run, scope, len(rows))
    pixels = mixed(steps, timing, scope.workers, scope.until, run)
    whole = _strip(pixels, kept_ranks(run, scope.workers), axis, scope)
    return column(made, whole, sizing_mode="stretch_width", spacing=0)


def contention(timing: Timing, scope: Scope) -> Any:
    """Slowdown of every rank over the whole run, with a box for what the timelines show."""
    pixels = slowed(timing, scope.workers, scope.until)
    return _strip(pixels, range(scope.workers), scope.axis(), scope)


def _label(made: Any, words: dict[int, str]) -> None:
    """Words at the rows of a plot."""
    made.yaxis.ticker = FixedTicker(ticks=sorted(words))
    made.yaxis.major_label_overrides = words
    made.yaxis.major_tick_line_color = made.yaxis.axis_line_color = None


def _strip(rgba: Floats, ranks: Sequence[int], axis: Range1d, scope: Scope) -> Any:
    rows = len(ranks)
    made = plots.overview(
        axis, height=46 + 7 * min(max(rows, 4), 32), x_range=Range1d(start=0.0, end=scope.until),
        y_range=Range1d(start=rows - 0.5, end=-0.5), min_border_left=LEFT,
    )  # fmt: skip
    _label(made, {row: f"rank {ranks[row]}" for row in sorted({0, rows - 1})})
    colors = np.round(255 * rgba).astype(np.uint8).view(np.uint32)[:, :, 0]
    made.image_rgba(image=[colors], x=0.0, y=-0.5, dw=scope.until, dh=rows)
    return made


def _steps(
    made: Any, run: Run, steps: Steps, timing: Timing | None, scope: Scope, rows: dict[int, int]
) -> Iterator[Any]:
    """A renderer for each part of the steps' time that there is."""
    fates = _fates(run, steps)
    for part, (left, right) in pieces_of(steps, timing).items():
        there = np.isin(steps.rank, scope.shown.ranks) & (right > left)
        there &= (left < scope.end) & (right > scope.start)
        kept = np.flatnonzero(there).tolist()
        if not kept:
            continue
        look, computing = PARTS[part], part.split(",")[0] in COMPUTING
        columns = {
            "left": left[kept],
            "right": right[kept],
            "y": np.array([rows[r] for r in steps.rank[kept].tolist()], dtype=np.int32),
            "rank": steps.rank[kept].astype(np.int32),
            "what": [SAID[part].format(step=steps.step[k]) for k in kept],
            "more": [f"; {fates[k]}" if computing else "" for k in kept],
        }
        shape = {"fill_color": look.color, "line_color": None}
        if not look.filled:
            shape = {"fill_color": None, "line_color": look.color}
        yield _bars(made, columns, scope, height=look.height, **shape)


def _bars(made: Any, columns: dict[str, Any], scope: Scope, **look: Any) -> Any:
    """Bars from `left` to `right` (s) in the rows `y`, at which the other columns are read."""
    ends = {end: np.round(columns[end], scope.digits).tolist() for end in ("left", "right")}
    source = ColumnDataSource(columns | ends)
    return made.hbar(y="y", left="left", right="right", source=source, **look)


def _fates(run: Run, steps: Steps) -> list[str]:
    """What became of every gradient, and how stale it was when it was applied."""
    return [
        fate.word
        if fate.update is None
        else f"{fate.word} in update {fate.update}, staleness {fate.update - 1 - version}"
        for fate, version in zip(
            fates_of(run, steps, steps.step), steps.version.tolist(), strict=True
        )
    ]


def _shade(made: Any, timing: Timing, scope: Scope, rows: dict[int, int]) -> Iterator[Any]:
    """Renderers for the slowdown of steps, and for that of the network."""
    found = [s for s in spans(timing, scope.shown.ranks, scope.start, scope.end) if s.opacity]
    for network, color, height, of in (
        (False, drawing.CONTENTION, 1.0, "over a step in full precision"),
        (True, drawing.NET, 0.9, "to communicate"),
    ):
        own = [s for s in found if s.network == network]
        columns = {
            "left": [s.start for s in own],
            "right": [s.end for s in own],
            "y": [rows[s.rank] for s in own],
            "rank": [s.rank for s in own],
            "what": [f"takes {s.factor:.3g} times as long {of}" for s in own],
            "more": [""] * len(own),
            "opacity": [s.opacity for s in own],
        }
        look = {"fill_color": color, "fill_alpha": "opacity", "line_color": None}
        if own:
            yield _bars(made, columns, scope, height=height, **look)


def _suspicions(made: Any, run: Run, scope: Scope, rows: dict[int, int]) -> Iterator[Any]:
    """A line above each suspected rank, and around it what is not seen but easily pointed at."""
    whole = run.excerpt is None
    first, last = (0.0, math.inf) if whole else (scope.start, scope.end)  # beyond is not known
    found = [s for s in suspicions(run) if s.rank in rows]
    found = [s for s in found if s.start < scope.end and s.end > scope.start]
    if not found:
        return
    columns = {
        "left": [max(s.start, first) for s in found],
        "right": [min(s.end, last) for s in found],
        "y": [rows[s.rank] - 0.42 for s in found],
        "rank": [s.rank for s in found],
        "what": ["is suspected by the policy"] * len(found),
        "more": [""] * len(found),
    }
    _bars(made, columns, scope, height=0.12, fill_color=drawing.INK, line_color=None)
    yield _bars(made, columns, scope, height=0.22, fill_alpha=0.0, line_color=None)


def _updates(made: Any, run: Run, scope: Scope) -> None:
    u = run.updates
    rows = [k for k, time in enumerate(u["time"]) if scope.start <= time <= scope.end]
    source = ColumnDataSource(
        {
            "time": [round(u["time"][k], scope.digits) for k in rows],
            "version": [u["version"][k] for k in rows],
            "gradients": [u["n_own"][k] for k in rows],
            "stale": [f"{u['staleness_mean'][k]:.3g}" for k in rows],
            "most": [u["staleness_max"][k] for k in rows],
        }
    )
    ticks = made.scatter(
        x="time", y=UPDATES, marker="dash", angle=math.pi / 2, size=10, source=source,
        line_color=drawing.MUTED, fill_color=drawing.MUTED,
    )  # fmt: skip
    plots.told(
        made, [ticks], ("update", "@version"), ("time (s)", f"@time{_fixed(scope)}"),
        ("gradients", "@gradients"), ("staleness", "@stale in the mean, @most at most"),
    )  # fmt: skip


def _plan_changes(made: Any, run: Run, scope: Scope, ranks: int) -> None:
    found = [c for c in plan_changes(run) if scope.start <= c.time <= scope.end]
    if not found:
        return
    source = ColumnDataSource(
        {
            "time": [round(c.time, scope.digits) for c in found],
            "update": [c.update for c in found],
            "what": [c.what for c in found],
        }
    )
    look = {"source": source, "line_color": drawing.INK}
    made.segment(
        x0="time", x1="time", y0=PLAN, y1=ranks - 0.5, line_alpha=0.35, line_width=1.5, **look
    )
    marks = made.scatter(
        x="time", y=PLAN, marker="inverted_triangle", size=9, fill_color=drawing.INK, **look
    )
    plots.told(
        made, [marks], ("the plan changes", "@what"), ("time (s)", f"@time{_fixed(scope)}"),
        ("update", "@update"),
    )  # fmt: skip


def _fixed(scope: Scope) -> str:
    """The format of seconds in a template."""
    return f"{{0.{'0' * scope.digits}}}" if scope.digits else "{0}"
