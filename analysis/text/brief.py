"""The short answer of a command: what a reader needs to act, in about twelve lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace

from simstrag.analysis.tables.table import Table

LINES, WIDTH = 12, 100
"""Most lines of a short answer on a terminal, the path of its report included; their width."""
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

    def __str__(self) -> str:
        """What a terminal shows."""
        lines = [self.action, *self.facts]
        if self.table is not None:
            rows = [self.table.headers, *self.table.rows]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            cells = (zip(row, widths, strict=True) for row in rows)
            lines += ["  ".join(text.ljust(n) for text, n in row).rstrip() for row in cells]
        return "\n".join(filter(None, [*lines, self.turning, *self.shown_cautions]))

    @property
    def shown_cautions(self) -> tuple[str, ...]:
        """The first cautions, as they are printed, and how many more there are.

        A second one is printed if there is room.
        """
        used = height((self.action, *self.facts, self.turning)) + self._rows + 1  # the path
        shown = [f"caution: {text}" for text in self.cautions[:MOST_CAUTIONS]]
        if used + height(shown) > LINES:
            del shown[1:]
        more = len(self.cautions) - len(shown)
        return tuple([*shown[:-1], f"{shown[-1]} ({more} more with --verbose)"] if more else shown)

    @property
    def _rows(self) -> int:
        """Lines of the table; its headers take two where it would be too wide."""
        if self.table is None:
            return 0
        columns = zip(self.table.headers, *self.table.rows, strict=True)
        width = sum(max(map(len, column)) + 2 for column in columns)
        return 1 + (width > WIDTH) + len(self.table.rows)

    def with_rows(self, table: Table, most: int = LINES) -> Brief:
        """With the first rows of a table, `most` or as many as have room; at least two."""
        texts = (self.action, *self.facts, self.turning, *self.shown_cautions)
        room = LINES - 2 - height(texts)  # without the headers and the path
        return replace(self, table=replace(table, rows=table.rows[: max(min(room, most), 2)]))


def height(texts: Iterable[str], indent: int = 0) -> int:
    """Lines that texts take on a terminal, beside labels of `indent` characters.

    >>> height(["short", "long " * 30, ""])
    3
    """
    return sum(len(textwrap.wrap(text, WIDTH - indent)) for text in texts)
