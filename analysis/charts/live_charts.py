"""Charts of a comparison to zoom and to read values in: progress over time, speed against worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from bokeh.models import ColumnDataSource, DataRange1d, Range1d
from bokeh.models.annotations import Label, Span

from simstrag.analysis.charts import drawing, plots
from simstrag.analysis.pages import sections
from simstrag.analysis.tables.standings import Standings
from simstrag.analysis.text.number_format import estimate
from simstrag.experiments.paired_statistics import Estimate

__all__ = ["curves", "dots", "progress"]

Floats = npt.NDArray[np.float64]

HEIGHT = 420
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle")
"""Those of `simstrag.analysis.charts.pictures`."""
DIGITS = 6
"""Significant digits of a curve's points."""


def progress(s: Standings) -> Any:
    """Progress, or accuracy, over time: mean and range over seeds."""
    axes = "time (s)", sections.progress_axis(s)
    styles = sections.looks(s.comparison)
    return curves(axes, sections.progress_series(s), sections.target_level(s), styles)


def curves(
    axes: tuple[str, str], series: Mapping[str, tuple[Floats, Floats, Floats, Floats]],
    target: float | None, looks: Mapping[str, dict[str, Any]],
) -> Any:  # fmt: skip
    """Progress over time. series: name to (mean time, least, most, level) arrays."""
    end = max(float(np.nanmax(most)) for _, _, most, _ in series.values())
    made = plots.plot(
        axes,
        HEIGHT,
        "both",
        x_range=Range1d(start=0.0, end=1.02 * end),
        y_range=DataRange1d(start=0.0),
    )
    items = []
    for name, (middle, least, most, level) in series.items():
        known = np.isfinite(level)
        columns = {"middle": middle, "least": least, "most": most, "level": level}
        data: dict[str, Any] = {key: _rounded(column[known]) for key, column in columns.items()}
        source = ColumnDataSource(data | {"name": [name] * int(known.sum())})
        color, dash = looks[name]["color"], plots.dash_of(looks[name]["linestyle"])
        line = made.line(
            x="middle", y="level", line_width=1.8, color=color, line_dash=dash, source=source
        )
        band = made.harea(
            x1="least", x2="most", y="level", fill_color=color, fill_alpha=0.1, source=source
        )
        plots.told(
            made, [line], ("policy", "@name"), (axes[1], "@level{0.[000]}"),
            ("time (s), mean over seeds", "@middle{0.[000]}"),
            ("least to most", "@least{0.[000]} to @most{0.[000]}"),
        )  # fmt: skip
        items.append((name, [line, band]))
    if target is not None:
        made.add_layout(_upright(target))
        made.add_layout(
            Label(
                x=4, y=target, x_units="screen", text="target", text_color=drawing.MUTED,
                text_font_size="10px", y_offset=2,
            )
        )  # fmt: skip
    plots.labelled(made, items)
    return made


def dots(
    axes: tuple[str, str], points: Sequence[tuple[str, Estimate, Estimate, bool]],
    looks: Mapping[str, dict[str, Any]],
) -> Any:  # fmt: skip
    """Points (name, x, y, filled) with both intervals; filled ones are joined by a staircase."""
    made = plots.plot(axes, HEIGHT, "both")
    stairs = sorted((x.value, y.value) for _, x, y, filled in points if filled)
    staircase = made.step(
        x=[x for x, _ in stairs], y=[y for _, y in stairs], mode="after",
        line_color=drawing.MUTED,
    )  # fmt: skip
    items = [("Pareto front of means", [staircase])]
    for k, (name, x, y, filled) in enumerate(points):
        color = looks[name]["color"]
        (left, right), (low, high) = _ends(x), _ends(y)
        source = ColumnDataSource(
            {
                "x": [x.value], "y": [y.value], "left": [left], "right": [right], "low": [low],
                "high": [high], "name": [name], "first": [estimate(*x)], "second": [estimate(*y)],
            }
        )  # fmt: skip
        across = made.segment(x0="left", x1="right", y0="y", y1="y", color=color, source=source)
        along = made.segment(x0="x", x1="x", y0="low", y1="high", color=color, source=source)
        dot = made.scatter(
            x="x", y="y", marker=MARKERS[k % len(MARKERS)], size=11, line_color=color,
            fill_color=color if filled else None, source=source,
        )  # fmt: skip
        front = "on it" if filled else "not on it"
        plots.told(
            made, [dot], ("policy", "@name"), (axes[0], "@first"), (axes[1], "@second"),
            ("front of means", front),
        )  # fmt: skip
        items.append((name, [dot, across, along]))
    plots.labelled(made, items)
    return made


def _upright(level: float) -> Span:
    """A dotted line across at a level."""
    return Span(location=level, dimension="width", line_color=drawing.MUTED, line_dash=[1, 3])


def _ends(e: Estimate) -> tuple[float, float]:
    """Of an interval; the value itself where it has none."""
    low, high = np.nan_to_num((e.low, e.high), nan=e.value).tolist()
    return low, high


def _rounded(column: Floats) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in column.tolist()]
