"""A profile as one figure: a panel for each thing that it knows, and none for what it does not.

Points are measurements with their 95 % intervals, hollow where a fit had not seen them; lines are
fits, as far as they were measured.  The figure is on white, for a page or a paper.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from simstrag.analysis.charts.profile_panels import PANELS
from simstrag.errors import InputError
from simstrag.profile.profile import Profile

__all__ = ["draw", "save"]

COLUMNS = 2
WIDE, HIGH = 5.0, 3.3
"""Inches of one panel."""
FRAME, LINE = 0.9, 0.2
"""Inches of a panel of names without any, and of one name."""
PIXELS = 1200
"""Width of a picture that is made of pixels."""

SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"], "font.size": 8.5, "axes.titlesize": 9.5,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.fontsize": 7.5,
    "text.parse_math": False, "axes.facecolor": "white", "figure.facecolor": "white",
    "axes.edgecolor": "0.4", "axes.linewidth": 0.7, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True, "grid.color": "0.9",
    "grid.linewidth": 0.6, "lines.linewidth": 1.2, "lines.markersize": 4.5,
    "legend.frameon": False, "legend.handlelength": 2.0, "svg.fonttype": "none",
    "svg.hashsalt": "simstrag",
}  # fmt: skip


def draw(profile: Profile) -> Figure:
    """All panels that the profile has data for. Raises `InputError` where it has for none.

    >>> from simstrag.profile.profile import Profile
    >>> median = {"value": 0.02, "kind": "measured", "low": 0.019, "high": 0.021}
    >>> profile = Profile.model_validate({
    ...     "name": "a card", "date": "", "command": "", "device": {}, "software": {},
    ...     "cells": [{"precision": "fp32", "batch": 8, "seconds": median, "mean": median}],
    ... })
    >>> [panel.get_title(loc="left") for panel in draw(profile).axes]
    ['Step against batch']
    """
    panels = [panel for panel in PANELS if panel.has(profile)]
    if not panels:
        raise InputError(f"the profile {profile.name} has nothing to draw; see its tables")
    shared = [panel for panel in panels if not panel.lines(profile)]
    alone = panels[len(shared) :]
    columns = COLUMNS if alone else min(COLUMNS, len(panels))
    heights = [HIGH] * math.ceil(len(shared) / columns)
    heights += [FRAME + LINE * panel.lines(profile) for panel in alone]
    places = [divmod(k, columns) for k in range(len(shared))]
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDE * columns, sum(heights) + 0.4), layout="constrained")
        derived = " (derived)" if profile.origin == "derived" else ""
        figure.suptitle(f"{profile.name}, {profile.date}{derived}", x=0.01, ha="left", fontsize=10)
        grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
        cells = [grid[place] for place in places]
        cells += [grid[k - len(alone), :] for k in range(len(alone))]
        for panel, cell in zip(panels, cells, strict=True):
            axes = figure.add_subplot(cell)
            axes.set_title(panel.title, loc="left")
            panel.draw(axes, profile)
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
    return figure


def save(figure: Figure, path: Path, suffix: str) -> None:
    """Write it as PNG, 1200 pixels wide, or as SVG; the same figure is the same bytes.

    suffix: `.png` or `.svg`, whatever the name of the file ends in.
    """
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        if suffix == ".svg":
            figure.savefig(path, format="svg", metadata={"Date": None})
        else:
            figure.savefig(path, format="png", dpi=PIXELS / figure.get_figwidth())
