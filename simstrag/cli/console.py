"""What a command prints: tables, paragraphs, warnings, one document for machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "document", "paragraphs", "table", "text", "warn", "written"]

WIDE = 200
"""Columns of what is no terminal."""


def console(stderr: bool = False) -> Console:
    """Rich's, plain where `NO_COLOR` says so or nobody watches."""
    from rich.console import Console

    colours: Any = None if os.environ.get("NO_COLOR") else "auto"
    found = Console(stderr=stderr, color_system=colours)
    return found if found.is_terminal else Console(stderr=stderr, color_system=None, width=WIDE)


def table(headers: list[str], rows: list[list[str]], wraps: int | None = None) -> None:
    """A table as wide as the terminal; where it is too narrow, column `wraps` alone gives way."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column, header in enumerate(headers):
        shown.add_column(header, no_wrap=wraps not in (None, column), overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console().print(shown, markup=False)


def paragraphs(*texts: str) -> None:
    """Each as wide as the terminal, with a line before and one after them all."""
    on = console()
    on.print()
    for paragraph in texts:
        on.print(paragraph, "", sep="\n", markup=False, highlight=False)


def document(data: Any) -> None:
    """One JSON document on stdout; NaN and infinities are null, as in `run.json`."""
    from simstrag.run import plain

    print(json.dumps(plain(data), indent=2, allow_nan=False))


def written(what: str, path: Path, quiet: bool = False) -> None:
    """Where a file or folder is: with a word before it, or alone for scripts."""
    print(path if quiet else f"{what}: {path}")


def warn(warnings: Iterable[str]) -> None:
    """One line on stderr each."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


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
