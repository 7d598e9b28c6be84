"""What the panels of a profile's figure have in common: points with intervals, looks, axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from simstrag.profile.quantity import Quantity

__all__ = ["DASHES", "Point", "hollow_note", "logarithmic", "look", "points"]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#8A7A2C")
"""Okabe and Ito's, for the colour-blind, and two more."""
MARKERS = "os^Dv<>P"
DASHES = ("-", "--", "-.", ":")


class Point(NamedTuple):
    """What is drawn as one marker; hollow where it was held out of a fit."""

    x: float
    y: Quantity
    hollow: bool = False


def points(
    ax: Axes, found: Sequence[Point], look: dict[str, Any], label: str | None, scale: float = 1.0
) -> None:
    """Markers with intervals. scale: what values are multiplied by."""
    for hollow in (False, True):
        chosen = [p for p in found if p.hollow is hollow]
        if not chosen:
            continue
        y = np.array([p.y.value for p in chosen]) * scale
        ends = [(p.y.value if end is None else end) for p in chosen for end in (p.y.low, p.y.high)]
        low, high = np.array(ends).reshape(-1, 2).T * scale
        only_hollow = all(p.hollow for p in found)
        ax.errorbar(
            [p.x for p in chosen], y, yerr=np.clip([y - low, high - y], 0.0, None), fmt="none",
            ecolor=look["color"], elinewidth=0.9, capsize=2,
        )  # fmt: skip
        ax.plot(
            [p.x for p in chosen], y, linestyle="none", marker=look["marker"],
            color=look["color"], markerfacecolor="white" if hollow else look["color"],
            label=label if not hollow or only_hollow else None, zorder=3,
        )  # fmt: skip


def look(k: int, marker: int | None = None) -> dict[str, Any]:
    """Colour and marker of the k-th series."""
    return {
        "color": COLORS[k % len(COLORS)],
        "marker": MARKERS[(k if marker is None else marker) % len(MARKERS)],
    }


def hollow_note(ax: Axes, there: bool) -> None:
    """Say in the legend what hollow markers are."""
    if there:
        ax.plot([], [], "o", color="0.4", markerfacecolor="white", label="held out of the fit")


def logarithmic(ax: Axes, label: str) -> None:
    """A logarithmic y with numbers as one reads them, 2 and 5 among them over few decades."""
    ax.set_yscale("log")
    ax.set_ylabel(label)
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
