"""How figures for a paper look: one column wide, readable in print, told apart without colour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simstrag.analysis.tables.comparison_tables import CONTROL
from simstrag.experiments.compare import BASELINE, Comparison
from simstrag.experiments.paired_statistics import Estimate

__all__ = ["PARTS", "SHADES", "WIDTH", "arms", "axes_of", "legend", "looks", "note", "plain"]

WIDTH = 3.5
"""Inches: one column of most journals and proceedings."""

SETTINGS = {
    "font.size": 8.0, "legend.fontsize": 7.0, "xtick.labelsize": 7.0, "ytick.labelsize": 7.0,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "lines.linewidth": 1.1, "lines.markersize": 3.5,
    "grid.linewidth": 0.4, "grid.color": "0.85", "hatch.linewidth": 0.5,
    "legend.frameon": False, "legend.handlelength": 2.2, "legend.columnspacing": 1.0,
}  # fmt: skip
TICKS: dict[str, Any] = {"labelsize": 7.0, "width": 0.6, "length": 2.5}
"""Said to the axes, since matplotlib makes ticks later, when other settings hold."""
COLUMNS = 3
"""Entries in a row of a legend at most."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("--", "-.", (0, (1, 1)), (0, (6, 2)), (0, (4, 1, 1, 1, 1, 1)))

Look = dict[str, Any]

PARTS: dict[str, tuple[str, Look]] = {
    "full": ("full precision", {"facecolor": "#0072B2", "linewidth": 0}),
    "amp": ("reduced precision", {"facecolor": "#E69F00", "linewidth": 0}),
    "lost": (
        "thrown away",
        {"facecolor": "white", "edgecolor": "#0072B2", "hatch": "xxxxxx", "linewidth": 0.4},
    ),
    "communication": ("communication", {"facecolor": "0.15", "linewidth": 0}),
    "wait": ("waiting", {"facecolor": "white", "edgecolor": "0.4", "linewidth": 0.4}),
}
"""What a rank may do: its words, and a look that differs in lightness too."""
SHADES = ((1.0, 1.25, "0.93"), (1.25, 1.75, "0.84"), (1.75, math.inf, "0.72"))
"""Slowdowns above, up to, and the grey they are shown in."""


def looks(comparison: Comparison) -> dict[str, Look]:
    """Colour, dashes and marker of each policy, as keywords of `Axes.plot`; bsp is black.

    >>> from simstrag import Scenario, compare
    >>> scenario = Scenario(workers=2, samples=2560, step={"compute": 0.1})
    >>> looks(compare(scenario, ["asgd"], jobs=1))["asgd"]
    {'color': '#0072B2', 'linestyle': '--', 'marker': 's'}
    """
    others = [name for name in comparison.policies if name != BASELINE]
    styles: dict[str, Look] = {
        BASELINE: {"color": "black", "linestyle": "-", "marker": "o"},
        CONTROL: {"color": "0.5", "linestyle": (0, (1, 1)), "marker": "None"},
    }
    for k, name in enumerate(others):
        found = (values[k % len(values)] for values in (COLORS, DASHES, MARKERS))
        styles[name] = dict(zip(("color", "linestyle", "marker"), found, strict=True))
    return styles


@contextmanager
def axes_of(ax: Axes | None, height: float, entries: int = 0) -> Iterator[Axes]:
    """The caller's axes as they are, or new ones of a figure one column wide.

    height: inches, to which a legend of so many entries is added.  All that has a label by the end
    of the `with` is in the legend.
    """
    if ax is not None:
        yield ax
        legend(ax)
        return
    import matplotlib.pyplot as plt

    rows = math.ceil(entries / COLUMNS)
    size = WIDTH, height + 0.15 * rows
    figure = plt.figure(figsize=size, layout="constrained")  # a backend that starts sets more
    with plt.rc_context(SETTINGS):  # type: ignore[arg-type]
        own = figure.add_subplot()
        own.tick_params(**TICKS)
        yield own
        legend(own)


def legend(ax: Axes, handles: Sequence[Any] = ()) -> None:
    """A legend above a figure that holds these axes alone, else within the axes; one at most."""
    figure = cast(Figure, ax.figure)
    handles = handles or ax.get_legend_handles_labels()[0]
    if not handles or figure.legends or ax.get_legend() is not None:
        return
    if len(figure.axes) == 1 and figure.get_layout_engine() is not None:
        for columns in range(COLUMNS, 0, -1):
            drawn = figure.legend(handles=handles, loc="outside upper center", ncols=columns)
            if drawn.get_window_extent().width <= figure.bbox.width or columns == 1:
                return
            drawn.remove()
    ax.legend(handles=handles)


def note(ax: Axes, text: str, at: tuple[float, float], of: str, ha: str = "left") -> None:
    """A small word at a place. of: `x` or `y`, the coordinate that is data; the other is a share.

    >>> from matplotlib.figure import Figure
    >>> note(Figure().add_subplot(), "bsp", (1.0, 1.0), of="x")
    """
    coordinates = ("data", "axes fraction") if of == "x" else ("axes fraction", "data")
    ax.annotate(
        text, at, xycoords=coordinates, ha=ha, xytext=(2 if ha == "left" else -2, 2),
        textcoords="offset points", color="0.3", fontsize="small",
    )  # fmt: skip


def arms(estimates: Sequence[Estimate]) -> npt.NDArray[np.float64]:
    """Lengths of error bars, shape (2, n); 0 where there is no interval.

    >>> arms([Estimate(3.0, 2.0, 5.0)]).tolist()
    [[1.0], [2.0]]
    """
    ends = np.array([[e.value - e.low, e.high - e.value] for e in estimates]).reshape(-1, 2).T
    return np.asarray(np.nan_to_num(np.clip(ends, 0.0, None)))


def plain(text: str) -> str:
    """A name as it is: a dollar sign in it is no formula.

    >>> print(plain("mine:Costs:in=$"))
    mine:Costs:in=\\$
    """
    return text.replace("$", r"\$")
