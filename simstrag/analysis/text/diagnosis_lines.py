"""A diagnosis in labelled lines: the whole, and a short answer of those to act on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from simstrag.analysis.text.brief import LINES, WIDTH, height
from simstrag.analysis.text.diagnosis_text import MOST_NAMED, texts
from simstrag.whatif.diagnosis import Diagnosis

MOST = 25
"""Most lines of the whole."""
LONG = {"caution": 4, "who": MOST_NAMED, "why": 4, "fix": 3, "policy": 4}
"""Most lines of a label in the whole; of any other there are few."""
NEXT = "next"
"""The label of commands."""
INDENT = 9
"""Width of the labels of a short answer."""
ORDER = (
    "hang", "who", "lost", "why", "fix", "policy", "unseen", "caution", "to see", "record", "next",
)  # fmt: skip
"""Labels of the short answer, as they stand."""
IMPORTANCE = (
    "hang", "who", "lost", "fix", "next", "policy", "unseen", "caution", "to see", "policy", "why",
    "lost", "who", "policy", "caution", "record",
)  # fmt: skip
"""A label gives the short answer its next text each time that it stands here, if that fits."""


class DiagnosisLine(NamedTuple):
    """A line of a diagnosis: what it is about, and a sentence."""

    label: str
    text: str


def lines(found: Diagnosis, out: Path | None = None) -> tuple[DiagnosisLine, ...]:
    """All that a diagnosis says, in at most `MOST` lines.

    out: the folder that the diagnosis was written to.
    """
    every = texts(found, out)
    said = _first(every, {label: LONG.get(label, MOST) for label in every}, "in --json")
    return tuple(said if len(said) <= MOST else [*said[: MOST - 2], *said[-2:]])


def headline(found: Diagnosis) -> str:
    """Who was slow and what was lost, in one sentence."""
    every = texts(found, None)
    is_named = found.steps is None or bool(found.steps.culprits)
    labels = ("hang", "who", "lost") if is_named else ("hang", "lost", "who")
    return next(text for label in (*labels, "record") for text in every[label])


def brief(found: Diagnosis, out: Path | None = None) -> tuple[DiagnosisLine, ...]:
    """The lines to act on: at most `LINES` with the path of the report.

    out: the folder that the diagnosis was written to.
    """
    said, taken = texts(found, out), dict.fromkeys(ORDER, 0)
    for label in IMPORTANCE:
        tried = taken | {label: min(taken[label] + 1, len(said[label]))}
        if _height(_first(said, tried)) <= LINES - (out is not None):
            taken = tried
    return tuple(_first(said, taken))


def _first(
    every: Mapping[str, list[str]], taken: Mapping[str, int], rest: str = "with --verbose"
) -> list[DiagnosisLine]:
    """The first texts of each label, with a note of how many there are more, and where."""
    said = []
    for label, count in taken.items():
        shown, more = every[label][:count], len(every[label]) - count
        if shown and more > 0 and label != NEXT:
            shown[-1] += f" ({more} more {rest})"
        said += [DiagnosisLine(label, text) for text in shown]
    return said


def _height(said: list[DiagnosisLine]) -> int:
    """Lines that they take on a terminal; a command has to stand as it is typed."""
    commands = [math.ceil((INDENT + len(text)) / WIDTH) for label, text in said if label == NEXT]
    return sum(commands) + height([text for label, text in said if label != NEXT], INDENT)
