"""The map of a claim: its measure over one or two constants, and where it reaches the number."""

from __future__ import annotations

import textwrap

from simstrag.analysis.charts.chart import INK, LINE, MUTED, SERIES, Paint
from simstrag.analysis.charts.matplotlib_renderer import Picture, boxes, canvas, svg
from simstrag.analysis.text.claim_text import value_text
from simstrag.claims.claim import Claim
from simstrag.claims.trial import Trial

CELL, HEIGHT = 0.72, 0.36
"""Width and height of a point, in inches."""
LETTER = 0.072
"""Most width of a letter."""
LOOKS = {
    True: ("holds", Paint(SERIES[2], alpha=0.6)),
    None: ("undecided", Paint(LINE, MUTED, 0.5, "/////")),
    False: ("does not hold", Paint(None, LINE)),
}
"""The legend and the paint of what `Reached.holds` says."""
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
        for holds, (name, paint) in LOOKS.items():
            places = [_at(p.place) for p in trial.points if p.holds is holds]
            if places:
                left, middle = ([place[k] for place in places] for k in (0, 1))
                right = [at + 0.48 for at in left]
                boxes(ax, [at - 0.48 for at in left], right, middle, 0.92, paint, name)
        for point in trial.points:
            column, row = _at(point.place)
            text = value_text(claim, point.estimate.value)
            ax.text(column, row, text, ha="center", va="center", color=INK, fontsize=7.5)
        column, row = _at(trial.here.place)
        boxes(ax, [column - 0.44], [column + 0.44], [row], 0.8, HERE, "nearest setting")
        ax.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, rows - 0.5))
        ax.set_xticks(range(columns), x.labels)
        ax.set_yticks(range(rows), y.labels if y else [""])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_xlabel(x.name, fontsize=8)
        ax.set_ylabel("\n".join(aside), fontsize=8)
        figure.legend(loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.0)
        title = f"{claim.measure.words}, {claim.name}, by {trial.learner}"
        return Picture(svg(figure, f"map-{claim.name}", title), width)


def _at(place: tuple[int, ...]) -> tuple[int, int]:
    """Column and row of a point."""
    return place[0], place[1] if len(place) > 1 else 0
