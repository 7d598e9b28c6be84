"""A snapshot on a terminal: one frame that fits it, drawn over the last one."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

from rich.text import Text

from simstrag.analysis.charts.chart import CONTENTION
from simstrag.analysis.monitor.snapshot import SLOW, Snapshot, WatchedRank
from simstrag.analysis.monitor.words import (
    advice_age,
    factor,
    headline,
    help_line,
    lost,
    status,
    waited,
)
from simstrag.analysis.text.number_format import seconds
from simstrag.documents.printable import printable

SHADES = ((2.0, "█"), (1.5, "▓"), (1.2, "▒"), (SLOW, "░"))
"""The least ratio of each shade; what is below all is `NORMAL`."""
NORMAL = "·"
LEAST_ROWS, LABEL, NUMBERS = 3, 9, 30
"""Least ranks that are shown, and the characters of labels and of numbers beside the picture."""
WARNINGS, AWAITED = 3, 2
"""Most warnings, and most ranks that others waited for, that are shown."""
LOW = 30
"""Lines of a terminal up to which a warning has one."""


def frame(found: Snapshot, width: int, height: int) -> Text:
    """The lines of a terminal of this size; the last one stays free for the cursor."""
    head = _head(found, width)
    foot = _foot(found, width, 2 if height > LOW else 1)
    room = max(LEAST_ROWS, height - 1 - len(head) - len(foot) - 3)
    body = _picture(found, width, room) if found.steps else []
    lines = [*head, Text(), *body, *([Text()] if body else []), *foot][: max(1, height - 1)]
    for line in lines:
        line.truncate(width)
    return Text("\n").join(lines)


def _head(found: Snapshot, width: int) -> list[Text]:
    """The first lines: the slow rank and its remedy."""
    state = status(found)
    room = max(0, width - len(state) - 2)
    source = printable(found.source)
    source = source if len(source) <= room else f"…{source[len(source) - room + 1 :]}"[:room]
    first = Text(f"{source:<{room}}  {state}", "dim")
    style = f"bold {CONTENTION}" if found.wrong else "bold"
    said = [Text(line, style) for line in _wrap(headline(found), width, 2)]
    helps = _labelled("help", [text] if (text := help_line(found)) else [], width, 2)
    return [first, *said, *helps]


def _foot(found: Snapshot, width: int, most: int) -> list[Text]:
    """What was lost, who was waited for, warnings, and how old the advice is.

    most: lines of a warning.
    """
    lines = _labelled("lost", [lost(found)], width, 2) if found.steps else []
    waits = [waited(found, each) for each in found.awaited[:AWAITED]]
    lines += _labelled("waiting", waits, width, 1)
    lines += _labelled("warning", [w.text for w in found.warnings][-WARNINGS:], width, most)
    age = advice_age(found)
    return [*lines, *_labelled("advice", [age] if age else [], width, 2)]


def _labelled(label: str, texts: Sequence[str], width: int, most: int) -> list[Text]:
    lines = []
    for k, text in enumerate(texts):
        for j, line in enumerate(_wrap(text, width - LABEL, most)):
            lines.append(Text(f"{label if not k and not j else '':<{LABEL}}", "dim").append(line))
            lines[-1].stylize("not dim", LABEL)
    return lines


def _wrap(text: str, width: int, most: int) -> list[str]:
    lines = textwrap.wrap(printable(text), max(width, 20))
    if len(lines) > most:
        lines = [
            *lines[: most - 1],
            textwrap.shorten(" ".join(lines[most - 1 :]), width, placeholder=" …"),
        ]
    return lines


def _picture(found: Snapshot, width: int, room: int) -> list[Text]:
    """Ranks and their latest steps: the darker, the slower than their peers."""
    columns = max(8, width - LABEL - NUMBERS)
    ratios, begins = found.picture(columns)
    shown, rest = choose(found.ranks, room)
    span = f"steps {begins[0]} to {found.last}" if len(begins) else ""
    head = Text(f"{'rank':<{LABEL}}{span:<{columns}}{'computing':>11}{'× peers':>9}{'waits':>10}")  # noqa: RUF001 - times
    head.stylize("dim")
    lines = [head]
    places = {each.rank: k for k, each in enumerate(found.ranks)}
    for each in shown:
        line = Text(f"{each.rank:>4}{'':<{LABEL - 4}}")
        for shade, same in itertools.groupby(map(_shade, ratios[places[each.rank]].tolist())):
            line.append("".join(same), "dim" if shade == NORMAL else CONTENTION)
        line.append(" " * (columns - len(begins)))
        style = f"bold {CONTENTION}" if each.rank in found.wrong else ""
        if each.silent:
            line.append(f"{f'silent {each.silent:.0f} s':>{NUMBERS}}", style)
        else:
            line.append(f"{seconds(each.computing):>11}{factor(each.factor):>9}", style)
            line.append(f"{seconds(each.waiting):>10}")
        lines.append(line)
    if rest:
        low, high = min(each.factor for each in rest), max(each.factor for each in rest)
        lines.append(Text(
            f"{'':<{LABEL}}and {len(rest)} ranks more, {factor(low)} to {factor(high)} times as "
            "long as their peers", "dim",
        ))  # fmt: skip
    return lines


def _shade(ratio: float) -> str:
    return next((mark for least, mark in SHADES if ratio >= least), NORMAL)


def choose(ranks: Sequence[WatchedRank], room: int) -> tuple[list[WatchedRank], list[WatchedRank]]:
    """The ranks that are shown, in order, and the rest: of many, the silent and the slowest."""
    if len(ranks) <= room:
        return list(ranks), []
    worst = sorted(ranks, key=lambda each: (-each.silent, -each.factor, each.rank))
    return sorted(worst[: room - 1]), worst[room - 1 :]
