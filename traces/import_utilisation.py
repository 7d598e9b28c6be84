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

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.profile.responses import MOST, assume, law_of
from simstrag.records.log_columns import LogColumns
from simstrag.records.log_formats import LOADED, MEANINGS, NEEDED, SHARES, plain
from simstrag.records.log_table import LogTable
from simstrag.trace.trace import RESOURCES, Trace
from simstrag.traces.gaps import SHOWN, describe_gaps
from simstrag.traces.jitter import MOST_JITTER, Levels, levels_of
from simstrag.traces.provenance import STEPS, Labelled, contents, count_note, run_of, typical_step

NAME = "utilisation"
RESPONSES = {"fair-share": 1, "reciprocal": 2}
"""The `contention.response` of each law that may be assumed."""
LEAST_FALL = 0.05
"""By how much a GPU must be less busy than by the job alone to be said to wait."""
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


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
    node, names = log.nodes()
    (time,), begin, began = log.times("time")
    found = {resource: _measure(log, resource, node, time, loads[resource]) for resource in loads}
    if response is not None:
        medians = {resource: float(np.median(load.level)) for resource, load in found.items()}
        shares = medians | shares
    others = {resource: load.beyond(shares.get(resource)) for resource, load in found.items()}
    rows = [
        (float(time[k]), node[k], resource, NAME, max(value, 0.0))
        for resource, values in others.items()
        for k, value in zip(found[resource].cells.tolist(), values.tolist(), strict=True)
    ]
    empty = sum(int(np.isnan(cells).sum()) for cells in loads.values())
    twice = sum(len(cells) for cells in loads.values()) - empty - len(rows)
    clipped = sum(int((values < 0).sum()) for values in others.values())
    hosts = [names.get(each, f"node {each}") for each in node]
    gaps = describe_gaps(_samples(hosts, time, loads.values()), "the load", "unloaded")
    highest = max(float(np.nanmax(cells, initial=0.0)) for cells in loads.values())
    unit = "as fractions" if all(_is_share(log, r, fraction) for r in loads) else "in percent"
    notes = (
        f"Measured: utilisation, {log.taken(*loads)}, {unit}; {log.taken('node', 'card', 'time')}.",
        f"Derived: time 0 is {begin} of the file.",
        _note_on_own(shares, own or {}, clipped),
        *(note for resource, load in found.items() for note in _notes_on_jitter(resource, load)),
        *(f"Missing: {gap}." for gap in gaps),
        *count_note("Missing", (empty, "empty cells, where the one before stays in force")),
        *count_note("Dropped", (twice, "cells given twice with the same value")),
        *(
            ["Doubtful: no value is above 1 percent; if they are fractions, say so."]
            if not fraction and 0 < highest <= 0.01
            else []
        ),
    )
    trace = replace(Trace.from_rows(sorted(rows), str(path)), names=names, began=began)
    unseen = (
        *_unseen(shares, own or {}),
        *(_waits(hosts, time, found["gpu"].cells, others["gpu"]) if "gpu" in shares else ()),
    )
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


class _Load(NamedTuple):
    """A resource's loads in order of node and time.

    cells: places in the log, each node and time once, without empty cells.
    level, error: of each cell, as in `jitter.Levels`.
    hosts: the levels of each host.
    moved: samples that differ from their level.
    """

    cells: Places
    level: Floats
    error: Floats
    hosts: list[Levels]
    moved: int

    def beyond(self, own: float | None) -> Floats:
        """The load by others; what differs from the job's own by jitter alone is none."""
        if own is None:
            return self.level
        load = self.level - own
        return np.where(np.abs(load) <= self.error, 0.0, load)


def _measure(log: LogColumns, resource: str, node: list[int], time: Floats, cells: Floats) -> _Load:
    """The levels of a resource. Raises `InputError` for two values of one node and time."""
    nodes = np.array(node)
    order = np.lexsort((time, nodes))
    order = order[~np.isnan(cells[order])]
    nodes, values = nodes[order], cells[order]
    is_other = np.diff(nodes) != 0
    is_new = is_other | (np.diff(time[order]) != 0)
    differs = ~is_new & (np.diff(values) != 0)
    if differs.any():
        first, second = sorted(order[int(differs.argmax()) :][:2].tolist())
        raise log.mistake(
            second, resource,
            f"is a second value of this node and time, which {log.table.unit} "
            f"{log.table.lines[first]} has as '{log.cells(resource)[first]}'; several cards need a "
            "node each: name the column of their numbers, --column card=NAME",
        )  # fmt: skip
    once = np.append(True, is_new)
    order, values, nodes = order[once], values[once], nodes[once]
    hosts = levels_of(np.split(values, np.flatnonzero(np.diff(nodes)) + 1))
    level, error = (np.concatenate([host[k] for host in hosts]) for k in (0, 1))
    return _Load(order, level, error, hosts, int((level != values).sum()))


def _notes_on_jitter(resource: str, load: _Load) -> Iterator[str]:
    if load.moved:
        jitter = float(np.median([host.scale for host in load.hosts if host.least]))
        least = max(host.least for host in load.hosts)
        few, many = (100 * least / math.sqrt(m) for m in (10, 100))
        yield (
            f"Assumed: jitter of {100 * jitter:.2g} points of {resource} is noise; {load.moved:,} "
            "samples within it have the mean between two changes of the load. A load is seen from "
            f"{few:.2g} points on if it lasts 10 samples, from {many:.2g} if 100 "
            "(simstrag/traces/jitter.py has the rule)."
        )
    if wild := sum(MOST_JITTER < host.scale < math.inf for host in load.hosts):
        yield (
            f"Doubtful: on {wild} hosts {resource} changes by more than {100 * MOST_JITTER:g} "
            "points between most samples; all of it is taken as load, and none as jitter."
        )


def _waits(hosts: list[str], time: Floats, cells: Places, load: Floats) -> Iterator[str]:
    """Where GPUs are less busy than the job alone makes them."""
    is_low = load <= -LEAST_FALL
    names = [hosts[k] for k in cells.tolist()]
    of_host: dict[str, list[tuple[float, float]]] = {}
    for (name, low), group in itertools.groupby(
        range(len(cells)), lambda k: (names[k], bool(is_low[k]))
    ):
        places = list(group)
        if low:
            end = min(places[-1] + 1, len(cells) - 1)
            last = end if names[end] == name else places[-1]
            stretch = float(time[cells[places[0]]]), float(time[cells[last]])
            of_host.setdefault(name, []).append(stretch)
    if of_host:
        said = [
            f"{name} ({f'{len(found)} times ' if len(found) > 1 else ''}from {found[0][0]:g} s to "
            f"{found[-1][1]:g} s)"
            for name, found in itertools.islice(of_host.items(), SHOWN)
        ]
        rest = [f"{len(of_host) - SHOWN} more hosts"] if len(of_host) > SHOWN else []
        yield (
            f"Not seen: what the GPU waits for on {', '.join(said + rest)}. It is less busy there "
            f"than the job's own share by {100 * LEAST_FALL:g} points or more: this is no "
            "contention of the GPU but a wait for something else, for the host, the network or "
            "ranks at a barrier, and counts as no load. A log of steps shows it "
            "(simstrag trace import steps)."
        )


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
