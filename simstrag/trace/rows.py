"""The rows of a trace and what they may say, checked all at once, or one by one for a message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

__all__ = [
    "COLUMNS", "DURATION", "KINDS", "KIND_NAMES", "MOST_NODE", "RESOURCES", "SLOWDOWN",
    "UTILISATION", "Columns", "Key", "Row", "codes", "each", "plain", "right",
]  # fmt: skip

COLUMNS = ("time", "node", "resource", "kind", "value")
RESOURCES = ("gpu", "host", "net", "step")
KINDS = ("slowdown", "utilisation", "duration")
KIND_NAMES = tuple(sorted(KINDS))
"""A column has the places in `RESOURCES` and here instead of names: both are in their order."""
DURATION, SLOWDOWN, UTILISATION = range(3)
STEP = RESOURCES.index("step")

MEANT = {"time": "in seconds from the start", "node": "the number of a node, from 0 on"}
"""What else is written into columns of numbers: dates, names of machines."""
MOST_NODE = 2**53
"""From here on a file's numbers are not told apart."""
NUMBERS = frozenset({int, float, np.int64, np.float64})

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]
Key = tuple[int, str, str]


class Row(NamedTuple):
    """One change: `value` holds from `time` (seconds) on."""

    time: float
    node: int
    resource: str
    kind: str
    value: float

    @property
    def key(self) -> Key:
        """Whose value it is: node, resource and kind."""
        return self.node, self.resource, self.kind


class Columns(NamedTuple):
    """Rows, a column for each of `COLUMNS` (resources and kinds by number), and their lines."""

    time: Floats
    node: Ints
    resource: Codes
    kind: Codes
    value: Floats
    line: Ints


def right(
    time: Floats, node: Floats, resource: Codes, kind: Codes, value: Floats, line: Ints
) -> Columns | None:
    """These columns, where every row of them may stand in a trace; else None."""
    spans = (value > 0) & np.where(kind == UTILISATION, value <= 1, value < math.inf)
    spans |= (kind == UTILISATION) & (value == 0)
    places = (kind != DURATION) | (resource == STEP)
    whole = (node >= 0) & (node < MOST_NODE) & (node == np.floor(node))
    if not np.all(spans & places & whole & (time >= 0) & (time < math.inf)):
        return None
    return Columns(time, node.astype(np.int64), resource, kind, value, line)


def plain(rows: Sequence[Any], first_line: int) -> Columns | None:
    """Rows that are dicts or sequences of numbers and names, all of them right; else None."""
    shapes = set(map(type, rows))
    if not (shapes == {dict} or shapes <= {tuple, list, Row}):
        return None
    if set(map(len, rows)) != {len(COLUMNS)}:
        return None
    places = COLUMNS if shapes == {dict} else range(len(COLUMNS))
    try:
        time, node, resource, kind, value = (list(map(itemgetter(k), rows)) for k in places)
        if not set().union(*(map(type, column) for column in (time, node, value))) <= NUMBERS:
            return None
        return right(
            np.array(time, np.float64), np.array(node, np.float64), codes(resource, RESOURCES),
            codes(kind, KIND_NAMES), np.array(value, np.float64),
            np.arange(first_line, first_line + len(rows)),
        )  # fmt: skip
    except (KeyError, TypeError, OverflowError):
        return None


def codes(names: Iterable[str], known: Sequence[str]) -> Codes:
    """Names by their number. Raises `KeyError` for one that is not known."""
    numbers = {name: k for k, name in enumerate(known)}
    return np.array([numbers[name] for name in names], np.int8)


def each(numbered: Iterable[tuple[int, Any]], source: str) -> Columns:
    """Check rows one by one, with the numbers that messages give them.

    Raises `InputError` that names the source, the row and the way out.
    """
    checked: list[Row] = []
    lines: list[int] = []
    latest: dict[Key, float] = {}
    for number, raw in numbered:
        where = f"{source}, row {number}"
        row = _row(raw, where)
        key = row.key
        if row.time < latest.get(key, 0.0):
            raise InputError(
                f"{where}: time {row.time:g} goes backwards, the row before of node "
                f"{row.node}, {row.resource} {row.kind} is at {latest[key]:g}; "
                "sort the rows by time"
            )
        latest[key] = row.time
        checked.append(row)
        lines.append(number)
    if not checked:
        raise InputError(f"{source}: the trace is empty; leave `trace` out for no contention")
    time, node, resource, kind, value = zip(*checked, strict=True)
    return Columns(
        np.array(time), np.array(node), codes(resource, RESOURCES), codes(kind, KIND_NAMES),
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
        _choice(resource, "resource", RESOURCES, where),
        _choice(kind, "kind", KINDS, where),
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
    if row.kind == "duration" and row.resource != "step":
        raise InputError(f"{where}: a duration is of resource step, not {row.resource}")
    return row


def _number(value: Any, column: str, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        meant = MEANT.get(column)
        way_out = f"; it is {meant}" if meant else ""
        raise InputError(f"{where}: {column} {value!r} is not a number{way_out}") from None
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


def _choice(value: Any, column: str, allowed: Sequence[str], where: str) -> str:
    name = str(value).strip()
    if name not in allowed:
        raise InputError(
            f"{where}: unknown {column} '{name}'{nearest(name.lower(), allowed)}; "
            f"allowed: {', '.join(allowed)}"
        )
    return name
