"""The worker-by-time picture: slowdown, computing, waiting and communication of each rank.

A window shows single steps where contention sets in; a strip shows the whole run in coarse bins.
All pictures of one report have one time axis, so that policies can be compared by eye.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from simstrag.analysis.charts import drawing
from simstrag.analysis.charts.tracks import PARTS, pieces_of, slowdown_of, spans
from simstrag.analysis.derived.decisions import plan_changes, suspicions
from simstrag.analysis.derived.waiting import Steps
from simstrag.analysis.derived.windows import Window, segments
from simstrag.runs.run import Run
from simstrag.timing.timing import Timing
from simstrag.trace.slowdown import Piecewise

__all__ = ["contention_strip", "kept_ranks", "mixed", "run_strip", "slowed", "window"]

Floats = npt.NDArray[np.float64]
BINS = 360
FULLEST = 2.5
PALE = 0.35
"""How opaque work that was thrown away is in a strip; the legend's swatch has the same."""
WIDTH = 9.0
UPDATES, PLAN = -1.0, -2.0
"""Rows above that of the first rank: marks of updates, and of changes of plan."""


def window(
    name: str, label: str, run: Run, steps: Steps, timing: Timing | None, shown: Window
) -> Markup:
    """Each step of the shown ranks in a window: bars for work, shade behind for slowdown."""
    rows = {rank: row for row, rank in enumerate(shown.ranks)}
    changes = [c.time for c in plan_changes(run) if shown.start <= c.time < shown.end]
    top = PLAN if changes else UPDATES
    with drawing.canvas(WIDTH, 0.5 + 0.17 * (len(rows) - top)) as figure:
        ax = figure.add_subplot()
        if timing is not None:
            _shade(ax, timing, shown, rows)
        near = np.isin(steps.rank, shown.ranks) & (steps.start < shown.end)
        near &= np.maximum(steps.gap_end, steps.finish) > shown.start
        y = np.array([rows.get(int(r), -1) for r in steps.rank[near]], dtype=float)
        pieces = pieces_of(steps, timing)
        for key, look in PARTS.items():
            left, right = (np.clip(side[near], shown.start, shown.end) for side in pieces[key])
            drawing.boxes(ax, left, right, y, look.height, look.color, filled=look.filled)
        _marks(ax, run, shown, rows, changes)
        ax.set_xlim(shown.start, shown.end)
        ax.set_ylim(len(rows) - 0.4, top - 0.6)
        every = max(1, len(rows) // 12)
        labels = {PLAN: "plan", UPDATES: "updates"} if changes else {UPDATES: "updates"}
        labels |= {row: f"rank {r}" for r, row in rows.items() if row % every == 0}
        ax.set_yticks(list(labels), list(labels.values()))
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("time (s)")
        return drawing.svg(figure, name, label)


def run_strip(
    name: str, label: str, run: Run, steps: Steps, timing: Timing | None, workers: int,
    until: float, shown: Window,
) -> Markup:  # fmt: skip
    """What every rank did during the whole run, as `mixed` has it."""
    rgba = mixed(steps, timing, workers, until, run)
    return _strip(name, label, rgba, kept_ranks(run, workers), until, shown)


def kept_ranks(run: Run | None, workers: int) -> Sequence[int]:
    """The ranks whose steps were kept."""
    if run is None or run.excerpt is None:
        return range(workers)
    return list(run.excerpt["ranks"])


def mixed(
    steps: Steps, timing: Timing | None, workers: int, until: float, run: Run | None = None
) -> Floats:
    """Colours mixed by their share of each bin, shape (ranks that were kept, BINS, 4), of 0..1.

    Work that was thrown away counts `PALE` of its share, so that the page shines through.
    run: whose steps they are; an excerpt's windows stand for all of their periods.
    """
    ranks, (low, high) = kept_ranks(run, workers), _bins(until, run)
    rgba = np.zeros((len(ranks), BINS, 4))
    covered = np.zeros((len(ranks), BINS, 1))
    pieces = pieces_of(steps, timing)
    for row, rank in enumerate(ranks):
        own = steps.rank == rank
        for key, look in PARTS.items():
            left, right = (side[own] for side in pieces[key])
            whole = _share(left, right, low, high)
            share = (1.0 if look.filled else PALE) * whole
            rgba[row, :, :3] += share[:, None] * np.array(to_rgb(look.color))
            rgba[row, :, 3] += share
            covered[row, :, 0] += whole
    alpha = rgba[:, :, 3:]
    np.divide(rgba[:, :, :3], alpha, out=rgba[:, :, :3], where=alpha > 0)
    if run is not None and run.excerpt is not None and run.excerpt["period"] is not None:
        np.divide(alpha, covered, out=alpha, where=covered > 0)
    return np.clip(rgba, 0.0, 1.0)


def _bins(until: float, run: Run | None) -> tuple[Floats, Floats]:
    """From when until when each bin looks; where nothing is after the end of the run."""
    edges = np.linspace(0.0, until, BINS + 1)
    if run is None or run.excerpt is None or run.excerpt["period"] is None:
        return edges[:-1], edges[1:]
    middle, end = (edges[:-1] + edges[1:]) / 2, float(run.updates["time"][-1])
    period, window = run.excerpt["period"], run.excerpt["window"]
    low = np.where(middle < end, np.floor(middle / period) * period, until)
    return low, low + window


def contention_strip(
    name: str, label: str, timing: Timing, workers: int, until: float, shown: Window
) -> Markup:
    """The slowdown of every rank over the whole run, as `slowed` has it."""
    return _strip(name, label, slowed(timing, workers, until), range(workers), until, shown)


def slowed(timing: Timing, workers: int, until: float) -> Floats:
    """Mean slowdown of every rank's steps in each bin, or of its network where that is more.

    Colours of shape (workers, BINS, 4), of 0..1; fullest at `FULLEST`.
    """
    edges = np.linspace(0.0, until, BINS + 1)
    stretch = np.array([_mean(slowdown_of(timing, rank), edges) for rank in range(workers)])
    net = np.array([_mean(timing.contention.of_rank(r, "net"), edges) for r in range(workers)])
    rgba = drawing.pixels(drawing.CONTENTION, (stretch - 1) / (FULLEST - 1))
    network = net > stretch
    rgba[network] = drawing.pixels(drawing.NET, (net - 1) / (FULLEST - 1))[network]
    return rgba


def _strip(
    name: str, label: str, rgba: Floats, ranks: Sequence[int], until: float, shown: Window
) -> Markup:
    """Pixels over the whole run, a row per rank; two upright lines enclose the window."""
    rows = len(ranks)
    with drawing.canvas(WIDTH, 0.42 + 0.07 * min(max(rows, 4), 32)) as figure:
        ax = figure.add_subplot()
        drawing.image(ax, rgba, (0.0, until, rows - 0.5, -0.5))
        for edge in (shown.start, shown.end):
            ax.axvline(edge, color=drawing.INK, linewidth=0.8)
        ends = sorted({0, rows - 1})
        ax.set_yticks(ends, [f"rank {ranks[row]}" for row in ends])
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("time (s)")
        return drawing.svg(figure, name, label)


def _shade(ax: Axes, timing: Timing, shown: Window, rows: dict[int, int]) -> None:
    """One path for each colour and opacity, those of steps below those of the network."""
    found: dict[tuple[bool, float], list[tuple[float, float, int]]] = {}
    for span in spans(timing, shown.ranks, shown.start, shown.end):
        if span.opacity:
            bars = found.setdefault((span.network, span.opacity), [])
            bars.append((span.start, span.end, rows[span.rank]))
    for (network, opacity), bars in sorted(found.items()):
        left, right, y = zip(*bars, strict=True)
        color, height = (drawing.NET, 0.9) if network else (drawing.CONTENTION, 1.0)
        drawing.boxes(ax, left, right, y, height, color, opacity)


def _marks(ax: Axes, run: Run, shown: Window, rows: dict[int, int], changes: list[float]) -> None:
    """Ticks at updates, a line above who is suspected, upright lines where the plan changes."""
    hair = (shown.end - shown.start) / 1600
    times = np.asarray(run.updates["time"], dtype=float)
    times = times[(times >= shown.start) & (times < shown.end)]
    drawing.boxes(ax, times - hair, times + hair, np.full(len(times), UPDATES), 0.6, drawing.MUTED)
    suspected = [s for s in suspicions(run) if s.rank in rows]
    ends = np.array([[s.start, s.end] for s in suspected]).reshape(-1, 2)
    left, right = np.clip(ends, shown.start, shown.end).T
    y = np.array([rows[s.rank] - 0.42 for s in suspected])
    drawing.boxes(ax, left, right, y, 0.1, drawing.INK)
    at = np.array(changes)
    height = len(rows) + 2.0
    middle = np.full(len(at), (len(rows) - 3.0) / 2)
    drawing.boxes(ax, at - hair, at + hair, middle, height, drawing.INK, alpha=0.35)
    ax.plot(at, np.full(len(at), PLAN), "v", color=drawing.INK, markersize=4, linestyle="none")


def _mean(f: Piecewise, edges: Floats) -> Floats:
    """The mean of a step function in each bin."""
    parts = list(segments(f, float(edges[0]), float(edges[-1])))
    times = np.array([parts[0][0], *(high for _, high, _ in parts)])
    area = np.cumsum([0.0, *((high - low) * value for low, high, value in parts)])
    return np.asarray(np.diff(np.interp(edges, times, area)) / np.diff(edges))


def _share(left: Floats, right: Floats, low: Floats, high: Floats) -> Floats:
    """The share of each bin that intervals cover, which are in order and do not overlap."""
    kept = right > left
    if not kept.any():
        return np.zeros(len(low))
    left, right = left[kept], right[kept]
    times = np.stack([left, right], axis=1).ravel()
    covered = np.repeat(np.cumsum(right - left), 2)
    covered[::2] -= right - left
    until_high, until_low = (np.interp(ends, times, covered) for ends in (high, low))
    return np.asarray((until_high - until_low) / (high - low))
