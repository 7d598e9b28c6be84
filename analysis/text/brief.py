"""The short answer of a command: what a reader needs to act, in about twelve lines."""

from __future__ import annotations

from dataclasses import dataclass

from simstrag.analysis.tables.table import Table

MOST_CAUTIONS = 2
"""Cautions of a short answer; the others stand in the long one, in JSON and on the page."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What to do, why, and what would change it, for a reader who knows none of our terms.

    action: what to do, with its gain and interval, in one or two sentences.
    facts: further sentences of one line each, such as what contention cost.
    table: the alternatives, at most five columns; None without any.
    turning: what would change the action; empty where nothing that was tried does.
    cautions: what makes the answer less sure, the most important first.
    """

    action: str
    facts: tuple[str, ...] = ()
    table: Table | None = None
    turning: str = ""
    cautions: tuple[str, ...] = ()
