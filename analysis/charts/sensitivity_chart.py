"""The chart of thresholds: by what factor each constant may be off before another policy leads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simstrag.analysis.charts import matplotlib_renderer
from simstrag.analysis.charts.chart import INK, SERIES, WIDTH
from simstrag.analysis.text.sensitivity_text import WORDS, Row, new_leader

LEADS, LOSES = SERIES[:2]
HEIGHT = 0.3
"""Inches of a bar with the room around it."""
LETTER, LONGEST = 0.0105, 30
"""Share of the axis that a letter of a label takes, and the most letters that a label has."""


def thresholds_picture(rows: Sequence[Row]) -> Markup:
    """A bar per constant: the factors under which the leader stays ahead, and beyond."""
    if not rows:
        return Markup()
    constants, leader = len({r["quantity"] for r in rows}), rows[0]["leader"]
    with matplotlib_renderer.canvas(WIDTH, 0.8 + HEIGHT * constants) as figure:
        draw_thresholds(figure, rows)
        words = f"By what factor each constant may be off before {leader} loses the best mean"
        return matplotlib_renderer.svg(figure, "thresholds", words)


def draw_thresholds(figure: Figure, rows: Sequence[Row]) -> Axes:
    """Draw the bars on a figure."""
    names, ax = list(dict.fromkeys(r["quantity"] for r in rows)), figure.add_subplot()
    for r in rows:
        y, end = names.index(r["quantity"]), r["tried"] / r["value"]
        turn = math.sqrt(r["holds_at"] * r["turns_at"]) / r["value"] if r["rival"] else end
        ax.barh(y, turn - 1, left=1, height=0.5, color=LEADS)
        alpha = 1.0 if r["shown"] else 0.45
        ax.barh(y, end - turn, left=turn, height=0.5, color=LOSES, alpha=alpha)
        ax.annotate(
            _label(r), (end, y), ha=("right", "left")[end > 1], va="center",
            xytext=((-4, 0), (4, 0))[end > 1], textcoords="offset points", fontsize=7,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xlim(*_limits(rows))
    ticks = (1 / 4, 1 / 2, 1, 2, 4)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.axvline(1, color=INK, linewidth=0.8)
    ax.set_yticks(range(len(names)), [WORDS[name] for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.set_xlabel("times the value in force")
    return ax


def _label(r: Row) -> str:
    """The new leader, cut where it is too long for the room beside a bar."""
    text = new_leader(r)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """The ends of the axis, with room for the labels beyond a quarter and four times."""
    shares = [
        max(
            [
                0.03,
                *(LETTER * (len(_label(r)) + 2) for r in rows if (r["tried"] > r["value"]) == up),
            ]
        )
        for up in (False, True)
    ]
    down, up = (4.0 * share / (1 - sum(shares)) for share in shares)
    return 0.25 / 2**down, 4 * 2**up
