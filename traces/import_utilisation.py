"""Utilisation over time as exporters of metrics write it: a CSV row per node and moment.

Sources of the names that are known: `DCGM_FI_DEV_GPU_UTIL` of NVIDIA's dcgm-exporter,
`utilization.gpu [%]` of `nvidia-smi --query-gpu=timestamp,utilization.gpu --format=csv`, and the
usual names of columns in exports of node exporters' rates, all without regard to case and marks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.trace.trace import RESOURCES, Trace
from simstrag.traces.labelled import Labelled, contents
from simstrag.traces.sheets import Sheet

__all__ = ["ALIASES", "utilisation"]

NAME = "utilisation"
LOADED = ("gpu", "host", "net")
ALIASES = {
    "node": ("node", "nodename", "hostname", "instance", "machine", "server"),
    "time": ("time", "timestamp", "date", "datetime", "seconds"),
    "gpu": ("gpu", "gpuutil", "gpuutilization", "utilizationgpu", "dcgmfidevgpuutil"),
    "host": ("cpu", "cpuutil", "cpuutilization", "cpuusage", "cpupercent", "cpubusy"),
    "net": ("net", "network", "nic", "netutil", "networkutilization", "nicutil"),
}
"""Names of columns that are known, in small letters and digits only."""
EPOCH_IN_MILLISECONDS = 1e11
"""Seconds since 1970 reach this number in the year 5138."""
Floats = npt.NDArray[np.float64]


class Taken(NamedTuple):
    """Rows of a trace, and how many cells are empty, given twice, and below the job's own share."""

    rows: list[tuple[float, int, str, str, float]]
    empty: int
    twice: int
    clipped: int


def utilisation(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    fraction: bool = False,
    own: Mapping[str, float] | None = None,
) -> Labelled:
    """Rows of kind `utilisation` of the resources gpu, host and net, as far as they have a column.

    columns: which column is the node, the time, or a resource, where `ALIASES` do not know it.
    fraction: values are 0 to 1; else percent, 0 to 100.
    own: the share (0 to 1) of a resource that the job itself is taken to use all the time; it is
        subtracted, and what would be negative is 0.
    Times are seconds, or dates in ISO 8601, and count from the earliest.  Nodes that are whole
    numbers keep them; names are numbered in the order they appear.  An empty cell leaves the value
    before in force.  Raises `InputError` that names the row.
    """
    sheet = Sheet.read(path)
    found = _columns(sheet, columns or {})
    shares = _shares(own or {}, found)
    names, node = _nodes(sheet, found["node"])
    time, dated = _times(sheet, found["time"])
    begin = float(time.min())
    values = {name: _values(sheet, found[name], fraction) for name in LOADED if name in found}
    taken = _taken(sheet, found, values, node, time - begin, shares)
    trace = Trace.from_rows(taken.rows, str(path))
    highest = max(float(np.nanmax(value, initial=0.0)) for value in values.values())
    named = dict(zip(node, names, strict=True))
    columns_used = ", ".join(f"{resource} from column '{found[resource]}'" for resource in values)
    told_in = "as fractions" if fraction else "in percent"
    return Labelled(
        trace,
        NAME,
        contents([path]),
        notes=(
            f"Measured: utilisation, {columns_used}, {told_in}.",
            f"Derived: time 0 is {dated if dated else f'{begin:.10g} s'} of the file.",
            *_of_own(shares, taken.clipped),
            f"Missing: {taken.empty} empty cells, where the one before stays in force.",
            "Missing: what such a load costs a step. A scenario with this trace needs a profile "
            f"with a response of {' and '.join(values)} (simstrag calibrate measures them).",
            f"Dropped: {taken.twice} cells given twice with the same value.",
            *_doubtful(highest, fraction),
        ),
        names=tuple(named[k] for k in trace.nodes),
    )


def _columns(sheet: Sheet, given: Mapping[str, str]) -> dict[str, str]:
    """The column of each meaning: as it is given, else known by its name."""
    plain = {name: re.sub(r"[^a-z0-9]", "", name.lower()) for name in sheet.columns}
    found = {}
    for meaning, name in given.items():
        if meaning not in ALIASES:
            raise InputError(
                f"--column {meaning}={name}: there is no '{meaning}'{nearest(meaning, ALIASES)}; "
                f"allowed: {', '.join(ALIASES)}"
            )
        sheet.column(name)
        found[meaning] = name
    for meaning, known in ALIASES.items():
        if meaning not in found:
            of_it = [name for name in sheet.columns if plain[name] in known]
            if len(of_it) > 1:
                raise InputError(
                    f"{sheet.source}: columns '{of_it[0]}' and '{of_it[1]}' may both be the "
                    f"{meaning}; say which: --column {meaning}={of_it[0]}"
                )
            if of_it:
                found[meaning] = of_it[0]
    there = ", ".join(sheet.columns)
    for meaning in ("node", "time"):
        if meaning not in found:
            raise InputError(
                f"{sheet.source}: no column is known to be the {meaning}; say which: "
                f"--column {meaning}=NAME; it has {there}"
            )
    if not set(found) & set(LOADED):
        raise InputError(
            f"{sheet.source}: no column is known to be a utilisation; say which: "
            f"--column gpu=NAME, host=NAME or net=NAME; it has {there}"
        )
    return found


def _shares(own: Mapping[str, float], found: Mapping[str, str]) -> dict[str, float]:
    for resource, share in own.items():
        if resource not in LOADED or resource not in found:
            there = ", ".join(name for name in LOADED if name in found)
            near = nearest(resource, RESOURCES)
            raise InputError(f"--own {resource}={share:g}: the file has {there} only{near}")
        if not 0 <= share <= 1:
            raise InputError(f"--own {resource}={share:g}: must be a share from 0 to 1")
    return dict(own)


def _nodes(sheet: Sheet, column: str) -> tuple[list[str], list[int]]:
    """What the node of each row is called, and its number."""
    names = sheet.column(column)
    if "" in names:
        raise sheet.wrong(names.index(""), column, "is empty; every row needs its node")
    if all(name.isascii() and name.isdigit() for name in names):
        return names, [int(name) for name in names]
    numbers = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return names, [numbers[name] for name in names]


def _times(sheet: Sheet, column: str) -> tuple[Floats, str]:
    """Seconds, and the earliest date where the column has dates."""
    import pandas as pd

    cells = sheet.column(column)
    try:
        float(cells[0])
    except ValueError:
        pass
    else:
        seconds = sheet.numbers(column)
        if seconds.max() >= EPOCH_IN_MILLISECONDS:
            raise sheet.wrong(int(seconds.argmax()), column, "is no time in seconds; milliseconds?")
        return seconds, ""
    dates = pd.to_datetime(pd.Series(cells), format="ISO8601", utc=True, errors="coerce")
    bad = dates.isna().to_numpy()
    if bad.any():
        raise sheet.wrong(
            int(bad.argmax()), column, "is neither seconds nor a date such as 2026-01-31T10:00:00"
        )
    since = np.asarray((dates - dates.min()).dt.total_seconds(), np.float64)
    return since, cells[int(since.argmin())]


def _values(sheet: Sheet, column: str, fraction: bool) -> Floats:
    value, most = sheet.numbers(column, gaps=True), 1.0 if fraction else 100.0
    wrong = (value < 0) | (value > most)
    if wrong.any():
        k = int(wrong.argmax())
        way_out = "percent need no --fraction" if fraction else "of several cores, take their mean"
        raise sheet.wrong(k, column, f"must lie between 0 and {most:g}; {way_out}")
    return value / most


def _taken(
    sheet: Sheet, found: Mapping[str, str], values: Mapping[str, Floats], node: list[int],
    time: Floats, shares: Mapping[str, float],
) -> Taken:  # fmt: skip
    """Rows of all resources, less the job's own share.

    Raises `InputError` for a second value of one node, resource and time, unless it is equal.
    """
    rows: list[tuple[float, int, str, str, float]] = []
    empty = twice = clipped = 0
    for resource, value in values.items():
        before: dict[tuple[int, float], float] = {}
        for k in np.argsort(time, kind="stable"):
            key, now = (node[k], float(time[k])), float(value[k])
            if math.isnan(now):
                empty += 1
            elif before.get(key, now) != now:
                raise sheet.wrong(
                    int(k), found[resource],
                    "is a second value of this node and time; several cards need a node each: "
                    "make a column of node and card, and name it, --column node=NAME",
                )  # fmt: skip
            elif key in before:
                twice += 1
            else:
                before[key] = now
                left = now - shares.get(resource, 0.0)
                clipped += left < 0
                rows.append((key[1], key[0], resource, NAME, max(left, 0.0)))
    return Taken(sorted(rows), empty, twice, clipped)


def _of_own(shares: Mapping[str, float], clipped: int) -> list[str]:
    if not shares:
        return [
            "Assumed: what is measured is the load by others; where the job itself was running, "
            "its own share is in it, and has to be subtracted."
        ]
    stated = ", ".join(f"{resource} {share:g}" for resource, share in shares.items())
    return [
        f"Assumed: of it the job itself uses a constant share ({stated}), which adds up with that "
        f"of others and is subtracted; {clipped} values below it are 0."
    ]


def _doubtful(highest: float, fraction: bool) -> list[str]:
    if fraction or not 0 < highest <= 0.01:
        return []
    return ["Doubtful: no value is above 1 percent; if they are fractions, say so."]
