"""The worker-by-time picture: slowdown, computing, waiting and communication of each rank.

A window shows single steps where contention sets in; a strip shows the whole run in coarse bins.
All pictures of one report have one time axis, so that policies can be compared by eye.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from simstrag.analysis import drawing
from simstrag.analysis.waiting import Steps
from simstrag.analysis.windows import Window, segments
from simstrag.slowdown import Piecewise
from simstrag.timing import Timing

__all__ = ["contention_strip", "mixed", "pieces_of", "run_strip", "slowdown_of", "window"]

Floats = npt.NDArray[np.float64]
BINS = 360
FULLEST = 2.5
PALE = 0.35
"""How opaque work that was thrown away is in a strip; the legend's swatch has the same."""
WIDTH = 9.0
SHADES = ((1.0, 1.25, 0.14), (1.25, 1.75, 0.28), (1.75, math.inf, 0.45))
"""Slowdowns from, below, and how opaque they are shown."""


def window(name: str, label: str, steps: Steps, timing: Timing | None, shown: Window) -> Markup:
    """Each step of the shown ranks in a window: bars for work, shade behind for slowdown."""
    rows = {rank: row for row, rank in enumerate(shown.ranks)}
    with drawing.canvas(WIDTH, 0.5 + 0.17 * len(rows)) as figure:
        ax = figure.add_subplot()
        if timing is not None:
            _shade(ax, timing, shown, rows)
        near = np.isin(steps.rank, shown.ranks) & (steps.start < shown.end)
        near &= np.maximum(steps.gap_end, steps.finish) > shown.start
        y = np.array([rows.get(int(r), -1) for r in steps.rank[near]], dtype=float)
        pieces = pieces_of(steps, timing)
        for key, color, height, filled in (
            ("full", drawing.FULL, 0.62, True),
            ("amp", drawing.AMP, 0.62, True),
            ("full, lost", drawing.FULL, 0.5, False),
            ("amp, lost", drawing.AMP, 0.5, False),
            ("wait", drawing.WAIT, 0.16, True),
            ("communication", drawing.COMMUNICATION, 0.4, True),
        ):
            left, right = (np.clip(side[near], shown.start, shown.end) for side in pieces[key])
            drawing.boxes(ax, left, right, y, height, color, filled=filled)
        ax.set_xlim(shown.start, shown.end)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        every = max(1, len(rows) // 12)
        ax.set_yticks(range(0, len(rows), every), [f"rank {r}" for r in shown.ranks[::every]])
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("time (s)")
        return drawing.svg(figure, name, label)


def run_strip(
    name: str, label: str, steps: Steps, timing: Timing | None, workers: int, until: float,
    shown: Window,
) -> Markup:  # fmt: skip
    """What every rank did during the whole run, as `mixed` has it."""
    rgba = mixed(steps, timing, workers, until)
    return _strip(name, label, rgba, workers, until, shown)


def mixed(steps: Steps, timing: Timing | None, workers: int, until: float) -> Floats:
    """Colours mixed by their share of each bin, shape (workers, BINS, 4), of 0..1.

    Work that was thrown away counts `PALE` of its share, so that the page shines through.
    """
    edges = np.linspace(0.0, until, BINS + 1)
    rgba = np.zeros((workers, BINS, 4))
    pieces = pieces_of(steps, timing)
    for rank in range(workers):
        own = steps.rank == rank
        for key, color, weight in (
            ("full", drawing.FULL, 1.0),
            ("amp", drawing.AMP, 1.0),
            ("full, lost", drawing.FULL, PALE),
            ("amp, lost", drawing.AMP, PALE),
            ("wait", drawing.WAIT, 1.0),
            ("communication", drawing.COMMUNICATION, 1.0),
        ):
            left, right = pieces[key]
            share = weight * _share(left[own], right[own], edges)
            rgba[rank, :, :3] += share[:, None] * np.array(to_rgb(color))
            rgba[rank, :, 3] += share
    alpha = rgba[:, :, 3:]
    np.divide(rgba[:, :, :3], alpha, out=rgba[:, :, :3], where=alpha > 0)
    return np.clip(rgba, 0.0, 1.0)


def contention_strip(
    name: str, label: str, timing: Timing, workers: int, until: float, shown: Window
) -> Markup:
    """Mean slowdown of every rank's steps in each bin, or of its network where that is more.

    The colour is fullest at `FULLEST`; two upright lines enclose the window.
    """
    edges = np.linspace(0.0, until, BINS + 1)
    stretch = np.array([_mean(slowdown_of(timing, rank), edges) for rank in range(workers)])
    net = np.array([_mean(timing.contention.of_rank(r, "net"), edges) for r in range(workers)])
    rgba = drawing.pixels(drawing.CONTENTION, (stretch - 1) / (FULLEST - 1))
    network = net > stretch
    rgba[network] = drawing.pixels(drawing.NET, (net - 1) / (FULLEST - 1))[network]
    return _strip(name, label, rgba, workers, until, shown)


def _strip(
    name: str, label: str, rgba: Floats, workers: int, until: float, shown: Window
) -> Markup:
    with drawing.canvas(WIDTH, 0.42 + 0.07 * min(max(workers, 4), 32)) as figure:
        ax = figure.add_subplot()
        drawing.image(ax, rgba, (0.0, until, workers - 0.5, -0.5))
        for edge in (shown.start, shown.end):
            ax.axvline(edge, color=drawing.INK, linewidth=0.8)
        ax.set_yticks(sorted({0, workers - 1}), [f"rank {r}" for r in sorted({0, workers - 1})])
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("time (s)")
        return drawing.svg(figure, name, label)


def pieces_of(steps: Steps, timing: Timing | None) -> dict[str, tuple[Floats, Floats]]:
    """(from, to) of the parts of every step's time; within a gap, waiting is put first.

    Keys: full, amp, each also with ", lost"; wait; communication.  A part that a step has not is
    empty, its ends equal.
    """
    lost = steps.lost
    ready = steps.finish + steps.wait
    same_rank = np.append(steps.rank[1:] == steps.rank[:-1], False)
    changes_precision = same_rank & (np.append(steps.amp[1:], False) != steps.amp)
    switch = 0.0 if timing is None else timing.step.amp_switch
    parts = {"wait": (steps.finish, ready)}
    parts["communication"] = ready, steps.gap_end - switch * changes_precision
    for key, chosen in (("full", ~steps.amp), ("amp", steps.amp)):
        for word, fate in (("", ~lost), (", lost", lost)):
            stop = np.where(chosen & fate, steps.finish, steps.start)
            parts[key + word] = steps.start, stop
    return parts


def slowdown_of(timing: Timing, rank: int) -> Piecewise:
    """By how much contention stretches a full-precision step of a rank."""
    f, clean = timing.stretch(rank, amp=False), timing.step.host + timing.step.gpu
    return Piecewise(f.times, tuple(value / clean for value in f.values), f.period)


def _shade(ax: Axes, timing: Timing, shown: Window, rows: dict[int, int]) -> None:
    steps = {rank: slowdown_of(timing, rank) for rank in rows}
    net = {rank: timing.contention.of_rank(rank, "net") for rank in rows}
    for color, height, slowdowns in ((drawing.CONTENTION, 1.0, steps), (drawing.NET, 0.9, net)):
        for above, below, alpha in SHADES:
            bars = [
                (low, high, rows[rank])
                for rank, f in slowdowns.items()
                for low, high, value in segments(f, shown.start, shown.end)
                if above <= value < below and value > 1 + 1e-9
            ]
            if bars:
                left, right, y = zip(*bars, strict=True)
                drawing.boxes(ax, left, right, y, height, color, alpha)


def _mean(f: Piecewise, edges: Floats) -> Floats:
    """The mean of a step function in each bin."""
    parts = list(segments(f, float(edges[0]), float(edges[-1])))
    times = np.array([parts[0][0], *(high for _, high, _ in parts)])
    area = np.cumsum([0.0, *((high - low) * value for low, high, value in parts)])
    return np.asarray(np.diff(np.interp(edges, times, area)) / np.diff(edges))


def _share(left: Floats, right: Floats, edges: Floats) -> Floats:
    """The share of each bin that intervals cover, which are in order and do not overlap."""
    kept = right > left
    if not kept.any():
        return np.zeros(len(edges) - 1)
    left, right = left[kept], right[kept]
    times = np.stack([left, right], axis=1).ravel()
    covered = np.repeat(np.cumsum(right - left), 2)
    covered[::2] -= right - left
    return np.asarray(np.diff(np.interp(edges, times, covered)) / np.diff(edges))
