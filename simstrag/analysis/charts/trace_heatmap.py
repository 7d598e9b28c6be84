"""A contention trace as a heatmap: a row per node, time to the right, darker where slower."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simstrag.analysis.charts.chart import CONTENTION, FULL
from simstrag.analysis.derived.timeline_excerpt import bin_means
from simstrag.arrays import Floats
from simstrag.trace.trace import RESOURCES, Trace

COLUMNS = 1000
"""Most intervals of time; each shows its mean."""
LABELLED = 32
"""Most nodes that all have their numbers."""
WIDE_RANGE = 8.0
"""Use logarithmic colours from this ratio of the greatest to the least value."""
MILD = 3.0
"""Least slowdown at the end of the colours, so that noise of a few percent stays pale."""
WIDTH = 9.0
"""Inches, like all heights here."""
TALLEST = 9.0
SETTINGS = {"font.size": 9.0, "axes.linewidth": 0.6, "figure.dpi": 150, "savefig.dpi": 150}


class _Panel(NamedTuple):
    """One resource and kind: nodes, values (nodes, columns), and the end of the last column."""

    resource: str
    kind: str
    nodes: list[int]
    values: Floats
    reach: float


def heatmap(trace: Trace) -> Figure:
    """A panel for each resource and kind of a trace, as a matplotlib figure to show or save.

    Slowdowns and utilisations are over time, the mean of each of up to 1000 intervals; recorded
    durations are step by step, the mean of neighbours where there are more than that.  White is
    clean (1), idle (0) or the shortest step.  The scale of colours is logarithmic where the largest
    value is 8 times the smallest or more.  A notebook shows the figure that a cell ends with.

    >>> rows = [(5, 0, "gpu", "slowdown", 2), (9, 1, "net", "slowdown", 1)]
    >>> figure = heatmap(Trace.from_rows(rows))
    >>> [axes.get_title() for axes in figure.axes if axes.get_title()]
    ['gpu slowdown', 'net slowdown']
    """
    import matplotlib.pyplot as plt

    panels = list(_panels(trace))
    heights = [min(max(0.22 * len(panel.nodes), 1.2), TALLEST / len(panels)) for panel in panels]
    with plt.rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = plt.figure(figsize=(WIDTH, sum(heights) + 0.7 * len(panels)), layout="constrained")
        plt.close(figure)  # it is the caller's, and not shown a second time
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for ax, panel in zip(axes, panels, strict=True):
            _draw(figure, ax, panel)
    return figure


def _panels(trace: Trace) -> Iterator[_Panel]:
    h, held, keys, end = trace.histories, trace.histories.pieces(), trace.keys, trace.end
    for resource, kind in sorted(
        {(resource, kind) for _, resource, kind in keys},
        key=lambda pair: (RESOURCES.index(pair[0]), pair[1]),
    ):
        chosen = [k for k, (_, *of) in enumerate(keys) if of == [resource, kind]]
        nodes = [keys[k][0] for k in chosen]
        if kind == "duration":
            steps = [h.value[h.starts[k] : h.starts[k + 1]] for k in chosen]
            yield _Panel(resource, kind, nodes, *_means_of_steps(steps))
        elif end == 0:
            yield _Panel(
                resource, kind, nodes, np.array([held[k].values[-1:] for k in chosen]), 1.0
            )
        else:
            edges = np.linspace(0.0, end, COLUMNS + 1)
            means = np.array([bin_means(held[k], edges) for k in chosen])
            yield _Panel(resource, kind, nodes, means, end)


def _means_of_steps(steps: list[Floats]) -> tuple[Floats, float]:
    """Durations by node and step, NaN after a node's last step, and the number of steps."""
    most = max(map(len, steps))
    width = -(-most // COLUMNS)
    values = np.full((len(steps), -(-most // width)), np.nan)
    for row, own in zip(values, steps, strict=True):
        begins = np.arange(0, len(own), width)
        row[: len(begins)] = np.add.reduceat(own, begins) / np.diff(np.append(begins, len(own)))
    return values, float(values.shape[1] * width)


def _draw(figure: Figure, ax: Axes, panel: _Panel) -> None:
    n = len(panel.nodes)
    norm, colours, word = _scale(panel)
    ax.set_facecolor("#d9dadb")  # where a node has no step any more
    image = ax.imshow(
        panel.values, extent=(0.0, panel.reach, n - 0.5, -0.5), aspect="auto", origin="upper",
        interpolation="nearest", norm=norm, cmap=colours,
    )  # fmt: skip
    ax.set_title(f"{panel.resource} {panel.kind}", fontsize="medium")
    ax.set_xlabel("step" if panel.kind == "duration" else "time (s)")
    ax.set_ylabel("node")
    named = list(range(n))
    if n <= LABELLED:
        ax.hlines(np.arange(n - 1) + 0.5, *ax.get_xlim(), color="white", linewidth=1.5)
    else:
        named = [int(k) for k in MaxNLocator(9, integer=True).tick_values(0, n - 1) if 0 <= k < n]
    ax.set_yticks(named, [str(panel.nodes[k]) for k in named])
    ax.tick_params(axis="y", length=0)
    bar = figure.colorbar(image, ax=ax, pad=0.01, fraction=0.03, label=word)
    bar.outline.set_linewidth(0.4)


def _scale(panel: _Panel) -> tuple[Any, Any, str]:
    """Scale, colours from white on, and their label."""
    values = panel.values[np.isfinite(panel.values)]
    least, most = float(values.min()), float(values.max())
    if panel.kind == "utilisation":
        return Normalize(0.0, 1.0), _shades(FULL, "#16324f"), "share in use"
    shades = _shades(CONTENTION, "#4a0d0a")
    word = "slowdown" if panel.kind == "slowdown" else "seconds"
    if panel.kind == "slowdown":
        least, most = min(least, 1.0), max(most, MILD)
    if most >= WIDE_RANGE * least > 0:
        return LogNorm(least, most), shades, f"{word} (logarithmic)"
    return Normalize(least, most if most > least else least + 1.0), shades, word


def _shades(colour: str, darkest: str) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list("shades", ["#ffffff", colour, darkest])
