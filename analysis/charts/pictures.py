"""The charts of a report, as inline SVG: intervals, progress, time spent, waiting, sensitivity.

Each is a pure function of names and numbers; nothing is computed here that a table should show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from simstrag.analysis.charts import drawing
from simstrag.experiments.paired_statistics import Estimate

__all__ = ["curves", "dots", "intervals", "lines", "matrix", "spent", "spent_by_rank", "spreads"]

Floats = npt.NDArray[np.float64]
WIDTH = 9.0
MARKERS = "os^Dv"
ACROSS = 4
"""Panels beside each other."""
PARTS = {
    "full": (drawing.FULL, True),
    "amp": (drawing.AMP, True),
    "lost": (drawing.FULL, False),
    "communication": (drawing.COMMUNICATION, True),
    "wait": (drawing.WAIT, True),
}
"""What a rank may do: colour, and whether it is filled."""


def intervals(
    name: str, label: str, axis: str, rows: Sequence[tuple[str, Sequence[Estimate]]],
    series: Sequence[str], marks: Mapping[str, float],
) -> Markup:  # fmt: skip
    """A dot with its interval per row and series; `marks` are two upright lines with a word."""
    with drawing.canvas(WIDTH, 0.75 + 0.27 * len(rows)) as figure:
        ax = figure.add_subplot()
        offsets = np.linspace(-0.16, 0.16, len(series)) if len(series) > 1 else [0.0]
        for k, offset in enumerate(offsets):
            shown = [(y, e[k]) for y, (_, e) in enumerate(rows) if math.isfinite(e[k].value)]
            x = np.array([e.value for _, e in shown])
            y = np.array([row + offset for row, _ in shown])
            ends = np.array([[e.value - e.low, e.high - e.value] for _, e in shown]).reshape(-1, 2)
            error = np.nan_to_num(np.clip(ends.T, 0.0, None))
            ax.errorbar(
                x, y, xerr=error, fmt="os"[k % 2], markersize=4, capsize=2.5, linewidth=1.2,
                color=drawing.style_of(k)["color"], label=series[k],
            )  # fmt: skip
        for k, (word, x_mark) in enumerate(marks.items()):
            ax.axvline(x_mark, color=drawing.MUTED, linewidth=0.8, linestyle=drawing.DASHES[k])
            ax.annotate(
                word, (x_mark, 1.0), xycoords=("data", "axes fraction"), ha=("right", "left")[k],
                xytext=((-3, 2), (3, 2))[k], textcoords="offset points", color=drawing.MUTED,
                fontsize=7,
            )  # fmt: skip
        ax.set_yticks(range(len(rows)), [row for row, _ in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        ax.set_xlabel(axis)
        if len(series) > 1:
            ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return drawing.svg(figure, name, label)


def curves(
    name: str, label: str, axes: tuple[str, str],
    series: Mapping[str, tuple[Floats, Floats, Floats, Floats]], target: float | None,
    looks: Mapping[str, dict[str, Any]],
) -> Markup:  # fmt: skip
    """Progress over time. series: name to (mean time, least, most, level) arrays."""
    with drawing.canvas(WIDTH, 3.4) as figure:
        ax = figure.add_subplot()
        for word, (middle, least, most, level) in series.items():
            look = looks[word]
            ax.plot(middle, level, linewidth=1.3, label=word, **look)
            if np.any(most > least):
                ax.fill_betweenx(level, least, most, color=look["color"], alpha=0.1, linewidth=0)
        if target is not None:
            ax.axhline(target, color=drawing.MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
            ax.annotate(
                "target", (0.0, target), xycoords=("axes fraction", "data"), xytext=(3, 2),
                textcoords="offset points", color=drawing.MUTED, fontsize=7,
            )  # fmt: skip
        ax.set_xlabel(axes[0])
        ax.set_ylabel(axes[1])
        ax.set_xlim(left=0.0)
        ax.grid()
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return drawing.svg(figure, name, label)


def spent(
    name: str, label: str, axis: str, rows: Sequence[tuple[str, Mapping[str, float]]]
) -> Markup:
    """Stacked bars. rows: name to seconds by part: full, amp, lost, communication, wait."""
    with drawing.canvas(WIDTH, 0.5 + 0.25 * len(rows)) as figure:
        ax = figure.add_subplot()
        left = np.zeros(len(rows))
        for part, (color, filled) in PARTS.items():
            right = left + np.array([parts.get(part, 0.0) for _, parts in rows])
            drawing.boxes(ax, left, right, np.arange(len(rows)), 0.6, color, filled=filled)
            left = right
        ax.set_xlim(0.0, float(left.max()) * 1.02)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        every = max(1, len(rows) // 32)
        ax.set_yticks(range(0, len(rows), every), [row for row, _ in rows[::every]])
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        ax.set_xlabel(axis)
        return drawing.svg(figure, name, label)


def spent_by_rank(name: str, label: str, panels: Mapping[str, Mapping[str, Floats]]) -> Markup:
    """Stacked columns, one per rank. panels: policy to seconds of each rank by part."""
    lines = -(-len(panels) // ACROSS)
    most = max(float(np.sum([*parts.values()], axis=0).max()) for parts in panels.values())
    with drawing.canvas(WIDTH, 0.3 + 1.35 * lines) as figure:
        axes = figure.subplots(lines, ACROSS, sharex=True, sharey=True, squeeze=False)
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        for ax, (policy, parts) in zip(axes.flat, panels.items(), strict=False):
            base = np.zeros_like(parts["full"])
            edges = np.arange(len(base) + 1) - 0.5
            for part, (color, filled) in PARTS.items():
                if parts[part].any():
                    top = base + parts[part]
                    ax.stairs(top, edges, baseline=base, fill=filled, color=color, linewidth=0.8)
                    base = top
            ax.set_title(policy, fontsize="medium", loc="left")
            ax.set_ylim(0.0, 1.02 * most)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.supxlabel("rank", fontsize="medium")
        figure.supylabel("seconds", fontsize="medium")
        return drawing.svg(figure, name, label)


def matrix(name: str, label: str, seconds: Floats, most: float) -> Markup:
    """Who (row) waited for whom (column); the darkest shade is `most` seconds."""
    n = len(seconds)
    with drawing.canvas(3.2, 2.9) as figure:
        ax = figure.add_subplot()
        weight = seconds / most if most > 0 else seconds
        drawing.image(
            ax, drawing.pixels(drawing.CONTENTION, 0.85 * weight), (-0.5, n - 0.5, n - 0.5, -0.5)
        )
        if n <= 10:
            for row, column in zip(*np.nonzero(weight > 0.005), strict=True):
                value = seconds[row, column]
                text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
                ax.text(column, row, text, ha="center", va="center", fontsize=6.5)
        every = max(1, n // 8)
        ax.set_xticks(range(0, n, every))
        ax.set_yticks(range(0, n, every))
        ax.tick_params(length=0)
        ax.set_xlabel("for rank")
        ax.set_ylabel("rank waited (s)")
        return drawing.svg(figure, name, label)


def lines(
    name: str, label: str, axes: tuple[str, str], levels: Sequence[float],
    series: Mapping[str, Sequence[Estimate]], looks: Mapping[str, dict[str, Any]],
) -> Markup:  # fmt: skip
    """One line with intervals per series over a few levels, evenly spaced."""
    with drawing.canvas(WIDTH, 3.0) as figure:
        ax = figure.add_subplot()
        x = np.arange(len(levels))
        for word, values in series.items():
            middle = np.array([e.value for e in values])
            ends = np.array([[e.value - e.low, e.high - e.value] for e in values]).T
            ax.errorbar(
                x, middle, yerr=np.nan_to_num(np.clip(ends, 0.0, None)), label=word,
                marker="o", markersize=3.5, capsize=2, linewidth=1.2, **looks[word],
            )  # fmt: skip
        ax.set_xticks(x, [f"{level:g}" for level in levels])
        ax.set_ylim(bottom=0.0)
        ax.set_xlabel(axes[0])
        ax.set_ylabel(axes[1])
        ax.grid(axis="y")
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return drawing.svg(figure, name, label)


def spreads(name: str, label: str, axes: tuple[str, str], quantiles: Floats, most: float) -> Markup:
    """A row per rank: a line from least to most, a box of the middle half, a mark at the median.

    quantiles: least, lower quartile, median, upper quartile and most; shape (ranks, 5).
    """
    n = len(quantiles)
    y = np.arange(n)
    least, lower, median, upper, highest = quantiles.T
    half = 0.004 * max(most, 1.0)
    with drawing.canvas(3.2, 0.6 + 0.15 * min(max(n, 4), 24)) as figure:
        ax = figure.add_subplot()
        drawing.boxes(ax, least, highest, y, 0.12, drawing.FULL, alpha=0.6)
        drawing.boxes(ax, lower, upper, y, 0.6, drawing.FULL, alpha=0.5)
        drawing.boxes(ax, median - half, median + half, y, 0.8, drawing.AMP)
        ax.set_xlim(-0.03 * most, 1.03 * most)
        ax.set_ylim(n - 0.5, -0.5)
        ax.set_yticks(range(0, n, max(1, n // 8)))
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        ax.set_xlabel(axes[0])
        ax.set_ylabel(axes[1])
        return drawing.svg(figure, name, label)


def dots(
    name: str, label: str, axes: tuple[str, str],
    points: Sequence[tuple[str, Estimate, Estimate, bool]], looks: Mapping[str, dict[str, Any]],
) -> Markup:  # fmt: skip
    """Points (name, x, y, filled) with both intervals; filled ones are joined by a staircase."""
    with drawing.canvas(WIDTH, 3.4) as figure:
        ax = figure.add_subplot()
        stairs = sorted((x.value, y.value) for _, x, y, filled in points if filled)
        ax.step(
            [x for x, _ in stairs], [y for _, y in stairs], where="post", color=drawing.MUTED,
            linewidth=0.8, label="Pareto front of means",
        )  # fmt: skip
        for k, (word, x, y, filled) in enumerate(points):
            color = looks[word]["color"]
            arms = [[[e.value - e.low], [e.high - e.value]] for e in (x, y)]
            across, along = (np.nan_to_num(np.clip(ends, 0.0, None)) for ends in arms)
            ax.errorbar(
                x.value, y.value, xerr=across, yerr=along, fmt=MARKERS[k % len(MARKERS)],
                markersize=6, capsize=2, linewidth=0.9, color=color, label=word,
                markerfacecolor=color if filled else "none",
            )  # fmt: skip
        ax.set_xlabel(axes[0])
        ax.set_ylabel(axes[1])
        ax.grid()
        ax.set_axisbelow(True)
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return drawing.svg(figure, name, label)
