"""Traces of quantities over time: of loads, and of the clocks of GPUs.

A utilisation says how busy a resource is, and not what that costs a step.  A response measured by
calibration does (`simstrag.profile.responses`).  Without one, the scenario may assume a law
(`contention.response`), and a comparison simulates both:

    fair-share   1 + u        step and load want the whole resource and share it fairly
    reciprocal   1 / (1 - u)  the load keeps what it takes, and the step gets the rest

Which of them is nearer depends on the scheduler; docs/formats/profile.md shows how far either may
be from a measurement.

A lower SM clock makes a step longer, by the ratio of clocks at most: kernels that wait for memory
lose less.  A comparison varies the severity of contention, and with it this bound.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag.arrays import Reals
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.profile.responses import MOST, assume, law_of
from simstrag.records.columns import LOADED, number
from simstrag.records.log_file import LogFile
from simstrag.records.prometheus import read as read_prometheus
from simstrag.records.record import GPU, HOST, SM_CLOCK, NodeSeries, Record
from simstrag.records.series import QUERY
from simstrag.records.utilisation import read as read_utilisation
from simstrag.trace.trace import RESOURCES, Trace
from simstrag.traces.clocks import LEAST_DROP, clocks_of
from simstrag.traces.gaps import SHOWN, describe_gaps
from simstrag.traces.jitter import MOST_JITTER, Levels, levels_of
from simstrag.traces.provenance import (
    STEPS,
    Labelled,
    contents,
    run_of,
    typical_step,
)

RESPONSES = {"fair-share": 1, "reciprocal": 2}
"""The `contention.response` of each law that may be assumed."""
LEAST_FALL = 0.05
"""By how much a GPU must be less busy than by the job alone to be said to wait."""


def trace_of_series(
    record: Record,
    *,
    own: Mapping[str, float] | None = None,
    response: str | None = None,
    paths: Sequence[str | Path] = (),
) -> Labelled:
    """The trace of a record's series, and the scenario that it can make.

    SM clocks slow the GPU, unless a response or an own share asks for utilisations.

    own: the job's own constant share (0 to 1) of a resource.  It is subtracted; results below 0
        become 0.  With a response it is the median of all cells unless stated.
    response: a word of `RESPONSES`, by which the scenario takes loads to slow a step.
    paths: the files of the record.

    Raises `InputError` for a record without such series.
    """
    if response is not None and response not in RESPONSES:
        raise InputError(
            f"--response {response}: there is none{nearest(response, RESPONSES)}; "
            f"known: {', '.join(RESPONSES)}"
        )
    sources = contents(paths)
    loads = {each.quantity: each for each in record.series if each.quantity in LOADED}
    if record.series_of(SM_CLOCK) is not None and not own and (response is None or not loads):
        return trace_of_clocks(record, sources)
    if not loads:
        has = ", ".join(each.quantity for each in record.series) or "no series"
        raise InputError(
            f"{record.source}: has {has}, of which no slowdown follows; log clocks or utilisation, "
            f"as by {QUERY}"
        )
    shares = dict(own or {})
    for resource, share in shares.items():
        if resource not in loads:
            near = nearest(resource, RESOURCES)
            there = ", ".join(loads)
            raise InputError(f"--own {resource}={share:g}: the file has {there} only{near}")
        if not 0 <= share <= 1:
            raise InputError(f"--own {resource}={share:g}: must be a share from 0 to 1")
    nodes, names = number(record.nodes)
    found = {resource: _measure(series) for resource, series in loads.items()}
    if response is not None:
        medians = {resource: float(np.median(load.level)) for resource, load in found.items()}
        shares = medians | shares
    others = {resource: load.beyond(shares.get(resource)) for resource, load in found.items()}
    rows = [
        (moment, nodes[node], resource, "utilisation", max(value, 0.0))
        for resource, series in loads.items()
        for node, moment, value in zip(
            series.node.tolist(), series.time.tolist(), others[resource].tolist(), strict=True
        )
    ]
    clipped = sum(int((values < 0).sum()) for values in others.values())
    hosts = [names.get(each, f"node {each}") for each in nodes]
    gaps = describe_gaps(_samples(hosts, loads.values()), "the load", "unloaded")
    first = [note for note in record.notes if note.startswith(("Measured", "Derived"))]
    notes = (
        *first,
        _note_on_own(shares, own or {}, clipped),
        *(note for resource, load in found.items() for note in _notes_on_jitter(resource, load)),
        *(f"Missing: {gap}." for gap in gaps),
        *(note for note in record.notes if note not in first),
    )
    trace = replace(Trace.from_rows(sorted(rows), record.source), names=names, began=record.began)
    unseen = (
        *_unseen(shares, own or {}),
        *(_waits(hosts, loads[GPU], others[GPU]) if GPU in shares else ()),
    )
    cautions = (*(f"The log of loads has {gap}." for gap in gaps), *unseen)
    if response is None:
        missing = (
            "Missing: what such a load costs a step. A scenario with this trace needs a profile "
            f"with a response of {' and '.join(loads)} (simstrag calibrate measures them), or an "
            "assumed one: --response fair-share."
        )
        return Labelled(trace, record.form, sources, (*notes, missing))
    host = ", host_share: 0.2" if HOST in loads else ""
    step = f"{{compute: {typical_step(trace.end):.6g}{host}}}"
    return Labelled(
        trace, record.form, sources,
        (*notes, *unseen, _note_on_response(response, np.array([row[-1] for row in rows]))),
        cautions,
        (
            f"contention: {{response: {RESPONSES[response]}}}  # --response {response}, ASSUMED",
            f"step: {step}  # ASSUMED", *run_of(STEPS, len(trace.nodes)),
        ),
    )  # fmt: skip


def _of_files(read: Callable[..., Record], *paths: str | Path, **options: Any) -> Labelled:
    """The trace of the series in files of one format."""
    reading = {name: options.pop(name) for name in ("columns", "fraction") if name in options}
    record = read([LogFile.open(path) for path in paths], **reading)
    return trace_of_series(record, paths=paths, **options)


utilisation = functools.partial(_of_files, read_utilisation)
prometheus = functools.partial(_of_files, read_prometheus)


def trace_of_clocks(record: Record, sources: tuple[tuple[str, str], ...]) -> Labelled:
    """Slowdowns of GPUs by the ratio of SM clocks, and the scenario that runs them.

    Raises `InputError` where no card is at load.
    """
    cards = clocks_of(record)
    nodes, names = number(record.nodes)
    if not cards:
        raise InputError(
            f"{record.source}: no GPU is at load for long enough to tell its usual clock"
        )
    rows = [
        (moment, nodes[card.node], GPU, "slowdown", factor)
        for card in cards
        for moment, factor in card.slowdowns()
    ]
    slowest = max(row[-1] for row in rows)
    first = [note for note in record.notes if note.startswith(("Measured", "Derived"))]
    bound = (
        "Assumed: steps last as much longer as SM clocks are lower. This is an upper bound: "
        "kernels that wait for memory lose less. compare varies it (contention.severity)."
    )
    notes = (
        *first,
        f"Derived: a GPU is slow where its SM clock at load is {100 * LEAST_DROP:g}% or more below "
        f"its usual one or that of the fastest cards (simstrag/traces/clocks.py), at most "
        f"{slowest:.3g} times.",
        bound,
        *(note for note in record.notes if note not in first),
    )
    trace = replace(Trace.from_rows(sorted(rows), record.source), names=names, began=record.began)
    nothing = ("No GPU's clock falls: the trace slows nothing.",) if slowest == 1 else ()
    return Labelled(
        trace, record.form, sources, notes, (*nothing, bound),
        (
            "contention: {severity: 1}  # ASSUMED, an upper bound: slowdowns are ratios of clocks",
            f"step: {{compute: {typical_step(trace.end):.6g}}}  # ASSUMED",
            *run_of(STEPS, len(trace.nodes)),
        ),
    )  # fmt: skip


def _samples(hosts: list[str], loads: Iterable[NodeSeries]) -> Iterator[tuple[str, Reals]]:
    """The times at which each host has a value of each load."""
    for load in loads:
        yield from (
            (hosts[node], load.of_node(node)[0]) for node in dict.fromkeys(load.node.tolist())
        )


class _Load(NamedTuple):
    """A resource's loads in order of node and time.

    level, error: of each cell, as in `jitter.Levels`.
    hosts: the levels of each host.
    moved: samples that differ from their level.
    """

    level: Reals
    error: Reals
    hosts: list[Levels]
    moved: int

    def beyond(self, own: float | None) -> Reals:
        """The load by others; what differs from the job's own by jitter alone is none."""
        if own is None:
            return self.level
        load = self.level - own
        return np.where(np.abs(load) <= self.error, 0.0, load)


def _measure(load: NodeSeries) -> _Load:
    """The levels of a resource."""
    hosts = levels_of(np.split(load.value, np.flatnonzero(np.diff(load.node)) + 1))
    level, error = (np.concatenate([host[k] for host in hosts]) for k in (0, 1))
    return _Load(level, error, hosts, int((level != load.value).sum()))


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


def _waits(hosts: list[str], series: NodeSeries, load: Reals) -> Iterator[str]:
    """Where GPUs are less busy than the job alone makes them."""
    is_low = load <= -LEAST_FALL
    node, time = series.node, series.time
    of_host: dict[str, list[tuple[float, float]]] = {}
    for (place, low), group in itertools.groupby(
        range(len(load)), lambda k: (int(node[k]), bool(is_low[k]))
    ):
        places = list(group)
        if low:
            end = min(places[-1] + 1, len(load) - 1)
            last = end if node[end] == place else places[-1]
            stretch = float(time[places[0]]), float(time[last])
            of_host.setdefault(hosts[place], []).append(stretch)
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


def _note_on_response(response: str, loads: Reals) -> str:
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
