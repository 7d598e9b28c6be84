"""Records of quantities over time: what readers of metrics have in common."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simstrag.arrays import Reals
from simstrag.errors import InputError
from simstrag.records.log_table import EMPTY, shorten
from simstrag.records.record import GPU, SM_CLOCK, NodeSeries, Record, Unseen

QUERY = (
    "nvidia-smi --query-gpu=timestamp,index,utilization.gpu,clocks.sm,power.draw,temperature.gpu,"
    "clocks_event_reasons.active --format=csv -l 5"
)
"""The query that shows what `Record.series` may hold of a GPU."""
NO_CLOCK = "whether a GPU computes slower: a throttled one is as busy as others"
NUMBER = re.compile(
    r"([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?) ?(%|[mk]?W|[MG]Hz|°?C|x)?", re.IGNORECASE | re.ASCII
)
SCALES = {"mw": 1e-3, "kw": 1e3, "ghz": 1e3}
"""Of the units that a cell may have, those that are not the one of `QUANTITIES`."""
BLANK = 2147483632.0
"""The least of the numbers by which DCGM says that it has no value."""


def record_of_series(
    source: str,
    form: str,
    labels: Sequence[str],
    time: Reals,
    values: Mapping[str, Reals],
    query: str = QUERY,
    **more: Any,
) -> Record:
    """The record of quantities; of two values of one node and time the first counts.

    labels: the node of each row.
    time: seconds of each row.
    values: by quantity; NaN where it was not measured.
    query: what to ask for where the log has no clock.
    more: further fields of the record.
    """
    place = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    node = np.array([place[label] for label in labels], np.int64)
    order = np.lexsort((time, node))
    series = []
    for quantity, value in values.items():
        rows = order[~np.isnan(value[order])]
        is_new = (np.diff(node[rows]) != 0) | (np.diff(time[rows]) != 0)
        rows = rows[np.append(True, is_new)] if len(rows) else rows
        if len(rows):
            series.append(NodeSeries(quantity, node[rows], time[rows], value[rows]))
    shown = {each.quantity for each in series}
    is_blind = GPU in shown and SM_CLOCK not in shown
    unseen = (Unseen(NO_CLOCK, query),) if is_blind else ()
    more = {"unseen": unseen} | more
    return Record.without_steps(source, form, nodes=tuple(place), series=tuple(series), **more)


def numbers_of(cells: Sequence[str], where: str) -> Reals:
    """Cells as numbers, with or without their unit; NaN where nothing was measured.

    where: file and column, for the `InputError` of any other cell.

    >>> numbers_of(["98 %", "[N/A]", "402000 mW"], "smi.csv").tolist()
    [98.0, nan, 402.0]
    """
    known = {cell: _number(cell) for cell in set(cells)}
    if (wrong := next((cell for cell in cells if known[cell] is None), None)) is not None:
        raise InputError(f"{where}: '{shorten(wrong)}' is not a number")
    return np.array([known[cell] for cell in cells], np.float64)


def _number(cell: str) -> float | None:
    if cell.lower() in EMPTY or cell.startswith("[") or cell == "ERR!":
        return math.nan
    found = NUMBER.fullmatch(cell)
    number = float(found[1]) if found else math.nan
    if found is None or not math.isfinite(number):
        return None
    if number >= BLANK:
        return math.nan
    return number * SCALES.get((found[2] or "").lower(), 1.0)


def differing_parts(names: Sequence[str]) -> list[str]:
    """What tells names of files apart, such as hosts in them.

    >>> differing_parts(["smi-gpu01-a.csv", "smi-gpu02-a.csv"])
    ['gpu01', 'gpu02']
    """
    split = [re.split(r"([-_.\s]+)", name) for name in names]

    def common(parts: Iterable[list[str]]) -> int:
        columns = zip(*parts, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda each: len(set(each)) == 1, columns))

    first = common(split)
    last = common(each[first:][::-1] for each in split)
    found = ["".join(each[first : len(each) - last]) for each in split]
    return found if all(found) and len(set(found)) == len(found) else list(names)


def counts_of(labels: list[str]) -> list[int]:
    """Number of earlier occurrences of each label."""
    seen: Counter[str] = Counter()
    found = []
    for label in labels:
        found.append(seen[label])
        seen[label] += 1
    return found
