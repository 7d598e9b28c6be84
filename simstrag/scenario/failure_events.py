"""Failures of ranks from a CSV file: a row a failure, or the joins and leaves of a fleet.

The second format is that of Bamboo's traces of spot instances (Thorpe et al., "Bamboo", NSDI 2023;
uclasystem/bamboo, `traces/`): no header, and rows of milliseconds, `add` or `remove`, and a node.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from simstrag.documents.csv_rows import read_rows
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

COLUMNS = ("time", "rank", "back")
ACTIONS = ("add", "remove")

EventKeys = dict[str, Any]
"""The keys of one failure of a scenario."""


def read_failure_events(path: Path) -> list[EventKeys]:
    """The failures of a file.

    Columns are time, rank and, where ranks come back, back; an empty cell is never.
    Raises `InputError` that names the file, the row and the value.
    """
    if not path.is_file():
        raise InputError(f"{path}: is no file; events names a CSV file, or lists failures")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = next(csv.reader(file), [])
            file.seek(0)
            if len(first) == 3 and first[1].strip() in ACTIONS:
                events = of_fleet(_fleet_rows(csv.reader(file), path), str(path))
            else:
                events = list(_events(read_rows(file, str(path)), path))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text in UTF-8") from None
    if not events:
        raise InputError(f"{path}: no rank fails in it")
    return events


def of_fleet(rows: Iterable[tuple[int, float, str, str]], source: str) -> list[EventKeys]:
    """The failures of ranks whose nodes join and leave: row, seconds, `add` or `remove`, and node.

    A node takes the lowest rank that has none.  A rank without a node is away, from the beginning
    on where its first node comes later.
    Raises `InputError` for a node that joins twice, leaves before it joins, or goes back in time.

    >>> rows = [(1, 0, "add", "a"), (2, 5, "add", "b"), (3, 7, "remove", "a"), (4, 9, "add", "c")]
    >>> for event in of_fleet(rows, "fleet.csv"):
    ...     print(event)
    {'time': 0.0, 'rank': 1, 'back': 5}
    {'time': 7, 'rank': 0, 'back': 9}
    """
    events, ranks, away = list[EventKeys](), dict[str, int](), dict[int, EventKeys]()
    free, latest = list[int](), -math.inf
    for line, time, action, node in rows:
        where = f"{source}, row {line}"
        if time < latest:
            raise InputError(f"{where}: {time:g} s is before the row above it; sort the rows")
        latest = time
        if (action == "add") == (node in ranks):
            wrong = "joins twice" if action == "add" else "leaves, and has not joined"
            raise InputError(f"{where}: {node} {wrong}")
        if action == "remove":
            rank = ranks.pop(node)
            heapq.heappush(free, rank)
            away[rank] = {"time": time, "rank": rank, "back": None}
            events.append(away[rank])
            continue
        rank = ranks[node] = heapq.heappop(free) if free else len(ranks)
        if rank in away:
            away.pop(rank)["back"] = time
        elif time > 0:
            events.append({"time": 0.0, "rank": rank, "back": time})
    return events


def _fleet_rows(rows: Iterable[list[str]], path: Path) -> Iterator[tuple[int, float, str, str]]:
    for line, row in enumerate(rows, start=1):
        where = f"{path}, row {line}"
        if not any(row):
            continue
        if len(row) != 3 or row[1].strip() not in ACTIONS:
            raise InputError(f"{where}: must be milliseconds, add or remove, and a node")
        yield line, _number(where, "time", row[0]) / 1000, row[1].strip(), row[2].strip()


def _events(rows: Iterator[tuple[int, list[str]]], path: Path) -> Iterator[EventKeys]:
    head = next(rows)[1]
    for name in COLUMNS[:2]:
        if name not in head:
            raise InputError(
                f"{path}: no column {name}{nearest(name, head)}; failures have time, rank and, "
                "where ranks come back, back"
            )
    for name in COLUMNS:
        if head.count(name) > 1:
            raise InputError(f"{path}: {head.count(name)} columns are called {name}; keep one")
    for line, cells in rows:
        yield _event(f"{path}, row {line}", dict(zip(head, cells, strict=True)))


def _event(where: str, cells: Mapping[str, str]) -> EventKeys:
    time, rank, back = (cells.get(name, "").strip() for name in COLUMNS)
    number = _number(where, "rank", rank)
    if number % 1:
        raise InputError(f"{where}: rank is '{rank}', but must be a whole number")
    return {
        "time": _number(where, "time", time),
        "rank": int(number),
        "back": _number(where, "back", back) if back else None,
    }


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"{where}: {name} is '{text}', but must be a number from 0 on")
    return value
