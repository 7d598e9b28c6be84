"""Pictures of a sweep: the fastest policy over one or two keys, and speed-ups over one."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence

import numpy as np

from simstrag.analysis.charts import chart as spec
from simstrag.analysis.charts import matplotlib_renderer as drawing
from simstrag.analysis.charts.chart import LETTER, PAGE, Chart, Dots, Mark, Rule, exact
from simstrag.analysis.charts.comparison_charts import looks
from simstrag.analysis.charts.matplotlib_renderer import MapCell, Picture, canvas, svg
from simstrag.analysis.derived.sweep_cells import Axis, Cell, SweepCells
from simstrag.analysis.text.number_format import percent
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate
from simstrag.scenario.varied_constants import NAMES, QUANTITIES

LEAST = 4.4
"""Least width, in inches like all sizes here."""
NARROW, CELL, HEIGHT = 0.8, 0.95, 0.42
"""A cell: width from which panels stand side by side, most width, and height."""
LINE_HEIGHT = 0.15
NO_WINNER, NO_RESULT = "no clear winner", "no result"


def label_of(key: str) -> str:
    """A key with its name and unit.

    >>> label_of("server.service"), label_of("workers")
    ("server.service: the server's service (s)", 'workers')
    """
    unit = QUANTITIES.get(key)
    return f"{key}: {NAMES[key]}{f' ({unit})' if unit else ''}" if key in NAMES else key


def pictures(found: SweepCells, x: str | None = None, y: str | None = None) -> list[Picture]:
    """The fastest policy over the keys; where one key varies, also the speed-ups over it."""
    return [fastest(found, x, y), *([speedups(found)] if len(found.axes) == 1 else [])]


def fastest(found: SweepCells, x: str | None = None, y: str | None = None) -> Picture:
    """The fastest policy over one or two keys: a cell per point, in the colour of its policy.

    A cell in which the best policy is not shown to be faster than every other is hatched.  There is
    a panel for each combination of the other keys, named above it.  All cells have one size.
    """
    along_x, along_y, others = found.choose(x, y)
    kinds = {point.number: _kind(point) for point in found.cells}
    names = [name for name in (*found.policies, NO_WINNER, NO_RESULT) if name in kinds.values()]
    columns, rows = len(along_x.values), len(along_y.values) if along_y else 1
    panels = _by_panel(found, others)
    across = min(len(panels), max(1, int(spec.WIDTH / (columns * NARROW))))
    down = -(-len(panels) // across)
    across = -(-len(panels) // down)
    label = _wrap(label_of(along_y.key), down * (rows + 1) * HEIGHT) if along_y else []
    beside = LETTER * max(map(len, along_y.labels)) + LINE_HEIGHT * len(label) if along_y else 0.0
    size = min(CELL, (spec.WIDTH - beside - 0.2) / across / columns)
    width = max(beside + 0.2 + across * columns * size, LEAST)
    titles = [_wrap(title, columns * size) for title, _ in panels]
    below = LETTER * max(map(len, along_x.labels))
    turned = below > size
    in_line = max(1, int(width / (0.5 + LETTER * max(map(len, names)))))
    height = 0.6 + 0.2 * -(-len(names) // in_line) + below * turned
    height += down * (rows * HEIGHT + 0.2 + LINE_HEIGHT * max(map(len, titles)))
    texts, look = _texts(found, size), looks(found.policies)
    paints = {name: PAGE.area(look[name]) for name in found.policies}
    paints |= {NO_WINNER: spec.UNCLEAR, NO_RESULT: spec.ABSENT}
    with canvas(width, height) as figure:
        drawn = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
        for ax, title, (_, own) in zip(drawn, titles, panels, strict=False):
            shown = [
                MapCell(
                    _place(along_x, c), _place(along_y, c), kinds[c.number], texts.get(c.number, "")
                )
                for c in own
            ]
            drawing.cells(ax, shown, paints, along_x.labels, along_y.labels if along_y else [""])
            if not (along_y and along_y.numeric):
                ax.invert_yaxis()
            ax.set_title("\n".join(title), fontsize=8, loc="left")
            ax.tick_params(axis="x", labelrotation=90 * turned)
        for ax in drawn[len(panels) :]:
            ax.set_visible(False)
        figure.supxlabel(label_of(along_x.key), fontsize=8)
        figure.supylabel("\n".join(label), fontsize=8)
        entries = (zip(*ax.get_legend_handles_labels(), strict=True) for ax in drawn)
        handles = {name: handle for entry in entries for handle, name in entry}
        figure.legend([handles[n] for n in names], names, loc="outside upper left", ncols=in_line)
        keys = " and ".join(axis.key for axis in (along_x, along_y) if axis)
        return svg(figure, "fastest", f"The fastest policy over {keys}")


def _by_panel(found: SweepCells, others: Sequence[Axis]) -> list[tuple[str, list[Cell]]]:
    """The title and the points of each combination of values, in the order of the axes."""
    panels = []
    for places in itertools.product(*(range(len(axis.values)) for axis in others)):
        chosen = [*zip(others, places, strict=True)]
        title = ", ".join(f"{axis.key}: {axis.labels[k]}" for axis, k in chosen)
        cells = [c for c in found.cells if all(_place(axis, c) == k for axis, k in chosen)]
        panels.append((title, cells))
    return panels


def _wrap(text: str, width: float) -> list[str]:
    """Text in lines of so many inches, if its words are not longer."""
    return textwrap.wrap(text, max(1, int(width / LETTER)), break_long_words=False)


def _texts(found: SweepCells, width: float) -> dict[int, str]:
    """What is written in each cell: its policy and the time saved in %, as far as all fit."""
    won = {cell.number: cell.best for cell in found.cells if cell.winner and cell.best}
    names = {number: p.policy for number, p in won.items()}
    saved = {
        number: percent(p.saved.value, 2)
        for number, p in won.items()
        if p.policy != BASELINE and math.isfinite(p.saved.value)
    }
    with_unit = {number: f"{text} %" for number, text in saved.items()}
    fits = [
        all(len(text) * LETTER < width for text in texts.values())
        for texts in (names, with_unit, saved)
    ]
    shown = [names] * fits[0] + ([with_unit] if fits[1] else [saved] * fits[2])
    return {
        number: "\n".join(texts[number] for texts in shown if number in texts) for number in won
    }


def _kind(cell: Cell) -> str:
    """The name of a cell in the legend."""
    return cell.winner or (NO_WINNER if cell.best else NO_RESULT)


def _place(axis: Axis | None, cell: Cell) -> int:
    """The index of a point along an axis."""
    return axis.values.index(cell.values[axis.key]) if axis else 0


def speedups(found: SweepCells) -> Picture:
    """Speed-up of every policy over bsp along the only key, with 95 % intervals, and bands.

    Mean times where bsp is not there.
    """
    (axis,) = found.axes.values()
    look = looks(found.policies)
    label = "speed-up over bsp" if found.has_baseline else "mean time (s)"
    at = axis.values if axis.numeric else range(len(axis.values))
    lines: dict[str, list[tuple[float, Estimate]]] = {name: [] for name in found.policies}
    for cell in sorted(found.cells, key=lambda cell: _place(axis, cell)):
        for p in cell.ranking:
            value = p.speedup if found.has_baseline else p.time
            lines[p.policy].append((at[_place(axis, cell)], value))
    if found.has_baseline:
        del lines[BASELINE]
    marks: list[Mark] = [Rule(1.0, "y", "bsp")] if found.has_baseline else []
    for name, line in lines.items():
        x, y = exact(*(at for at, _ in line)), [value for _, value in line]
        marks += [Dots(name, look[name], x, y, joined=True)] if line else []
    chart = Chart(f"{label} over {axis.key}", label_of(axis.key), label, marks)
    with canvas(*chart.size) as figure:
        ax = figure.add_subplot()
        ax.set_xscale("log" if axis.logarithmic else "linear")
        drawing.draw(chart, ax, PAGE)
        for name, line in lines.items() if axis.numeric else ():
            band = [(x, y.low, y.high) for x, y in line]
            color = PAGE.look(look[name])["color"]
            ax.fill_between(*np.array(band).reshape(-1, 3).T, color=color, alpha=0.12, linewidth=0)
        ax.set_xticks(list(at), axis.labels)
        ax.minorticks_off()
        if ax.get_legend_handles_labels()[0]:
            ax.legend(**drawing.BESIDE)
        return svg(figure, "speedups", chart.label)
