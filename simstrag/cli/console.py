"""What a command prints: tables, paragraphs, warnings, one document for machines."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "console", "document", "heard", "paragraphs", "sentences", "table", "text", "warn", "written",
]  # fmt: skip

WIDE = 200
"""Columns of what is no terminal."""
GAP = 2
"""Between two columns of a table."""
LEAST = 8
"""Letters in a line of a column that gives way."""


def console(stderr: bool = False) -> Console:
    """Rich's, plain where `NO_COLOR` says so or nobody watches."""
    from rich.console import Console

    colours: Any = None if os.environ.get("NO_COLOR") else "auto"
    found = Console(stderr=stderr, color_system=colours)
    return found if found.is_terminal else Console(stderr=stderr, color_system=None, width=WIDE)


def table(
    headers: list[str], rows: list[list[str]], wraps: int = 0, least: Sequence[str] = ()
) -> None:
    """A table as wide as the terminal; where it is too narrow, column `wraps` alone gives way.

    least: headers of columns that are left out before, the first of them first; it is said which.
    Where even that is too little all cells are folded, and none is cut.
    """
    from rich.table import Table

    on = console()
    left_out = _left_out(headers, rows, least, on.width)
    kept = {k: _width(h, rows, k) for k, h in enumerate(headers) if h not in left_out}
    fits = sum(kept.values()) - kept[wraps] + GAP * len(kept) + LEAST < on.width
    whole = sum(max(width, len(headers[k])) + GAP for k, width in kept.items()) <= on.width + GAP
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in kept.items():
        header = headers[column]
        if column != wraps and not whole:
            header = "\n".join(textwrap.wrap(header, width))
        shown.add_column(header, no_wrap=fits and column != wraps, overflow="fold")
    for row in rows:
        shown.add_row(*(row[column] for column in kept))
    on.print(shown, markup=False)
    if left_out:
        said = f"left out in a terminal of {on.width} columns, not in --json: {', '.join(left_out)}"
        on.print(said, markup=False, highlight=False)


def _left_out(
    headers: list[str], rows: list[list[str]], least: Sequence[str], room: int
) -> list[str]:
    """What a table does without to be no wider than `room`."""
    widths = {h: _width(h, rows, column) for column, h in enumerate(headers)}
    found: list[str] = []
    for header in least:
        if sum(widths.values()) + GAP * (len(widths) - 1) <= room:
            break
        if widths.pop(header, None) is not None:
            found.append(header)
    return found


def _width(header: str, rows: list[list[str]], column: int) -> int:
    """Of a column whose header may be broken between words, and whose cells are not."""
    cells = (line for row in rows for line in row[column].split("\n"))
    return max(map(len, (*header.split(), *cells, " ")))


def paragraphs(*texts: str) -> None:
    """Each as wide as the terminal, with a line before and one after them all."""
    on = console()
    on.print()
    for paragraph in texts:
        on.print(paragraph, "", sep="\n", markup=False, highlight=False)


def sentences(text: str) -> None:
    """Broken between words where somebody watches; one line for what reads lines."""
    on = console()
    on.print(text, markup=False, highlight=False, soft_wrap=not on.is_terminal)


def document(data: Any) -> None:
    """One JSON document on stdout; NaN and infinities are null, as in `run.json`."""
    from simstrag.runs.run import plain

    print(json.dumps(plain(data), indent=2, allow_nan=False))


def written(what: str, path: Path, quiet: bool = False) -> None:
    """Where a file or folder is: with a word before it, or alone for scripts."""
    print(path if quiet else f"{what}: {path}")


def warn(said: Iterable[str]) -> None:
    """One line on stderr each."""
    for warning in said:
        print(f"warning: {warning}", file=sys.stderr)


@contextmanager
def heard() -> Iterator[list[str]]:
    """What Python is warned of in here, for `warn`: a line each, there when this has ended."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        yield lines
    lines += [" ".join(str(warning.message).split()) for warning in found]


def text(value: Any) -> str:
    """A cell of a table.

    >>> text(None), text(1 / 3), text([1, 2.5])
    ('-', '0.333333', '1 2.5')
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(text(item) for item in value)
    return str(value)
