"""Bokeh plots in the look of a report's pictures, with the tools to move, zoom and read values.

Text and lines have the stand-ins of `simstrag.analysis.charts.drawing` for colours, which a page
replaces
by its own, light or dark.  The wheel zooms with Ctrl held, so that a page scrolls over a plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bokeh.core.properties import value
from bokeh.models import (
    BoxZoomTool,
    HoverTool,
    PanTool,
    Range1d,
    RangeTool,
    ResetTool,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)
from bokeh.models.annotations import Legend, LegendItem
from bokeh.plotting import figure

from simstrag.analysis.charts.drawing import INK, LINE, MUTED

__all__ = ["SHARED", "dash_of", "labelled", "overview", "plot", "told"]

SHARED = "time"
"""The name of an axis of time that all plots of a page have in common."""
FONT, SIZE = "system-ui, sans-serif", "11px"
DASHES = {(5, 2): [6, 3], (1.5, 1.5): [2, 3], (1, 2): [1, 3]}
"""Dashes of matplotlib, in points, as those of Bokeh, in pixels."""

AXIS = {
    "axis_line_color": MUTED, "major_tick_line_color": MUTED, "minor_tick_line_color": None,
    "major_label_text_color": INK, "axis_label_text_color": INK, "major_label_text_font": FONT,
    "axis_label_text_font": FONT, "major_label_text_font_size": SIZE,
    "axis_label_text_font_size": SIZE, "axis_label_text_font_style": "normal", "major_tick_in": 0,
    "major_tick_out": 4, "axis_label_standoff": 4,
}  # fmt: skip

Dimensions = Literal["width", "both"]


def plot(
    axes: tuple[str, str], height: int, dimensions: Dimensions, tools: bool = True, **given: Any
) -> Any:
    """A plot without anything on it. axes: labels of x and y.  given: to Bokeh's `figure`."""
    own = [
        BoxZoomTool(dimensions=dimensions), ZoomInTool(dimensions=dimensions),
        ZoomOutTool(dimensions=dimensions), ResetTool(),
    ] if tools else []  # fmt: skip
    made = figure(
        height=height, sizing_mode="stretch_width", tools=own, x_axis_label=axes[0] or None,
        y_axis_label=axes[1] or None, toolbar_location="above" if tools else None, min_border=2,
        background_fill_color=None, border_fill_color=None, outline_line_color=None, **given,
    )  # fmt: skip
    if tools:
        drag = PanTool(dimensions=dimensions)
        wheel = WheelZoomTool(dimensions=dimensions, modifiers="ctrl")
        made.add_tools(drag, wheel)
        made.toolbar.active_drag, made.toolbar.active_scroll = drag, wheel
    made.toolbar.logo = None
    made.toolbar.autohide = True
    for axis in made.axis:
        axis.update(**AXIS)
    for grid in made.grid:
        grid.update(grid_line_color=LINE, grid_line_alpha=0.6)
    return made


def told(
    made: Any, renderers: Sequence[Any], *facts: tuple[str, str], side: str = "horizontal"
) -> None:
    """Show facts, each a name and a template, beside the pointer over some of a plot."""
    tool = HoverTool(renderers=list(renderers), tooltips=list(facts), limit=3, visible=False)
    tool.update(point_policy="follow_mouse", attachment=side)
    made.add_tools(tool)


def labelled(made: Any, items: Sequence[tuple[str, list[Any]]]) -> None:
    """A legend below, of which a click hides and shows what belongs to a name.

    A page sets the number of its columns by its own width.
    """
    legend = Legend(
        items=[LegendItem(label=value(name), renderers=parts) for name, parts in items],
        name="legend", orientation="horizontal", location="top_left", ncols=5,
        click_policy="hide", margin=2, spacing=8, label_standoff=4, glyph_width=18,
        glyph_height=14, label_height=14, label_text_font=FONT, label_text_font_size=SIZE,
        label_text_color=INK, background_fill_color=None,
        border_line_color=None, inactive_fill_color=LINE, inactive_fill_alpha=0.5,
    )  # fmt: skip
    made.add_layout(legend, "below")


def dash_of(style: Any) -> Any:
    """The dashes of a matplotlib style as Bokeh draws them.

    >>> dash_of("-"), dash_of((0, (5, 2)))
    ('solid', [6, 3])
    """
    return "solid" if style == "-" else DASHES[style[1]]


def overview(shown: Range1d, **given: Any) -> Any:
    """A low plot of a whole run, with a box for what a linked plot shows, which can be dragged."""
    made = plot(("", ""), tools=False, dimensions="width", **given)
    tool = RangeTool(x_range=shown, start_gesture="pan")
    tool.overlay.update(
        fill_color=INK, fill_alpha=0.12, line_color=INK, line_alpha=0.9, line_dash="solid"
    )
    made.add_tools(tool)
    made.grid.grid_line_color = None
    return made
