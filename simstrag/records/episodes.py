"""A list of episodes: when which host was slow, and by which factor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simstrag.arrays import Floats
from simstrag.records.columns import (
    MEANINGS,
    LogColumns,
    describe_moment,
    format_of,
    since,
    wall_clock,
)
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_table import EMPTY, LogTable
from simstrag.records.record import NodeEpisode, Record

NAME = "episodes"
AMOUNT, SIGN = r"(\d+(?:\.\d+)?)", "[x\N{MULTIPLICATION SIGN}]"
TIMES = re.compile(rf"{AMOUNT}\s*{SIGN}(?![a-z])|(?<![a-z]){SIGN}\s*{AMOUNT}", re.I)
SLOWER = re.compile(rf"{AMOUNT}\s*% slower", re.I)


def recognise(file: LogFile) -> bool:
    """Whether a file is a table of starts, ends and hosts."""
    return file.table is not None and format_of(file.table.columns) == NAME


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The episodes of a CSV file with a row for each.

    columns: names of columns (start, end, node, factor, note) that are not known.

    An episode without an end lasts to the end of the log.  Raises `InputError` that names the row.
    """
    file = files[0]
    table = file.table or LogTable.of(file.text, str(file.path))
    needed = ("start", "end", "rank/node", "factor/note")
    log = LogColumns.of(table, MEANINGS[NAME], columns, needed)
    node, names = log.nodes()
    ends, starts = log.cells("end"), log.cells("start")
    ongoing = [cell.lower() in EMPTY for cell in ends]
    ended = [s if open_ else e for s, e, open_ in zip(starts, ends, ongoing, strict=True)]
    closed = replace(table, columns=table.columns | {log.names["end"]: ended})
    start, end = log.moments("start"), replace(log, table=closed).moments("end")
    end = np.where(ongoing, max(start.max(), end.max()), end)
    first, zero = starts[int(start.argmin())], float(start.min())
    start, end = since(start, zero), since(end, zero)
    if np.any(end <= start):
        raise log.mistake(int(np.argmax(end <= start)), "end", "is not after the start")
    place = {number: k for k, number in enumerate(sorted({*node}))}
    said = log.cells("note") if "note" in log else [""] * len(node)
    rows = zip(node, start.tolist(), end.tolist(), _factors(log).tolist(), said, strict=True)
    is_open = sum(ongoing)
    return Record.without_steps(
        str(file.path), NAME, nodes=tuple(names.get(number, str(number)) for number in place),
        episodes=tuple(NodeEpisode(place[n], a, b, factor, what) for n, a, b, factor, what in rows),
        began=wall_clock(first, zero),
        notes=(
            f"Measured: {len(node)} episodes of {len(place)} nodes; {log.taken()}.",
            f"Derived: time 0 is {describe_moment(first)} of the file, the first start.",
            *([f"Assumed: {is_open} episodes without an end last to the last start or end."]
              if is_open else []),
        ),
    )  # fmt: skip


READERS = (Reader(NAME, "CSV of start, end, host and factor", recognise, read),)


def _factors(log: LogColumns) -> Floats:
    """The factor of each episode: of its column, else in its note."""
    meanings = [meaning for meaning in ("factor", "note") if meaning in log]
    factors = []
    for k in range(len(log.table.lines)):
        texts = [(meaning, log.cells(meaning)[k]) for meaning in meanings]
        found = next(filter(None, (_factor_in(text, meaning) for meaning, text in texts)), None)
        if found is None:
            raise log.mistake(k, meanings[-1], "states no factor; write one such as 2x")
        if not 1 <= found < 1e9:
            raise log.mistake(k, meanings[0], "is no slowdown; it is a factor of 1 or more")
        factors.append(found)
    return np.array(factors)


def _factor_in(text: str, meaning: str) -> float | None:
    """The factor in a text.

    >>> _factor_in("neighbour, 2.5x slower", "note"), _factor_in("40% slower", "note")
    (2.5, 1.4)
    """
    if meaning == "factor" and re.fullmatch(r"-?\d+(\.\d+)?", text):
        return float(text)
    found = TIMES.search(text)
    if found:
        return float(found[1] or found[2])
    slower = SLOWER.search(text)
    return 1 + float(slower[1]) / 100 if slower else None
