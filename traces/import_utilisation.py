"""Utilisation over time as exporters of metrics write it: a CSV row per node and moment.

Sources of the known names: `DCGM_FI_DEV_GPU_UTIL` of NVIDIA's dcgm-exporter, `utilization.gpu [%]`
of `nvidia-smi --query-gpu=timestamp,utilization.gpu --format=csv`, and the usual names of columns
in exports of node exporters' rates.  Case and punctuation do not matter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.trace.trace import RESOURCES, Trace
from simstrag.traces.csv_table import CsvTable
from simstrag.traces.provenance import Labelled, contents, count_note

NAME = "utilisation"
LOADED = ("gpu", "host", "net")
ALIASES = {
    "node": ("node", "nodename", "hostname", "instance", "machine", "server"),
    "time": ("time", "timestamp", "date", "datetime", "seconds"),
    "gpu": ("gpu", "gpuutil", "gpuutilization", "utilizationgpu", "dcgmfidevgpuutil"),
    "host": ("cpu", "cpuutil", "cpuutilization", "cpuusage", "cpupercent", "cpubusy"),
    "net": ("net", "network", "nic", "netutil", "networkutilization", "nicutil"),
}
"""Known names of columns, in small letters and digits only."""
EPOCH_IN_MILLISECONDS = 1e11
"""Seconds since 1970 reach this number in the year 5138."""
Floats = npt.NDArray[np.float64]


def utilisation(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    fraction: bool = False,
    own: Mapping[str, float] | None = None,
) -> Labelled:
    """Rows of kind `utilisation` of the resources gpu, host and net that have a column.

    columns: names of columns (node, time, resource) that are not in `ALIASES`.
    fraction: whether values are 0 to 1; else they are percent, 0 to 100.
    own: the job's own constant share (0 to 1) of a resource.  It is subtracted; results below 0
        become 0.

    Times are seconds, or dates in ISO 8601, and count from the earliest.  Whole numbers of nodes
    stay as they are; names are numbered in their order.  At an empty cell the value before stays in
    force.  Errors are an `InputError` that names the row.
    """
    table = CsvTable.read(path)
    column_of, shares = _columns(table, columns or {}), dict(own or {})
    for resource, share in shares.items():
        if resource not in LOADED or resource not in column_of:
            there = ", ".join(name for name in LOADED if name in column_of)
            near = nearest(resource, RESOURCES)
            raise InputError(f"--own {resource}={share:g}: the file has {there} only{near}")
        if not 0 <= share <= 1:
            raise InputError(f"--own {resource}={share:g}: must be a share from 0 to 1")
    names, node = _nodes(table, column_of["node"])
    time, dated = _times(table, column_of["time"])
    begin = float(time.min())
    values = {
        resource: _values(table, column_of[resource], fraction)
        for resource in LOADED
        if resource in column_of
    }
    rows: list[tuple[float, int, str, str, float]] = []
    empty = twice = clipped = 0
    for resource, cells in values.items():
        before: dict[tuple[float, int], float] = {}
        for k in np.argsort(time, kind="stable").tolist():
            key, value = (float(time[k]) - begin, node[k]), float(cells[k])
            if math.isnan(value):
                empty += 1
            elif key not in before:
                before[key] = value
                load = value - shares.get(resource, 0.0)
                clipped += load < 0
                rows.append((*key, resource, NAME, max(load, 0.0)))
            elif before[key] == value:
                twice += 1
            else:
                raise table.mistake(
                    k, column_of[resource],
                    "is a second value of this node and time; several cards need a node each: "
                    "make a column of node and card, and name it, --column node=NAME",
                )  # fmt: skip
    trace, called = Trace.from_rows(sorted(rows), str(path)), dict(zip(node, names, strict=True))
    used = ", ".join(f"{resource} from column '{column_of[resource]}'" for resource in values)
    highest = max(float(np.nanmax(cells, initial=0.0)) for cells in values.values())
    return Labelled(
        trace,
        NAME,
        contents([path]),
        notes=(
            f"Measured: utilisation, {used}, {'as fractions' if fraction else 'in percent'}.",
            f"Derived: time 0 is {dated if dated else f'{begin:.10g} s'} of the file.",
            _note_on_own(shares, clipped),
            *count_note("Missing", (empty, "empty cells, where the one before stays in force")),
            "Missing: what such a load costs a step. A scenario with this trace needs a profile "
            f"with a response of {' and '.join(values)} (simstrag calibrate measures them).",
            *count_note("Dropped", (twice, "cells given twice with the same value")),
            *(
                ["Doubtful: no value is above 1 percent; if they are fractions, say so."]
                if not fraction and 0 < highest <= 0.01
                else []
            ),
        ),
        names=tuple(called[k] for k in trace.nodes),
    )


def _columns(table: CsvTable, stated: Mapping[str, str]) -> dict[str, str]:
    """The column of the node, the time and each resource: as stated, else by a known name."""
    for meaning, name in stated.items():
        if meaning not in ALIASES:
            raise InputError(
                f"--column {meaning}={name}: there is no '{meaning}'{nearest(meaning, ALIASES)}; "
                f"allowed: {', '.join(ALIASES)}"
            )
        table.column(name)
    column_of = dict(stated)
    plain = {name: re.sub(r"[^a-z0-9]", "", name.lower()) for name in table.columns}
    for meaning, aliases in ALIASES.items():
        known = [] if meaning in stated else [n for n in table.columns if plain[n] in aliases]
        if len(known) > 1:
            raise InputError(
                f"{table.source}: columns '{known[0]}' and '{known[1]}' may both be the "
                f"{meaning}; say which: --column {meaning}={known[0]}"
            )
        if known:
            column_of[meaning] = known[0]
    there = ", ".join(table.columns)
    for meaning in ("node", "time"):
        if meaning not in column_of:
            raise InputError(
                f"{table.source}: no column is known to be the {meaning}; say which: "
                f"--column {meaning}=NAME; it has {there}"
            )
    if not set(column_of) & set(LOADED):
        raise InputError(
            f"{table.source}: no column is known to be a utilisation; say which: "
            f"--column gpu=NAME, host=NAME or net=NAME; it has {there}"
        )
    return column_of


def _nodes(table: CsvTable, column: str) -> tuple[list[str], list[int]]:
    """Name and number of the node of each row."""
    import pandas as pd

    names = table.column(column)
    if "" in names:
        raise table.mistake(names.index(""), column, "is empty; every row needs its node")
    if all(name.isascii() and name.isdigit() for name in names):
        return names, [int(name) for name in names]
    return names, pd.factorize(np.array(names, object))[0].tolist()


def _times(table: CsvTable, column: str) -> tuple[Floats, str]:
    """Seconds, and the earliest date of a column of dates."""
    import pandas as pd

    cells = table.column(column)
    try:
        float(cells[0])
    except ValueError:
        dates = pd.to_datetime(pd.Series(cells), format="ISO8601", utc=True, errors="coerce")
        bad = dates.isna().to_numpy()
        if bad.any():
            why = "is neither seconds nor a date such as 2026-01-31T10:00:00"
            raise table.mistake(int(bad.argmax()), column, why) from None
        since = np.asarray((dates - dates.min()).dt.total_seconds(), np.float64)
        return since, cells[int(since.argmin())]
    seconds = table.numbers(column)
    if seconds.max() >= EPOCH_IN_MILLISECONDS:
        raise table.mistake(int(seconds.argmax()), column, "is no time in seconds; milliseconds?")
    return seconds, ""


def _values(table: CsvTable, column: str, fraction: bool) -> Floats:
    """Utilisations as fractions, NaN for an empty cell."""
    value, most = table.numbers(column, gaps=True), 1.0 if fraction else 100.0
    wrong = (value < 0) | (value > most)
    if wrong.any():
        way_out = "percent need no --fraction" if fraction else "of several cores, take their mean"
        why = f"must lie between 0 and {most:g}; {way_out}"
        raise table.mistake(int(wrong.argmax()), column, why)
    return value / most


def _note_on_own(shares: Mapping[str, float], clipped: int) -> str:
    if not shares:
        return (
            "Assumed: what is measured is the load by others; where the job itself was running, "
            "its own share is in it, and has to be subtracted."
        )
    stated = ", ".join(f"{resource} {share:g}" for resource, share in shares.items())
    cut = f"; {clipped} values below it are 0" if clipped else ""
    return (
        f"Assumed: of it the job itself uses a constant share ({stated}), which adds up with that "
        f"of others and is subtracted{cut}."
    )
