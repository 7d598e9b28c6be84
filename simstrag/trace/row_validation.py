"""The rows of a trace and what they may hold, checked as columns or one by one for a message.

A file that passes as columns is never looked at row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Floats, Ints
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

COLUMNS = ("time", "node", "resource", "kind", "value")
BEGAN = "began"
"""The column of the moment at which a trace began."""
HOST = "host"
"""The optional column with the names of nodes."""
RESOURCES = ("gpu", "host", "net", "step")
KINDS = ("slowdown", "utilisation", "duration", "delay")
KIND_NAMES = tuple(sorted(KINDS))
"""In columns resources and kinds are numbers: their places in `RESOURCES` and here."""
DELAY, DURATION, SLOWDOWN, UTILISATION = range(4)
NET, STEP = RESOURCES.index("net"), RESOURCES.index("step")

UNITS = {"time": "in seconds from the start", "node": "the number of a node, from 0 on"}
"""Hints for users who write dates or names of machines."""
MOST_NODE = 2**53
"""From here on floating-point numbers of nodes are not distinct."""
NUMBERS = frozenset({int, float, np.int64, np.float64})

Codes = npt.NDArray[np.int8]
HistoryKey = tuple[int, str, str]
MOST_ROWS = 1e8
"""Most rows of a trace that is generated or resampled, ASSUMED: beyond it memory ends first."""


class Row(NamedTuple):
    """One change: `value` holds from `time` (seconds) on."""

    time: float
    node: int
    resource: str
    kind: str
    value: float


class Columns(NamedTuple):
    """Rows as arrays; resources and kinds as numbers. line: the row's line in its source."""

    time: Floats
    node: Ints
    resource: Codes
    kind: Codes
    value: Floats
    line: Ints


def validate(
    time: Floats, node: Floats, resource: Codes, kind: Codes, value: Floats, line: Ints
) -> Columns | None:
    """These columns, or None if any row of them may not be in a trace."""
    in_range = (value > 0) & np.where(kind == UTILISATION, value <= 1, value < math.inf)
    in_range |= ((kind == UTILISATION) | (kind == DELAY)) & (value == 0)
    fits = (kind != DURATION) | (resource == STEP)
    fits &= (kind != DELAY) | (resource == NET)
    is_node = (node >= 0) & (node < MOST_NODE) & (node == np.floor(node))
    if not np.all(in_range & fits & is_node & (time >= 0) & (time < math.inf)):
        return None
    return Columns(time, node.astype(np.int64), resource, kind, value, line)


def parse(rows: Sequence[Any], first_line: int) -> Columns | None:
    """Valid dicts, or sequences in the order of `COLUMNS`, as columns; None for any others."""
    types = set(map(type, rows))
    if not (types == {dict} or types <= {tuple, list, Row}):
        return None
    if set(map(len, rows)) != {len(COLUMNS)}:
        return None
    keys = COLUMNS if types == {dict} else range(len(COLUMNS))
    try:
        time, node, resource, kind, value = (list(map(itemgetter(key), rows)) for key in keys)
        if not set().union(*(map(type, column) for column in (time, node, value))) <= NUMBERS:
            return None
        return validate(
            np.array(time, np.float64), np.array(node, np.float64), encode(resource, RESOURCES),
            encode(kind, KIND_NAMES), np.array(value, np.float64),
            np.arange(first_line, first_line + len(rows)),
        )  # fmt: skip
    except (KeyError, TypeError, OverflowError):
        return None


def encode(names: Iterable[str], known: Sequence[str]) -> Codes:
    """The places of names among the known ones. Raises `KeyError` for any other name."""
    numbers = {name: k for k, name in enumerate(known)}
    return np.array([numbers[name] for name in names], np.int8)


def check_each(numbered: Iterable[tuple[int, Any]], source: str) -> Columns:
    """Rows with their lines as columns, checked one by one.

    Raises `InputError` that names the source, the line and the way out.
    """
    rows: list[Row] = []
    lines: list[int] = []
    latest: dict[HistoryKey, float] = {}
    for line, raw in numbered:
        where = f"{source}, row {line}"
        row = _row(raw, where)
        key = row.node, row.resource, row.kind
        if row.time < latest.get(key, 0.0):
            raise InputError(
                f"{where}: time {row.time:g} goes backwards, the row before of node "
                f"{row.node}, {row.resource} {row.kind} is at {latest[key]:g}; "
                "sort the rows by time"
            )
        latest[key] = row.time
        rows.append(row)
        lines.append(line)
    if not rows:
        raise InputError(f"{source}: the trace is empty; leave `trace` out for no contention")
    time, node, resource, kind, value = zip(*rows, strict=True)
    return Columns(
        np.array(time), np.array(node), encode(resource, RESOURCES), encode(kind, KIND_NAMES),
        np.array(value), np.array(lines),
    )  # fmt: skip


def _row(raw: Sequence[Any] | Mapping[str, Any], where: str) -> Row:
    if isinstance(raw, Mapping):
        unknown = [key for key in raw if key not in COLUMNS]
        if unknown:
            raise InputError(
                f"{where}: unknown column '{unknown[0]}'{nearest(unknown[0], COLUMNS)}"
            )
        missing = [key for key in COLUMNS if key not in raw]
        if missing:
            raise InputError(f"{where}: no '{missing[0]}'; a row has {', '.join(COLUMNS)}")
        raw = [raw[key] for key in COLUMNS]
    if isinstance(raw, str) or not hasattr(raw, "__len__") or len(raw) != len(COLUMNS):
        raise InputError(f"{where}: {raw!r} is not a row of {', '.join(COLUMNS)}")
    time, node, resource, kind, value = raw
    row = Row(
        _number(time, "time", where),
        _node(node, where),
        _name(resource, "resource", RESOURCES, where),
        _name(kind, "kind", KINDS, where),
        _number(value, "value", where),
    )
    if row.time < 0:
        raise InputError(f"{where}: time {row.time:g} is negative; a trace begins at 0")
    if row.kind == "slowdown" and row.value <= 0:
        raise InputError(f"{where}: slowdown {row.value:g} must be 1 or more")
    if row.kind == "utilisation" and not 0 <= row.value <= 1:
        raise InputError(f"{where}: utilisation {row.value:g} must lie between 0 and 1")
    if row.kind == "duration" and row.value <= 0:
        raise InputError(f"{where}: duration {row.value:g} must be positive seconds")
    if row.kind == "delay" and row.value < 0:
        raise InputError(f"{where}: delay {row.value:g} must be 0 or more seconds")
    if row.kind == "delay" and row.resource != "net":
        raise InputError(f"{where}: a delay is of resource net, not {row.resource}")
    if row.kind == "duration" and row.resource != "step":
        raise InputError(f"{where}: a duration is of resource step, not {row.resource}")
    return row


def require_rows(source: str, rows: float) -> None:
    """Raise `InputError` where a trace to be made would have more than `MOST_ROWS`.

    >>> require_rows("generate", 2e12)
    Traceback (most recent call last):
    simstrag.errors.InputError: generate: would have about 2e+12 rows, and 1e+08 are the most; make
    it shorter, or of fewer nodes
    """
    if rows > MOST_ROWS:
        raise InputError(
            f"{source}: would have about {rows:.2g} rows, and {MOST_ROWS:g} are the most; make it "
            "shorter, or of fewer nodes"
        )


def _number(value: Any, column: str, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        way_out = f"; it is {UNITS[column]}" if column in UNITS else ""
        raise InputError(f"{where}: {column} {value!r:.60} is not a number{way_out}") from None
    if not math.isfinite(number):
        raise InputError(f"{where}: {column} is {value}; it must be a finite number")
    return number


def _node(value: Any, where: str) -> int:
    number = _number(value, "node", where)
    if number != int(number) or number < 0:
        raise InputError(f"{where}: node {value!r} must be a whole number, 0 or more")
    if number >= MOST_NODE:
        raise InputError(f"{where}: node {value!r} must be below 2**53")
    return int(number)


def _name(value: Any, column: str, allowed: Sequence[str], where: str) -> str:
    name = str(value).strip()
    if name not in allowed:
        raise InputError(
            f"{where}: unknown {column} '{name}'{nearest(name.lower(), allowed)}; "
            f"allowed: {', '.join(allowed)}"
        )
    return name
