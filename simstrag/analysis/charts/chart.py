"""Charts as data: a `Chart` holds axes and marks, and needs no drawing library.

`matplotlib_renderer` draws a chart for a page or a paper; `bokeh_renderer` draws the same chart to
zoom and to point at.  A `Theme` turns the roles of marks into colours.

Vega-Lite would be this grammar with one renderer.  It has no hatches, and a box over a whole run
cannot drive an axis that zooms by itself.  It draws every bar at each zoom: of 165,000 bars, the
largest timeline, a turn of the wheel took 2.7 to 2.9 s of a browser's processor.  Bokeh, which
draws some of the bars until the wheel rests, took 0.3 to 0.5 s.  To open it took 7.2 to 7.6 s,
with Bokeh 1.2 to 1.3 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy.typing as npt

from simstrag.arrays import Floats
from simstrag.experiments.paired_statistics import Estimate

TooltipLines = tuple[tuple[str, str], ...]
"""Lines of a tooltip: a name, and a template with columns such as `@rank`, or `@left{t}` for
seconds with the decimals of the chart."""

INK, MUTED, LINE = "#101112", "#707172", "#c0c1c2"
"""Stand-ins that a page replaces by its own colours, light or dark."""
FULL, AMP, COMMUNICATION = "#3d74b8", "#e38b1f", "#8d5bb0"
WAIT, BLOCKED = "#9aa3ad", "#66727f"
CONTENTION, NET = "#d8433b", "#8d5bb0"
SERIES = ("#3d74b8", "#d9711c", "#2f9468", "#b8539a", "#8c6bc4", "#c2474a", "#3aa0b5", "#8a7a2c")

WIDTH = 9.0
"""Inches of a chart on a page."""
BSP, CONTROL_LOOK = 0, -1
"""Looks of bsp and of bsp without contention; other policies have 1, 2, ..."""


# -- marks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A line of a policy; with `least` and `most`, a band around it.

    along: the axis of `least` and `most`, "x" or "y".
    at_first: whether a page shows it before the reader asks for it.
    """

    name: str
    look: int
    x: Floats
    y: Floats
    least: Floats | None = None
    most: Floats | None = None
    facts: TooltipLines = ()
    at_first: bool = True
    along: str = "x"


@dataclass(frozen=True, slots=True, eq=False)
class Dots:
    """Markers with the intervals of their coordinates.

    filled: whether the markers are filled or hollow.
    joined: whether a line joins them.
    """

    name: str
    look: int
    x: Sequence[Estimate]
    y: Sequence[Estimate]
    filled: bool = True
    joined: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)
    facts: TooltipLines = ()


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Horizontal bars of one role.

    name: the entry in a legend.
    role: a key of `Theme.paints`.
    row: the middle of each bar.
    reach: least height of the hover area; 0 for the height of the bar.
    below: whether the tooltip is below the pointer.
    """

    name: str
    role: str
    left: Floats
    right: Floats
    row: npt.NDArray[Any]
    height: float
    columns: Mapping[str, Any] = field(default_factory=dict)
    facts: TooltipLines = ()
    reach: float = 0.0
    below: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Moments in one row: ticks, or triangles on lines that reach down to `to`."""

    x: Floats
    row: float
    to: float | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    facts: TooltipLines = ()


class Image(NamedTuple):
    """RGBA pixels of 0..1, rows from the top, and their extent: left, right, bottom, top."""

    rgba: Floats
    extent: tuple[float, float, float, float]


class Rule(NamedTuple):
    """A straight line across a chart at a value of x or y, with a word beside it."""

    at: float
    axis: Literal["x", "y"]
    word: str = ""
    dotted: bool = False
    left: bool = False


class Staircase(NamedTuple):
    """The Pareto front through points in order of x."""

    name: str
    x: Floats
    y: Floats


Mark = Curve | Dots | Bars | Events | Image | Rule | Staircase


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """Axes and marks.

    label: the text for a screen reader.
    x, y: labels of the axes, with units.
    rows: names of rows by their y; without them y is a number.
    x_range, y_range: first and last value of an axis; None for an end that the data decides.
    size: inches on a page.
    pixels: height of an interactive plot.
    """

    label: str
    x: str
    y: str
    marks: Sequence[Mark]
    rows: Mapping[float, str] = field(default_factory=dict)
    x_range: tuple[float | None, float | None] = (None, None)
    y_range: tuple[float | None, float | None] = (None, None)
    size: tuple[float, float] = (WIDTH, 3.4)
    pixels: int = 420
    grid: Literal["x", "y", "both", ""] = "both"
    legend: bool = True
    digits: int = 6


def rows_of(names: Sequence[str]) -> dict[str, Any]:
    """The arguments of a chart with one row per name, the first on top; "" leaves a row unnamed."""
    rows = {float(k): name for k, name in enumerate(names) if name}
    return {"rows": rows, "y_range": (len(names) - 0.5, -0.5), "grid": "x"}


def exact(*values: float) -> list[Estimate]:
    """Coordinates without intervals."""
    return [Estimate(value, value, value) for value in values]


def name_ranks(n: int, most: int = 8) -> list[str]:
    """The numbers of n ranks; some are left blank if there are many more than `most`.

    >>> name_ranks(3), name_ranks(4, most=2)
    (['0', '1', '2'], ['0', '', '2', ''])
    """
    every = max(1, n // most)
    return [str(rank) if rank % every == 0 else "" for rank in range(n)]


# -- themes --------------------------------------------------------------------------------------


class Paint(NamedTuple):
    """Fill and edge of a bar; None for no fill."""

    face: str | None
    edge: str | None = None
    alpha: float = 1.0
    hatch: str = ""


class Theme(NamedTuple):
    """Colours and line styles.

    dash_every: number of policies after which the dashes change.
    marked: whether curves have markers.
    hollow: the fill of a hollow marker.
    """

    ink: str
    muted: str
    colors: tuple[str, ...]
    dashes: tuple[Any, ...]
    markers: tuple[str, ...]
    dash_every: int
    control: Mapping[str, Any]
    paints: Mapping[str, Paint]
    marked: bool
    hollow: str

    def look(self, k: int) -> dict[str, Any]:
        """Colour, dashes and marker of look k, as keywords of `Axes.plot`."""
        if k == CONTROL_LOOK:
            return dict(self.control)
        if k == BSP:
            return {"color": self.ink, "linestyle": "-", "marker": "o"}
        color, marker = (v[(k - 1) % len(v)] for v in (self.colors, self.markers))
        dash = self.dashes[(k - 1) // self.dash_every % len(self.dashes)]
        return {"color": color, "linestyle": dash, "marker": marker}

    def area(self, k: int) -> Paint:
        """The colour of look k for an area with text on it; where it recurs, it is hatched."""
        color = self.look(k)["color"]
        hatch = AREA_HATCHES[max(k - 1, 0) // len(self.colors) % len(AREA_HATCHES)]
        alpha = 0.35 if color == self.ink else 0.6
        return Paint(color, self.muted if hatch else None, alpha, hatch)


AREA_HATCHES = ("", "..", "xx")
ALPHAS = (0.14, 0.28, 0.45)
"""Opacity of a mild, a middle and a strong slowdown on a page."""
GREYS = ("0.93", "0.84", "0.72")
LOST = Paint("white", "#0072B2", hatch="xxxxxx")
HELD = Paint("white", "0.4")
UNCLEAR, ABSENT = Paint(LINE, MUTED, 0.5, "/////"), Paint(None, LINE)
"""Cells of a map without a clear result, and without a result."""
LETTER = 0.072
"""Most width in inches of a letter on a map."""

PAGE = Theme(
    INK, MUTED, SERIES, ("-", (0, (5, 2)), (0, (1.5, 1.5))), ("s", "^", "D", "v", "o"), 8,
    {"color": INK, "linestyle": (0, (5, 2)), "marker": "None"},
    {
        "full": Paint(FULL), "amp": Paint(AMP), "lost": Paint(None, FULL),
        "full, lost": Paint(None, FULL), "amp, lost": Paint(None, AMP), "wait": Paint(WAIT),
        "blocked": Paint(BLOCKED), "communication": Paint(COMMUNICATION), "suspect": Paint(INK),
        "range": Paint(FULL, alpha=0.6), "half": Paint(FULL, alpha=0.5), "median": Paint(AMP),
        **{f"slowed {k}": Paint(CONTENTION, alpha=alpha) for k, alpha in enumerate(ALPHAS)},
        **{f"network {k}": Paint(NET, alpha=alpha) for k, alpha in enumerate(ALPHAS)},
    },
    marked=False, hollow="none",
)  # fmt: skip
PAPER = Theme(
    "black", "0.4", ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"),
    ("--", "-.", (0, (1, 1)), (0, (6, 2)), (0, (4, 1, 1, 1, 1, 1))),
    ("s", "^", "D", "v", "P", "X", "*"), 1,
    {"color": "0.5", "linestyle": (0, (1, 1)), "marker": "None"},
    {
        "full": Paint("#0072B2"), "amp": Paint("#E69F00"), "lost": LOST, "full, lost": LOST,
        "amp, lost": LOST, "wait": HELD, "blocked": HELD, "communication": Paint("0.15"),
        **{f"slowed {k}": Paint(grey) for k, grey in enumerate(GREYS)},
        **{f"network {k}": Paint(None, "0.5", hatch="////") for k in range(len(GREYS))},
    },
    marked=True, hollow="white",
)  # fmt: skip
"""The palette of Okabe and Ito; every look and every bar also differs without colour."""
