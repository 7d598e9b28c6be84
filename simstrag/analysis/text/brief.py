"""The short answer of a command: what a reader needs to act, in about twelve lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace

from simstrag.analysis.tables.table import Table
from simstrag.analysis.text.number_format import plural

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
        return "\n".join(filter(None, [*lines, *self.closing]))

    @property
    def lines(self) -> int:
        """Lines on a terminal, the path of the report included."""
        return height((self.action, *self.facts, *self.closing)) + self._rows + 1

    @property
    def closing(self) -> tuple[str, ...]:
        """What would change the action, and the cautions for which there is room below it.

        Cautions make way for all else; how many there are is said.
        """
        used = height((self.action, *self.facts, self.turning)) + self._rows + 1  # the path
        for most in range(min(MOST_CAUTIONS, len(self.cautions)), 0, -1):
            shown = [f"caution: {text}" for text in self.cautions[:most]]
            if more := len(self.cautions) - most:
                shown[-1] += f" ({more} more with --verbose)"
            if used + height(shown) <= LINES:
                return tuple(filter(None, [self.turning, *shown]))
        left = plural(len(self.cautions), "caution") + " with --verbose."
        texts = [self.turning, left if self.cautions else ""]
        return tuple(filter(None, [" ".join(filter(None, texts))]))

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
        texts = (self.action, *self.facts, *self.closing)
        room = LINES - 2 - height(texts)  # without the headers and the path
        return replace(self, table=replace(table, rows=table.rows[: max(min(room, most), 2)]))


def first_sentence(text: str) -> str:
    """The first sentence of a text, without its period.

    >>> first_sentence("Two seeds are few. Run more.")
    'Two seeds are few'
    >>> first_sentence("Two seeds are few.")
    'Two seeds are few'
    """
    return text.partition(". ")[0].rstrip(".")


def height(texts: Iterable[str], indent: int = 0) -> int:
    """Lines that texts take on a terminal, beside labels of `indent` characters.

    >>> height(["short", "long " * 30, ""])
    3
    """
    return sum(len(textwrap.wrap(text, WIDTH - indent)) for text in texts)
