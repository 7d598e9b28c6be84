"""A list of episodes: when which host was slow, and by which factor."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError
from simstrag.records.log_columns import LogColumns, describe_moment, since, wall_clock
from simstrag.records.log_formats import MEANINGS
from simstrag.records.log_table import EMPTY, LogTable
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import STEPS, Labelled, contents, count_note, run_of, typical_step

NAME = "episodes"
AMOUNT, SIGN = r"(\d+(?:\.\d+)?)", "[x\N{MULTIPLICATION SIGN}]"
TIMES = re.compile(rf"{AMOUNT}\s*{SIGN}(?![a-z])|(?<![a-z]){SIGN}\s*{AMOUNT}", re.I)
SLOWER = re.compile(rf"{AMOUNT}\s*% slower", re.I)


def episodes(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    resource: str = "step",
    hosts: int | str | None = None,
) -> Labelled:
    """Slowdowns of one resource from a CSV file with a row per episode.

    columns: names of columns (start, end, node, factor, note) that are not known.
    hosts: number of all hosts of the job, or their names with commas in between; those that are
        not in the log are never slowed.  Without it the number of workers is a placeholder.

    An episode without an end lasts to the end of the log.  Where episodes of a node overlap, the
    larger factor counts.  Raises `InputError` that names the row.
    """
    needed = ("start", "end", "rank/node", "factor/note")
    log = LogColumns.of(LogTable.read(path), MEANINGS[NAME], columns, needed)
    node, names = log.nodes()
    ends, starts = log.cells("end"), log.cells("start")
    ongoing = [cell.lower() in EMPTY for cell in ends]
    ended = [s if open_ else e for s, e, open_ in zip(starts, ends, ongoing, strict=True)]
    table = replace(log.table, columns=log.table.columns | {log.names["end"]: ended})
    start, end = log.moments("start"), replace(log, table=table).moments("end")
    end = np.where(ongoing, max(start.max(), end.max()), end)
    first = starts[int(start.argmin())]
    begin, began = describe_moment(first), wall_clock(first, float(start.min()))
    start, end = since(start, start.min()), since(end, start.min())
    if np.any(end <= start):
        raise log.mistake(int(np.argmax(end <= start)), "end", "is not after the start")
    factors = _factors(log)
    rows, overlaps = [], 0
    for number in dict.fromkeys(node):
        mine = np.array(node) == number
        for moment in sorted({*start[mine].tolist(), *end[mine].tolist()}):
            active = mine & (start <= moment) & (moment < end)
            overlaps += bool(active.sum() > 1)
            value = float(factors[active].max(initial=1.0))
            rows.append((moment, number, resource, "slowdown", value))
    others = _others(hosts, set(node), names, log)
    rows += [(0.0, k, resource, "slowdown", 1.0) for k in others]
    names = names | {k: name for k, name in others.items() if name}
    rows.append((float(end.max()), node[int(end.argmax())], resource, "slowdown", 1.0))
    trace = replace(Trace.from_rows(sorted(set(rows)), str(path)), names=names, began=began)
    return Labelled(
        trace,
        NAME,
        contents([path]),
        notes=(
            *(
                ["Missing: hosts that were never slow. The number of workers is a placeholder, the "
                 f"{len(trace.nodes)} hosts with an episode; say how many there are in all, or "
                 "their names, with --hosts."]
                if hosts is None
                else []
            ),
            f"Measured: {len(node)} episodes of {len(trace.nodes)} nodes over {trace.end:g} s; "
            f"{log.taken()}.",
            f"Derived: time 0 is {begin} of the file, the first start.",
            f"Assumed: all that an episode slows is resource {resource} (--resource).",
            *count_note(
                "Assumed",
                (sum(ongoing), "episodes without an end last to the last start or end"),
                (overlaps, "times at which episodes of a node overlap: the larger factor counts"),
            ),
            *count_note("Derived", (len(others), "further hosts that are never slowed (--hosts)")),
            "Missing: what a step and communication cost.",
        ),
        scenario=(
            *(["placeholders: [workers]"] if hosts is None else []),
            f"step: {{compute: {typical_step(trace.end):.6g}}}  # ASSUMED",
            *run_of(STEPS, len(trace.nodes)),
        ),
    )  # fmt: skip


def _others(
    hosts: int | str | None, slow: set[int], names: Mapping[int, str], log: LogColumns
) -> dict[int, str]:
    """The nodes of the hosts that are not in the log, with their names; "" for none."""
    if hosts is None:
        return {}
    known = {names.get(k, str(k)) for k in slow}
    listed = [name.strip() for name in str(hosts).split(",")]
    if len(listed) == 1 and listed[0].isdecimal():
        missing = [""] * (int(listed[0]) - len(slow))
        if int(listed[0]) < len(slow):
            raise InputError(f"--hosts {hosts}: {log.table.source} alone has {len(slow)}")
    else:
        if absent := sorted(known - {*listed}):
            raise InputError(
                f"--hosts {hosts}: {log.table.source} has {', '.join(absent)}, too; name all hosts "
                "of the job, with commas in between, or say how many they are"
            )
        missing = [name for name in dict.fromkeys(listed) if name not in known]
        if not names and all(name.isdecimal() for name in missing):
            return {int(name): "" for name in missing}
    free = (k for k in itertools.count() if k not in slow)
    return dict(zip(free, missing, strict=False))


def _factors(log: LogColumns) -> npt.NDArray[np.float64]:
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
