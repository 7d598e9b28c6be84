"""Utilisation over time as exporters of metrics write it: a row per node and moment.

A utilisation says how busy a resource is, and not what that costs a step.  A response measured by
calibration does (`simstrag.profile.responses`).  Without one, the scenario may assume a law
(`contention.response`), and a comparison simulates both:

    fair-share   1 + u        step and load want the whole resource and share it fairly
    reciprocal   1 / (1 - u)  the load keeps what it takes, and the step gets the rest

Which of them is nearer depends on the scheduler; docs/formats/profile.md shows how far either may
be from a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.profile.responses import MOST, assume, law_of
from simstrag.trace.log_formats import LOADED, MEANINGS, NEEDED, SHARES, plain
from simstrag.trace.trace import RESOURCES, Trace
from simstrag.traces.gaps import describe_gaps
from simstrag.traces.log_columns import LogColumns
from simstrag.traces.log_table import LogTable
from simstrag.traces.provenance import STEPS, Labelled, contents, count_note, run_of, typical_step

NAME = "utilisation"
RESPONSES = {"fair-share": 1, "reciprocal": 2}
"""The `contention.response` of each law that may be assumed."""
Floats = npt.NDArray[np.float64]


def utilisation(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    fraction: bool | None = None,
    own: Mapping[str, float] | None = None,
    response: str | None = None,
) -> Labelled:
    """Rows of the resources gpu, host and net that have a column in a CSV file; see `of_table`."""
    return of_table(NAME, LogTable.read(path), path, columns, fraction, own, response)


def of_table(
    name: str,
    table: LogTable,
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    fraction: bool | None = None,
    own: Mapping[str, float] | None = None,
    response: str | None = None,
) -> Labelled:
    """Rows of kind `utilisation`, and with a `response` a scenario that assumes it.

    name: the format.
    columns: names of columns (node, time, card, resource) that are not known.
    fraction: whether values are 0 to 1; else they are percent, 0 to 100, unless the name is of a
        share.
    own: the job's own constant share (0 to 1) of a resource.  It is subtracted; results below 0
        become 0.  With a response it is the median of all cells unless stated.
    response: a word of `RESPONSES`.

    Errors are an `InputError` that names the row.
    """
    if response is not None and response not in RESPONSES:
        raise InputError(
            f"--response {response}: there is none{nearest(response, RESPONSES)}; "
            f"known: {', '.join(RESPONSES)}"
        )
    log = LogColumns.of(table, MEANINGS[NAME], columns, NEEDED[NAME])
    loads = {resource: _loads(log, resource, fraction) for resource in LOADED if resource in log}
    shares = dict(own or {})
    for resource, share in shares.items():
        if resource not in loads:
            near = nearest(resource, RESOURCES)
            there = ", ".join(loads)
            raise InputError(f"--own {resource}={share:g}: the file has {there} only{near}")
        if not 0 <= share <= 1:
            raise InputError(f"--own {resource}={share:g}: must be a share from 0 to 1")
    if response is not None:
        medians = {resource: float(np.nanmedian(cells)) for resource, cells in loads.items()}
        shares = medians | shares
    node, names = log.nodes()
    (time,), begin = log.times("time")
    rows: list[tuple[float, int, str, str, float]] = []
    empty = twice = clipped = 0
    for resource, cells in loads.items():
        before: dict[tuple[float, int], float] = {}
        for k in np.argsort(time, kind="stable").tolist():
            key, value = (float(time[k]), node[k]), float(cells[k])
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
                raise log.mistake(
                    k, resource,
                    "is a second value of this node and time; several cards need a node each: "
                    "name the column of their numbers, --column card=NAME",
                )  # fmt: skip
    hosts = [names.get(each, f"node {each}") for each in node]
    gaps = describe_gaps(_samples(hosts, time, loads.values()), "the load", "unloaded")
    highest = max(float(np.nanmax(cells, initial=0.0)) for cells in loads.values())
    unit = "as fractions" if all(_is_share(log, r, fraction) for r in loads) else "in percent"
    notes = (
        f"Measured: utilisation, {log.taken(*loads)}, {unit}; {log.taken('node', 'card', 'time')}.",
        f"Derived: time 0 is {begin} of the file.",
        _note_on_own(shares, own or {}, clipped),
        *(f"Missing: {gap}." for gap in gaps),
        *count_note("Missing", (empty, "empty cells, where the one before stays in force")),
        *count_note("Dropped", (twice, "cells given twice with the same value")),
        *(
            ["Doubtful: no value is above 1 percent; if they are fractions, say so."]
            if not fraction and 0 < highest <= 0.01
            else []
        ),
    )
    trace = replace(Trace.from_rows(sorted(rows), str(path)), names=names)
    unseen = tuple(_unseen(shares, own or {}))
    cautions = (*(f"The log of loads has {gap}." for gap in gaps), *unseen)
    if response is None:
        missing = (
            "Missing: what such a load costs a step. A scenario with this trace needs a profile "
            f"with a response of {' and '.join(loads)} (simstrag calibrate measures them), or an "
            "assumed one: --response fair-share."
        )
        return Labelled(trace, name, contents([path]), (*notes, missing))
    host = ", host_share: 0.2" if "host" in loads else ""
    step = f"{{compute: {typical_step(trace.end):.6g}{host}}}"
    return Labelled(
        trace, name, contents([path]),
        (*notes, *unseen, _note_on_response(response, np.array([row[-1] for row in rows]))),
        cautions,
        (
            f"contention: {{response: {RESPONSES[response]}}}  # --response {response}, ASSUMED",
            f"step: {step}  # ASSUMED", *run_of(STEPS, len(trace.nodes)),
        ),
    )  # fmt: skip


def _samples(
    hosts: list[str], time: Floats, loads: Iterable[Floats]
) -> Iterator[tuple[str, Floats]]:
    """The times at which each host has a value of each load."""
    for cells in loads:
        of_host: dict[str, list[float]] = {}
        for host, moment, value in zip(hosts, time.tolist(), cells.tolist(), strict=True):
            if not math.isnan(value):
                of_host.setdefault(host, []).append(moment)
        yield from ((host, np.array(moments)) for host, moments in of_host.items())


def _is_share(log: LogColumns, resource: str, fraction: bool | None) -> bool:
    return plain(log.names[resource]) in SHARES if fraction is None else fraction


def _loads(log: LogColumns, resource: str, fraction: bool | None) -> Floats:
    """Utilisations as fractions, NaN for an empty cell."""
    is_share = _is_share(log, resource, fraction)
    value, most = log.numbers(resource, gaps=True), 1.0 if is_share else 100.0
    wrong = (value < 0) | (value > most)
    if wrong.any():
        way_out = "percent need no --fraction" if is_share else "of several cores, take their mean"
        why = f"must lie between 0 and {most:g}; {way_out}"
        raise log.mistake(int(wrong.argmax()), resource, why)
    if np.isnan(value).all():
        raise log.mistake(0, resource, "is empty, like all cells of its column")
    return value / most


def _note_on_response(response: str, loads: Floats) -> str:
    """The assumed response, and what the other one makes of the same loads."""
    other = next(name for name in RESPONSES if name != response)
    slowed = {name: assume(law, loads) for name, law in RESPONSES.items()}
    means = {name: f"{each.mean():.3g} in the mean, {each.max():.3g} at most"
             for name, each in slowed.items()}  # fmt: skip
    return (
        f"Assumed: a load u slows a step by {law_of(RESPONSES[response])} ({response}): "
        f"{means[response]}. By {law_of(RESPONSES[other])} ({other}) it would be {means[other]}. "
        "Neither is measured: the scenario has the law (contention.response), and compare "
        f"simulates both. Loads above {MOST:g} count as {MOST:g}."
    )


def _unseen(shares: Mapping[str, float], given: Mapping[str, float]) -> Iterator[str]:
    """What is not seen where the job's own share is a median."""
    if assumed := [f"{each} {share:.4g}" for each, share in shares.items() if each not in given]:
        yield (
            f"Not seen: what loads all hosts at once for half of the log or more. It is taken as "
            f"the job's own share, which is ASSUMED to be the median of all hosts and times "
            f"({', '.join(assumed)}); --own states it."
        )


def _note_on_own(shares: Mapping[str, float], given: Mapping[str, float], clipped: int) -> str:
    if not shares:
        return (
            "Assumed: what is measured is the load by others; where the job itself was running, "
            "its own share is in it, and has to be subtracted."
        )
    stated = ", ".join(
        f"{resource} {share:.4g}" + ("" if resource in given else ", the median of all cells")
        for resource, share in shares.items()
    )
    cut = f"; {clipped} values below it are 0" if clipped else ""
    return (
        f"Assumed: of it the job itself uses a constant share ({stated}), which adds up with that "
        f"of others and is subtracted{cut}."
    )
