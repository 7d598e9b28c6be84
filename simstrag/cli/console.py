"""The output of commands: tables, paragraphs, warnings, JSON; and the standard streams.

Every text goes through `printable`, as names in it are what a file or a host says.
"""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simstrag.documents.printable import printable, shell_command

if TYPE_CHECKING:
    from rich.console import Console

    from simstrag.analysis.text.brief import Brief

WIDE = 200
"""Width of a stream that is no terminal, unless `COLUMNS` gives one."""
GAP = 2
"""Spaces between two columns of a table."""
NARROWEST = 8
"""Least width of the wrapped column of a table, in characters."""
UNREAD = 1
"""Exit code if the reader of stdout is gone, as in Click and Rich."""
STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def console(stderr: bool = False) -> Console:
    """Rich's console; without colours where `NO_COLOR` is set or the stream is no terminal."""
    from rich.console import Console

    colours: Any = None if os.environ.get("NO_COLOR") else "auto"
    terminal = Console(stderr=stderr, color_system=colours)
    if terminal.is_terminal:
        return terminal
    return Console(stderr=stderr, color_system=None, width=int(os.environ.get("COLUMNS") or WIDE))


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], wraps: int = 0, least: Sequence[str] = ()
) -> None:
    """Print a table that fits the terminal.

    wraps: index of the column whose cells are wrapped.
    least: headers of columns that a narrow terminal leaves out, least important first; a line
        below the table names those left out.

    If the table is still too wide, cells of all columns are folded; none is cut.
    """
    from rich.table import Table

    out = console()
    rows = [[printable(cell, keep="\n") for cell in row] for row in rows]
    headers = list(map(printable, headers))
    left_out = _choose_left_out(headers, rows, least, out.width)
    widths = {k: _width(h, rows, k) for k, h in enumerate(headers) if h not in left_out}
    fits = sum(widths.values()) - widths[wraps] + GAP * len(widths) + NARROWEST < out.width
    full = sum(max(width, len(headers[k])) + GAP for k, width in widths.items())
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in widths.items():
        header = headers[column]
        if column != wraps and full > out.width + GAP:
            header = "\n".join(textwrap.wrap(header, width))
        table.add_column(header, no_wrap=fits and column != wraps, overflow="fold")
    for row in rows:
        table.add_row(*(row[column] for column in widths))
    out.print(table, markup=False)
    if left_out:
        names = ", ".join(left_out)
        line = f"columns that do not fit {out.width} characters, all are in --json: {names}"
        out.print(line, markup=False, highlight=False)


def _choose_left_out(
    headers: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str], room: int
) -> list[str]:
    """The columns of `least` that a table of `room` characters leaves out."""
    widths = {h: _width(h, rows, column) for column, h in enumerate(headers)}
    left_out: list[str] = []
    for header in least:
        if sum(widths.values()) + GAP * (len(widths) - 1) <= room:
            break
        if widths.pop(header, None) is not None:
            left_out.append(header)
    return left_out


def _width(header: str, rows: Sequence[Sequence[str]], column: int) -> int:
    """Width of a column: its header may be broken between words, its cells may not."""
    cells = (line for row in rows for line in row[column].split("\n"))
    return max(map(len, (*header.split(), *cells, " ")))


def print_paragraphs(*texts: str) -> None:
    """Print paragraphs as wide as the terminal, with an empty line before and after each."""
    out = console()
    out.print()
    for paragraph in texts:
        out.print(printable(paragraph, "\n"), "", sep="\n", markup=False, highlight=False)


def print_sentences(text: str) -> None:
    """Print text, broken between words on a terminal and as one line elsewhere."""
    out = console()
    shown = printable(text, keep="\n")
    out.print(shown, markup=False, highlight=False, soft_wrap=not out.is_terminal)


def print_line(text: object = "", stderr: bool = False) -> None:
    """Print a line as it is, however long."""
    print(printable(str(text)), file=sys.stderr if stderr else sys.stdout)


def ask(question: str) -> str:
    """The line that is typed as the answer to a question; empty at the end of stdin."""
    print(printable(question), end="", flush=True)
    return sys.stdin.readline().strip()


def print_lines(lines: Iterable[tuple[str, str]], unbroken: str = "") -> None:
    """Print labelled lines: a label once for all lines that share it, texts below each other.

    unbroken: the label of commands, which a terminal gets as they have to be typed.
    """
    out, before = console(), ""
    pairs = [(label, printable(text)) for label, text in lines]
    width = max((len(label) for label, _ in pairs), default=0) + GAP
    for label, text in pairs:
        shown = "" if label == before else label
        before = label
        wrapped = [text]
        if out.is_terminal and label != unbroken:
            wrapped = textwrap.wrap(text, max(out.width - width, NARROWEST))
        for k, line in enumerate(wrapped):
            head = (shown if k == 0 else "").ljust(width)
            out.print(f"{head}{line}", markup=False, highlight=False, soft_wrap=True)


def print_brief(brief: Brief) -> None:
    """Print a short answer; what it leaves out, `--verbose` prints."""
    for text in (brief.action, *brief.facts):
        print_sentences(text)
    if brief.table is not None:
        print_table(brief.table.headers, brief.table.rows, wraps=brief.table.wraps)
    for text in brief.closing:
        print_sentences(text)


def print_json(data: Any) -> None:
    """Print one JSON document; NaN and infinities become null, as in `run.json`."""
    from simstrag.runs.run import plain

    print(json.dumps(plain(data), indent=2, allow_nan=False))


def command_line() -> str:
    """The command as it was typed, for a report."""
    return shell_command(["simstrag", *sys.argv[1:]])


def warn(messages: Iterable[str]) -> None:
    """Print warnings on stderr, one a line."""
    for message in messages:
        print_line(f"warning: {message}", stderr=True)


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Collect Python's warnings, one line each; the list is filled when the block ends."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        yield lines
    lines += [" ".join(str(warning.message).split()) for warning in caught]


def format_cell(value: Any) -> str:
    """A value as the text of a table's cell.

    >>> format_cell(None), format_cell(math.nan), format_cell(1 / 3), format_cell([1, 2.5])
    ('-', '-', '0.333333', '1 2.5')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(map(format_cell, value))
    return str(value)


def replace_closed_streams() -> None:
    """Open /dev/null in place of standard streams that the caller has closed.

    Otherwise the next file that is opened takes the closed stream's descriptor.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < len(STREAMS):
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate(STREAMS):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode))


def discard_stdout() -> None:
    """Send the rest of stdout to /dev/null, because its reader is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def redirect_stdout() -> Iterator[None]:
    """Send stdout of this process and of its children to stderr."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
