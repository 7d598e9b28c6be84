"""Charts drawn with matplotlib: inline SVG for a page, or axes for a paper.

A page's SVG takes its text and line colours from the page around it.  Only the object interface is
used: no pyplot, no state that outlives a call.  Text stays text, so that it can be searched, read
out and printed; equal charts give equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from simstrag.analysis.charts import chart as spec
from simstrag.analysis.charts.chart import INK, LINE, MUTED, PAGE
from simstrag.arrays import Floats
from simstrag.experiments.paired_statistics import Estimate

THEME = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)"}
BESIDE = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
"""A legend to the right of a chart."""
BETWEEN = 24
"""Points of a curve between two markers."""
HAIR = 1 / 1600
"""Half the width of a tick, as a share of the x axis."""

SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "simstrag", "font.family": ["DejaVu Sans"],
    "font.size": 8.0, "text.parse_math": False, "text.color": INK, "axes.edgecolor": MUTED,
    "axes.labelcolor": INK, "axes.linewidth": 0.6, "axes.facecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "grid.color": LINE, "grid.linewidth": 0.5,
    "legend.frameon": False, "figure.facecolor": "none", "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
}  # fmt: skip


# -- a page --------------------------------------------------------------------------------------


class Picture(Markup):
    """Inline SVG, or nothing. width: inches, by which a page scales it."""

    width: float


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """A figure of this size in inches, to draw on and write within the `with`.

    >>> with canvas(3, 1) as figure:
    ...     _ = figure.add_subplot().plot([0, 1], [0, 1])
    ...     print(svg(figure, "line", "a line")[:47])
    <svg class="picture" role="img" aria-label="a l
    """
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        yield Figure(figsize=(width, height), layout="constrained")


def picture(chart: spec.Chart, name: str, log_x: bool = False) -> Picture:
    """A chart as inline SVG. name: unique on its page; log_x: whether its x axis is logarithmic."""
    with canvas(*chart.size) as figure:
        ax = figure.add_subplot()
        if log_x:
            ax.set_xscale("log")
        draw(chart, ax, PAGE)
        if log_x:
            ax.xaxis.set_major_formatter("{x:g}")
        if chart.legend and ax.get_legend_handles_labels()[0]:
            ax.legend(**BESIDE)
        return svg(figure, name, chart.label)


def svg(figure: Figure, name: str, label: str) -> Picture:
    """Inline SVG.

    name: unique on its page; ids begin with it.
    label: the text for a screen reader.
    """
    written = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas = FigureCanvasSVG(figure)  # draws once, where savefig draws twice
    canvas.print_svg(written, metadata=nothing)  # type: ignore[no-untyped-call]
    # the `<svg>` element alone, without a fixed size, foreign colours and needless digits
    text = written.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.S)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-", body)
    body = re.sub(r' id="[^"]*_\d+"', "", body)
    body = re.sub(r'\bd="[^"]*"', _short, body)
    body = body.replace("'DejaVu Sans'", "system-ui, sans-serif")
    for stand_in, variable in THEME.items():
        body = body.replace(stand_in, variable)
    body = re.sub(r"\n\s*", "\n", body)
    label = escape(label)
    drawn = Picture(
        f'<svg class="picture" role="img" aria-label="{label}" {box.group()}>'
        f"<title>{label}</title>{body}"
    )
    drawn.width = float(figure.get_figwidth())
    return drawn


def _short(path: re.Match[str]) -> str:
    """A path to a tenth of a point, and without its line breaks."""
    return " ".join(re.sub(r"\.(\d)\d+", r".\1", path.group()).replace(".0 ", " ").split())


# -- a chart on axes -----------------------------------------------------------------------------


def draw(chart: spec.Chart, ax: Axes, theme: spec.Theme) -> None:
    """Draw a chart on axes; a legend is left to the caller."""
    low, high = chart.x_range
    if low is not None and high is not None:
        ax.set_xlim(low, high)
    for k, mark in enumerate(chart.marks):
        match mark:
            case spec.Curve(at_first=False):
                pass
            case spec.Curve():
                _draw_curve(ax, mark, theme, k)
            case spec.Dots():
                _draw_dots(ax, mark, theme)
            case spec.Bars():
                left, right = (np.clip(end, low, high) for end in (mark.left, mark.right))
                name = _plain(mark.name)
                known = ax.get_legend_handles_labels()[1]
                label = None if name in known else name or None
                boxes(ax, left, right, mark.row, mark.height, theme.paints[mark.role], label)
            case spec.Events():
                _draw_events(ax, mark, theme)
            case spec.Image():
                image(ax, mark.rgba, mark.extent)
            case spec.Rule():
                _draw_rule(ax, mark, theme)
            case _:
                style: Any = {"where": "post", "color": theme.muted, "linewidth": 0.8}
                ax.step(mark.x, mark.y, label=mark.name, **style)
    if chart.rows:
        ax.set_yticks(list(chart.rows), [_plain(name) for name in chart.rows.values()])
        ax.tick_params(axis="y", length=0)
    ax.set(xlim=chart.x_range, ylim=chart.y_range, xlabel=chart.x, ylabel=chart.y)
    if chart.grid:
        ax.grid(axis=chart.grid)
        ax.set_axisbelow(True)


def _plain(name: str) -> str:
    """A name as matplotlib must be given it, in which a dollar sign may start a formula."""
    return name.replace("$", r"\$") if matplotlib.rcParams["text.parse_math"] else name


def _draw_curve(ax: Axes, mark: spec.Curve, theme: spec.Theme, k: int) -> None:
    style = theme.look(mark.look)
    if not theme.marked:
        style["marker"] = "None"
    every = (5 + 7 * k % BETWEEN, BETWEEN)
    ax.plot(mark.x, mark.y, label=_plain(mark.name), markevery=every, **style)
    if mark.least is not None and mark.most is not None:
        band = {"color": style["color"], "alpha": 0.12, "linewidth": 0}
        fill, over = (ax.fill_betweenx, mark.y) if mark.along == "x" else (ax.fill_between, mark.x)
        fill(over, mark.least, mark.most, **band)


def _draw_dots(ax: Axes, mark: spec.Dots, theme: spec.Theme) -> None:
    style = theme.look(mark.look)
    if not mark.joined:
        style["linestyle"] = "None"
    ax.errorbar(
        [e.value for e in mark.x], [e.value for e in mark.y],
        xerr=arms(mark.x) if any(e.low != e.high for e in mark.x) else None,
        yerr=arms(mark.y) if any(e.low != e.high for e in mark.y) else None,
        label=_plain(mark.name), capsize=2, elinewidth=0.9,
        markerfacecolor=style["color"] if mark.filled else theme.hollow, **style,
    )  # fmt: skip


def _draw_events(ax: Axes, mark: spec.Events, theme: spec.Theme) -> None:
    hair = HAIR * float(np.diff(ax.get_xlim())[0])
    low, high = ax.get_xlim()
    x = mark.x[(mark.x >= low) & (mark.x < high)]
    row = np.full(len(x), mark.row)
    if mark.to is None:
        boxes(ax, x - hair, x + hair, row, 0.6, spec.Paint(theme.muted))
        return
    middle = np.full(len(x), (mark.row + mark.to) / 2)
    boxes(ax, x - hair, x + hair, middle, mark.to - mark.row, spec.Paint(theme.ink, alpha=0.35))
    ax.plot(x, row, "v", color=theme.ink, markersize=4, linestyle="none")


def _draw_rule(ax: Axes, mark: spec.Rule, theme: spec.Theme) -> None:
    upright = mark.axis == "x"
    dash: Any = (0, (1, 2)) if mark.dotted else "-"
    line = ax.axvline if upright else ax.axhline
    line(mark.at, color=theme.muted, linewidth=0.8, linestyle=dash)
    if mark.word:
        ax.annotate(
            mark.word, (mark.at, 1.0) if upright else (0.0, mark.at),
            xycoords=("data", "axes fraction") if upright else ("axes fraction", "data"),
            xytext=(-3 if mark.left else 3, 2), ha="right" if mark.left else "left",
            textcoords="offset points", color=theme.muted, fontsize=7,
        )  # fmt: skip


def boxes(
    ax: Axes, left: npt.ArrayLike, right: npt.ArrayLike, middle: npt.ArrayLike,
    height: float, paint: spec.Paint, label: str | None = None,
) -> None:  # fmt: skip
    """Draw horizontal bars in data coordinates as one path; empty bars are left out."""
    x0, x1, y = (np.asarray(values, dtype=float) for values in (left, right, middle))
    kept = x1 > x0
    if not kept.any():
        return
    x0, x1, y = x0[kept], x1[kept], y[kept]
    low, high = y - height / 2, y + height / 2
    x = np.stack([x0, x1, x1, x0, x0], axis=1)
    path = Path.make_compound_path_from_polys(
        np.stack([x, np.stack([low, low, high, high, low], axis=1)], axis=2)
    )
    face = "none" if paint.face is None else to_rgba(paint.face, paint.alpha)
    ax.add_artist(  # `add_patch` would look for the limits edge by edge, of 100,000 bars
        PathPatch(
            path, facecolor=face, edgecolor=paint.edge or "none", hatch=paint.hatch or None,
            linewidth=0.6 if paint.edge else 0.0, label=label,
        )
    )  # fmt: skip
    ax.update_datalim([(x0.min(), low.min()), (x1.max(), high.max())])
    ax.autoscale_view()


class MapCell(NamedTuple):
    """A cell of a map: its column and row, what kind it is, and the text on it."""

    column: int
    row: int
    kind: str
    text: str


def cells(
    ax: Axes, found: Sequence[MapCell], paints: Mapping[str, spec.Paint], x: Sequence[str],
    y: Sequence[str],
) -> None:  # fmt: skip
    """Draw a map of cells, row 0 at the bottom, in the paints of their kinds.

    x, y: names of the columns and of the rows.
    """
    for kind, paint in paints.items():
        own = [cell for cell in found if cell.kind == kind]
        column, row = (np.array([cell[k] for cell in own]) for k in (0, 1))
        boxes(ax, column - 0.48, column + 0.48, row, 0.92, paint, kind)
    for cell in found:
        ax.text(cell.column, cell.row, cell.text, ha="center", va="center", color=INK, fontsize=7.5)
    ax.set(xlim=(-0.5, len(x) - 0.5), ylim=(-0.5, len(y) - 0.5))
    ax.set_xticks(range(len(x)), x)
    ax.set_yticks(range(len(y)), y)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def image(ax: Axes, rgba: Floats, extent: tuple[float, float, float, float]) -> None:
    """Show RGBA pixels (rows from the top) over `extent`, each as a sharp rectangle."""
    ax.imshow(rgba, extent=extent, aspect="auto", interpolation="none", origin="upper")


def pixels(color: str, weight: Floats) -> Floats:
    """RGBA pixels of one colour, as opaque as `weight` (0..1)."""
    rgba = to_rgba_array(color, np.clip(weight, 0.0, 1.0).ravel())
    return rgba.reshape(*weight.shape, 4)


def arms(estimates: Sequence[Estimate]) -> npt.NDArray[np.float64]:
    """Lengths of error bars, shape (2, n); 0 without an interval.

    >>> arms([Estimate(3.0, 2.0, 5.0)]).tolist()
    [[1.0], [2.0]]
    """
    ends = np.array([[e.value - e.low, e.high - e.value] for e in estimates]).reshape(-1, 2).T
    return np.asarray(np.nan_to_num(np.clip(ends, 0.0, None)))
