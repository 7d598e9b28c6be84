"""Charts drawn with Bokeh, to zoom and to point at, and packed into a page that loads nothing.

Text and lines have the stand-in colours of `chart`, which a page replaces by its own, light or
dark.  The wheel zooms with Ctrl held, so that a page scrolls over a plot.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    DataRange1d,
    FixedTicker,
    HoverTool,
    PanTool,
    Range1d,
    RangeTool,
    ResetTool,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)
from bokeh.models.annotations import Label, Legend, LegendItem, Span
from bokeh.plotting import figure

from simstrag.analysis.charts import chart as spec
from simstrag.analysis.charts.chart import INK, LINE, MUTED, PAGE
from simstrag.analysis.charts.matplotlib_renderer import THEME

FONT, SIZE = "system-ui, sans-serif", "11px"
MARKERS = {
    "o": "circle", "s": "square", "^": "triangle", "D": "diamond", "v": "inverted_triangle",
}  # fmt: skip
DASHES = {(5, 2): [6, 3], (1.5, 1.5): [2, 3]}
"""Dashes: in points for matplotlib, in pixels for Bokeh."""
LEFT = 62
"""Pixels for the names of rows; equal in all plots, so that their times are aligned."""
AXIS = {
    "axis_line_color": MUTED, "major_tick_line_color": MUTED, "minor_tick_line_color": None,
    "major_label_text_color": INK, "axis_label_text_color": INK, "major_label_text_font": FONT,
    "axis_label_text_font": FONT, "major_label_text_font_size": SIZE,
    "axis_label_text_font_size": SIZE, "axis_label_text_font_style": "normal", "major_tick_in": 0,
    "major_tick_out": 4, "axis_label_standoff": 4,
}  # fmt: skip

Dimensions = Literal["width", "both"]


# -- a chart -------------------------------------------------------------------------------------


def plot(chart: spec.Chart, x_range: Range1d | None = None) -> Any:
    """A chart as a Bokeh figure. x_range: the axis of x, where several plots share one."""
    dimensions: Dimensions = "width" if chart.rows else "both"
    p = _figure(chart, x_range or _data_range(chart.x_range))
    kinds = (BoxZoomTool, ZoomInTool, ZoomOutTool)
    p.add_tools(*(kind(dimensions=dimensions) for kind in kinds), ResetTool())
    drag = PanTool(dimensions=dimensions)
    wheel = WheelZoomTool(dimensions=dimensions, modifiers="ctrl")
    p.add_tools(drag, wheel)
    p.toolbar_location = "above"
    p.toolbar.active_drag, p.toolbar.active_scroll = drag, wheel
    items: list[LegendItem] = []
    hovers = defaultdict(list)
    for mark in chart.marks:
        renderers, target = _render(p, mark, chart)
        if isinstance(mark, (spec.Curve, spec.Dots, spec.Staircase)):
            items.append(LegendItem(label=value(mark.name), renderers=renderers))
        if facts := getattr(mark, "facts", ()):
            hovers[facts, getattr(mark, "below", False)].append(target)
    for (facts, below), targets in hovers.items():
        side: Any = "horizontal" if not chart.rows else "below" if below else "above"
        seconds = f"{{0.{'0' * chart.digits}}}" if chart.digits else "{0}"
        tips = [(name, text.replace("{t}", seconds)) for name, text in facts]
        hover = HoverTool(renderers=targets, tooltips=tips, limit=3, visible=False)
        hover.update(point_policy="follow_mouse", attachment=side)
        p.add_tools(hover)
    if items and chart.legend:  # a click on a name hides its marks; the page sets the columns
        legend = Legend(
            items=items, name="legend", orientation="horizontal", location="top_left", ncols=5,
            click_policy="hide", margin=2, spacing=8, label_standoff=4, glyph_width=18,
            glyph_height=14, label_height=14, label_text_font=FONT, label_text_font_size=SIZE,
            label_text_color=INK, background_fill_color=None, border_line_color=None,
            inactive_fill_color=LINE, inactive_fill_alpha=0.5,
        )  # fmt: skip
        p.add_layout(legend, "below")
    return p


def overview(whole: spec.Chart, x_range: Range1d) -> Any:
    """A low plot of a whole run, with a box over `x_range` that can be dragged."""
    p = _figure(whole, _data_range(whole.x_range))
    tool = RangeTool(x_range=x_range, start_gesture="pan")
    look = {"fill_color": INK, "fill_alpha": 0.12, "line_color": INK, "line_alpha": 0.9}
    tool.overlay.update(line_dash="solid", **look)
    p.add_tools(tool)
    p.grid.grid_line_color = p.xaxis.axis_label = None
    for mark in whole.marks:
        if isinstance(mark, spec.Image):
            _render(p, mark, whole)
    return p


def _figure(chart: spec.Chart, x_range: Any) -> Any:
    p = figure(
        height=chart.pixels, sizing_mode="stretch_width", tools=[], x_axis_label=chart.x or None,
        y_axis_label=chart.y or None, toolbar_location=None, min_border=2,
        background_fill_color=None, border_fill_color=None, outline_line_color=None,
        x_range=x_range, y_range=_data_range(chart.y_range),
    )  # fmt: skip
    if chart.rows:
        p.min_border_left = LEFT
    p.toolbar.logo = None
    p.toolbar.autohide = True
    for axis in p.axis:
        axis.update(**AXIS)
    for grid in p.grid:
        grid.update(grid_line_color=LINE, grid_line_alpha=0.6)
    if chart.rows:
        p.ygrid.grid_line_color = None
        rows: Any = {int(row): name for row, name in chart.rows.items()}
        p.yaxis.ticker = FixedTicker(ticks=sorted(rows))
        p.yaxis.major_label_overrides = rows
        p.yaxis.major_tick_line_color = p.yaxis.axis_line_color = None
    return p


def _data_range(ends: tuple[float | None, float | None]) -> Any:
    """An axis between two ends; the data decides an end that is None."""
    start, end = ends
    if start is not None and end is not None:
        return Range1d(start=start, end=end)
    return DataRange1d() if start is None else DataRange1d(start=start)


def _render(p: Any, mark: Any, chart: spec.Chart) -> tuple[list[Any], Any]:
    """The renderers of a mark, and the one to point at."""
    match mark:
        case spec.Curve():
            return _render_curve(p, mark)
        case spec.Dots():
            return _render_dots(p, mark)
        case spec.Bars():
            return _render_bars(p, mark, chart)
        case spec.Events():
            return _render_events(p, mark, chart)
        case spec.Rule():
            return _render_rule(p, mark)
        case spec.Image():
            left, right, bottom, top = mark.extent
            rgba = np.round(255 * mark.rgba).astype(np.uint8).view(np.uint32)[:, :, 0]
            drawn = p.image_rgba(image=[rgba], x=left, y=top, dw=right - left, dh=bottom - top)
        case _:
            drawn = p.step(x=mark.x.tolist(), y=mark.y.tolist(), mode="after", line_color=MUTED)
    return [drawn], drawn


def _render_curve(p: Any, mark: spec.Curve) -> tuple[list[Any], Any]:
    style, known = PAGE.look(mark.look), np.isfinite(mark.y)
    columns = {"x": mark.x, "y": mark.y, "least": mark.least, "most": mark.most}
    data: dict[str, Any] = {
        key: [float(f"{v:.6g}") for v in values[known].tolist()]
        for key, values in columns.items()
        if values is not None
    }
    source = ColumnDataSource(data | {"name": [mark.name] * int(known.sum())})
    color, dash = style["color"], style["linestyle"]
    line = p.line(
        x="x", y="y", line_width=1.8, color=color, source=source,
        line_dash="solid" if dash == "-" else DASHES[dash[1]], visible=mark.at_first,
    )  # fmt: skip
    if mark.least is None:
        return [line], line
    looks: Any = {
        "fill_color": color, "fill_alpha": 0.1, "source": source, "visible": mark.at_first,
    }  # fmt: skip
    if mark.along == "x":
        band = p.harea(x1="least", x2="most", y="y", **looks)
    else:
        band = p.varea(y1="least", y2="most", x="x", **looks)
    return [line, band], line


def _render_dots(p: Any, mark: spec.Dots) -> tuple[list[Any], Any]:
    style = PAGE.look(mark.look)
    color, marker = style["color"], MARKERS[style["marker"]]
    data: dict[str, Any] = {"x": [e.value for e in mark.x], "y": [e.value for e in mark.y]}
    for names, estimates in ((("left", "right"), mark.x), (("low", "high"), mark.y)):
        ends = [np.nan_to_num((e.low, e.high), nan=e.value).tolist() for e in estimates]
        data |= dict(zip(names, map(list, zip(*ends, strict=True)), strict=True))
    source = ColumnDataSource(data | dict(mark.columns) | {"name": [mark.name] * len(mark.x)})
    across = p.segment(x0="left", x1="right", y0="y", y1="y", color=color, source=source)
    along = p.segment(x0="x", x1="x", y0="low", y1="high", color=color, source=source)
    dots = p.scatter(
        x="x", y="y", marker=marker, size=11, line_color=color,
        fill_color=color if mark.filled else None, source=source,
    )  # fmt: skip
    return [dots, across, along], dots


def _render_bars(p: Any, mark: spec.Bars, chart: spec.Chart) -> tuple[list[Any], Any]:
    paint = PAGE.paints[mark.role]
    source = ColumnDataSource({
        "left": np.round(mark.left, chart.digits).tolist(),
        "right": np.round(mark.right, chart.digits).tolist(),
        "y": mark.row.tolist(), **mark.columns,
    })  # fmt: skip
    bars = {"y": "y", "left": "left", "right": "right", "source": source}
    fill = {"fill_color": paint.face, "fill_alpha": paint.alpha, "line_color": paint.edge}
    drawn = p.hbar(height=mark.height, **bars, **fill)
    if not mark.reach:
        return [drawn], drawn
    return [drawn], p.hbar(height=mark.reach, fill_alpha=0.0, line_color=None, **bars)


def _render_events(p: Any, mark: spec.Events, chart: spec.Chart) -> tuple[list[Any], Any]:
    x = np.round(mark.x, chart.digits).tolist()
    source = ColumnDataSource({"time": x, **mark.columns})
    at: dict[str, Any] = {"x": "time", "y": mark.row, "source": source}
    if mark.to is None:
        look = {"line_color": MUTED, "fill_color": MUTED}
        ticks = p.scatter(marker="dash", angle=math.pi / 2, size=10, **at, **look)
        return [ticks], ticks
    line = {"line_color": INK, "line_alpha": 0.35, "line_width": 1.5}
    p.segment(x0="time", x1="time", y0=mark.row, y1=mark.to, source=source, **line)
    drawn = p.scatter(marker="inverted_triangle", size=9, fill_color=INK, line_color=INK, **at)
    return [drawn], drawn


def _render_rule(p: Any, mark: spec.Rule) -> tuple[list[Any], Any]:
    upright = mark.axis == "x"
    dash: Any = [1, 3] if mark.dotted else "solid"
    across: Any = "height" if upright else "width"
    line = Span(location=mark.at, dimension=across, line_color=MUTED, line_dash=dash)
    p.add_layout(line)
    if mark.word and not upright:
        word = Label(
            x=4, y=mark.at, x_units="screen", text=mark.word, text_color=MUTED,
            text_font_size="10px", y_offset=2,
        )  # fmt: skip
        p.add_layout(word)
    return [line], None


# -- in a page -----------------------------------------------------------------------------------


class Packed(NamedTuple):
    """A plot as compressed text, and its least height in pixels."""

    text: str
    height: int


def page_data(plots: Mapping[str, Packed]) -> dict[str, Any]:
    """The values of the template `plots.html`."""
    theme = {stand_in: name[4:-1] for stand_in, name in THEME.items()}
    return {"plots": plots, "library": library() if plots else "", "theme": theme}


@functools.cache
def library() -> str:
    """The core of BokehJS, compressed."""
    from bokeh.resources import INLINE

    return _compress(INLINE.clone(components=["bokeh"]).js_raw[0])


def pack(plot: Any) -> Packed:
    """A plot that fills its place, for `Bokeh.embed.embed_item`: JSON, gzipped, in base64.

    Equal plots give equal text: the ids that Bokeh counts up are replaced.
    """
    from bokeh.embed import json_item

    parts = getattr(plot, "children", [plot])
    height = sum(part.height for part in parts)
    for model in (plot, parts[0]):
        model.sizing_mode = "stretch_both"
    text = json.dumps(_renumber(json_item(plot), {}), separators=(",", ":"))
    return Packed(_compress(text), height)


def _compress(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _renumber(item: Any, ids: dict[str, str]) -> Any:
    """JSON with its ids numbered in order of appearance.

    >>> _renumber({"root_id": "p1007", "doc": [{"id": "p1042"}, {"id": "p1007"}]}, {})
    {'root_id': 'p0', 'doc': [{'id': 'p1'}, {'id': 'p0'}]}
    """
    if isinstance(item, dict):
        return {
            key: ids.setdefault(part, f"p{len(ids)}")
            if key in ("id", "root_id") and isinstance(part, str)
            else _renumber(part, ids)
            for key, part in item.items()
        }
    return [_renumber(part, ids) for part in item] if isinstance(item, list) else item
