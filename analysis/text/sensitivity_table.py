"""How far each assumed or fitted constant may be off before another policy leads: shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simstrag.analysis.charts import drawing
from simstrag.analysis.tables.standings import Standings
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.number_format import listed
from simstrag.analysis.text.sensitivity_text import C_TAU, WORDS, lost_lead, with_unit
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.uncertain_constants import QUANTITIES, kind_of, value_of

__all__ = ["Thresholds", "drawn", "thresholds"]

Row = Mapping[Any, Any]
"""One row of the thresholds of a comparison."""

LEADS, LOSES = "#3d74b8", "#d9711c"
HEIGHT = 0.3
"""Inches of a bar with the room around it."""
LETTER, LONGEST = 0.0105, 30
"""Share of the axis that a letter of a label takes, and the most letters that a label has."""


class Thresholds(NamedTuple):
    """A paragraph on what was run, and the table and picture of what came out, if any."""

    about: str
    table: Table | None
    picture: Markup


def thresholds(s: Standings) -> Thresholds:
    """What a report shows of the thresholds of a comparison, and what it says where it has none."""
    found = s.comparison.thresholds
    if found is None:
        return Thresholds(
            "Which other assumed or fitted constants would turn the ranking over was not looked "
            "at. The same command with --sensitivity does, by further runs.", None, Markup()
        )  # fmt: skip
    if found.empty:
        return Thresholds(
            "There was nothing to look for: it takes two policies, and a constant that is assumed "
            "or fitted and not 0.", None, Markup()
        )  # fmt: skip
    rows = found.to_dict("records")
    reach = {r["quantity"]: _far([q for q in rows if q["quantity"] == r["quantity"]]) for r in rows}
    rows.sort(key=lambda r: reach[r["quantity"]])
    return Thresholds(_about(s, rows), _table(rows), _picture(rows))


def _far(rows: Sequence[Row]) -> float:
    """By what factor a constant has to be off, in logarithms; c_tau comes first, who stays last."""
    if rows[0]["quantity"] == C_TAU:
        return 0.0
    turned = [r for r in rows if r["rival"]]
    return min((abs(math.log(r["turns_at"] / r["value"])) for r in turned), default=math.inf)


def _about(s: Standings, rows: Sequence[Row]) -> str:
    leader, n = rows[0]["leader"], rows[0]["seeds"]
    seeds = f"the first {n} of {s.seeds} seeds" if n < s.seeds else "the same seeds"
    texts = [
        f"One assumed or fitted constant at a time was made a quarter and four times as large, and "
        f"all {len(s.policies)} policies were run anew under {seeds}, unless a policy cannot feel "
        f"it. Where another policy than {leader} had the best mean then, further runs enclosed the "
        "value at which it takes over. Measured constants were not varied, nor two at once; where "
        f"{leader} is ahead at an end, nothing was run on the way there."
    ]
    texts += _left_out(s.comparison.scenario, {r["quantity"] for r in rows})
    texts += [lost_lead(s)]
    return " ".join(filter(None, texts))


def _left_out(scenario: Scenario, varied: set[str]) -> list[str]:
    """Constants of nobody's measuring that were not multiplied, since they are 0 or a profile's."""
    left = [
        WORDS[name]
        for name in QUANTITIES
        if name not in varied
        and (scenario.step is None or not name.startswith("step.") or value_of(scenario, name))
        and name not in ("step.amp_ratio", C_TAU)
        and kind_of(scenario, name) != "measured"
    ]
    return (
        [f"Also assumed, but 0 or not given and so not multiplied: {listed(left)}."] if left else []
    )


def _table(rows: Sequence[Row]) -> Table:
    shown = tuple(
        (
            WORDS[r["quantity"]],
            str(r["kind"]),
            _taker(r) or "nobody",
            *(
                Number(with_unit(r[column], r["unit"]), r[column])
                for column in ("value", "tried", "holds_at", "turns_at")
            ),
        )
        for r in rows
    )
    headers = (
        "constant", "fitted or assumed", "who takes over", "in force", "tried at",
        "holds at", "turns at",
    )  # fmt: skip
    notes = (
        "The lead changes between the last two, and a dash stands for no change. Within the noise "
        "is a change after which the new lead is not beyond a 95 % interval at the value tried. "
        "The file has seconds, bytes and samples.",
    )
    return Table(headers, shown, 3, (), notes)


def _taker(r: Row) -> str:
    """Who takes over, if anybody."""
    return r["rival"] if r["shown"] or not r["rival"] else f"{r['rival']}, within the noise"


def _picture(rows: Sequence[Row]) -> Markup:
    """A bar per constant: by what factor it may be off with the leader still ahead, and beyond."""
    constants, leader = len({r["quantity"] for r in rows}), rows[0]["leader"]
    with drawing.canvas(9.0, 0.8 + HEIGHT * constants) as figure:
        drawn(figure, rows)
        words = f"By what factor each constant may be off before {leader} loses the best mean"
        return drawing.svg(figure, "thresholds", words)


def drawn(figure: Figure, rows: Sequence[Row]) -> Axes:
    """The bars on a figure."""
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
    ax.axvline(1, color=drawing.INK, linewidth=0.8)
    ax.set_yticks(range(len(names)), [WORDS[name] for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.set_xlabel("times the value in force")
    return ax


def _label(r: Row) -> str:
    """Who takes over, cut where it is too long to stand beside a bar."""
    text = _taker(r)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """The ends of the axis, which leave room for the labels beyond a quarter and four times."""
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
