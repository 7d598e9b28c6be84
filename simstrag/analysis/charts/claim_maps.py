"""The map of a claim: its measure over one or two constants, and where it reaches the number."""

from __future__ import annotations

import textwrap

from simstrag.analysis.charts.chart import ABSENT, INK, LETTER, SERIES, UNCLEAR, Paint
from simstrag.analysis.charts.matplotlib_renderer import MapCell, Picture, boxes, canvas, cells, svg
from simstrag.analysis.text.claim_text import value_text
from simstrag.claims.claim import Claim
from simstrag.claims.trial import Trial

CELL, HEIGHT = 0.72, 0.36
"""Width and height of a point, in inches."""
KINDS = {True: "holds", None: "undecided", False: "does not hold"}
"""Legend of each value of `Reached.holds`."""
PAINTS = {"holds": Paint(SERIES[2], alpha=0.6), "undecided": UNCLEAR, "does not hold": ABSENT}
HERE = Paint(None, INK)


def draw_map(claim: Claim, trial: Trial) -> Picture:
    """A cell for each point with its value; the nearest setting has a frame."""
    x, y = trial.axes[0], trial.axes[1] if len(trial.axes) > 1 else None
    columns, rows = len(x.values), len(y.values) if y else 1
    aside = textwrap.wrap(y.name, max(12, int(rows * HEIGHT / LETTER))) if y else []
    beside = (LETTER * max(map(len, y.labels)) if y else 0.0) + 0.15 * len(aside)
    width = max(columns * CELL + beside + 0.3, LETTER * len(x.name) + 0.3, 4.4)
    with canvas(width, rows * HEIGHT + 0.85) as figure:
        ax = figure.add_subplot()
        found = [
            MapCell(*_at(p.place), KINDS[p.holds], value_text(claim, p.estimate.value))
            for p in trial.points
        ]
        cells(ax, found, PAINTS, x.labels, y.labels if y else [""])
        column, row = _at(trial.here.place)
        boxes(ax, [column - 0.44], [column + 0.44], [row], 0.8, HERE, "nearest setting")
        ax.set_xlabel(x.name, fontsize=8)
        ax.set_ylabel("\n".join(aside), fontsize=8)
        figure.legend(loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.0)
        title = f"{claim.measure.words}, {claim.name}, by {trial.learner}"
        return svg(figure, f"map-{claim.name}", title)


def _at(place: tuple[int, ...]) -> tuple[int, int]:
    """Column and row of a point."""
    return place[0], place[1] if len(place) > 1 else 0
