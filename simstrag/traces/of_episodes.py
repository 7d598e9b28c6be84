"""The trace of a record's episodes: when which host was slow, and by which factor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from simstrag.errors import InputError
from simstrag.records.columns import number
from simstrag.records.record import Record
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import STEPS, Labelled, contents, count_note, run_of, typical_step

NAME = "episodes"
FACTOR = 1.5
"""How many times as long steps take beside another job, where the record does not say; ASSUMED,
between no cost and an equal share of all that both use."""


def trace_of_episodes(
    record: Record,
    *,
    resource: str = "step",
    hosts: int | str | None = None,
    name: str = NAME,
    paths: Sequence[str | Path] = (),
) -> Labelled:
    """Slowdowns of one resource; where episodes of a node overlap, the larger factor counts.

    hosts: number of all hosts of the job, or their names with commas in between; those without an
        episode are never slowed.  Without it the number of workers is a placeholder, unless the
        record is of a whole job.
    Raises `InputError` for a record without episodes.
    """
    if not record.episodes:
        raise InputError(f"{record.source}: no episode, and so nothing that slows a node")
    numbers, names = number(record.nodes)
    is_known = hosts is not None or record.form != NAME
    unknown = sum(math.isnan(episode.factor) for episode in record.episodes)
    rows, overlaps = [], 0
    for place, node in enumerate(numbers):
        mine = [each for each in record.episodes if each.node == place]
        for moment in sorted({0.0} if not mine else {t for e in mine for t in (e.start, e.end)}):
            active = [each for each in mine if each.start <= moment < each.end]
            overlaps += len(active) > 1
            factors = [FACTOR if math.isnan(each.factor) else each.factor for each in active]
            rows.append((moment, node, resource, "slowdown", max(factors, default=1.0)))
    others = _others(hosts, set(numbers), names, record.source)
    rows += [(0.0, k, resource, "slowdown", 1.0) for k in others]
    names = names | {k: called for k, called in others.items() if called}
    last = max(record.episodes, key=lambda each: each.end)
    rows.append((last.end, numbers[last.node], resource, "slowdown", 1.0))
    trace = Trace.from_rows(sorted(set(rows)), record.source)
    assumed = (
        f"Assumed: beside another job a step takes {FACTOR:g} times as long ({unknown} of "
        f"{len(record.episodes)} episodes); the record does not say what they cost. A comparison "
        "varies the severity of slowdowns, but a factor is a placeholder until it is measured.",
    ) if unknown else ()  # fmt: skip
    return Labelled(
        replace(trace, names=names, began=record.began), name, contents(paths),
        notes=(
            *(
                ["Missing: hosts that were never slow. The number of workers is a placeholder, the "
                 f"{len(trace.nodes)} hosts with an episode; say how many there are in all, or "
                 "their names, with --hosts."]
                if not is_known
                else []
            ),
            *record.notes,
            *assumed,
            f"Assumed: all that an episode slows is resource {resource} (--resource).",
            *count_note(
                "Assumed",
                (overlaps, "times at which episodes of a node overlap: the larger factor counts"),
            ),
            *count_note("Derived", (len(others), "further hosts that are never slowed (--hosts)")),
            *(f"Missing: {each}." for each in record.missing),
            "Missing: what a step and communication cost.",
        ),
        cautions=assumed,
        scenario=(
            *(["placeholders: [workers]"] if not is_known else []),
            f"step: {{compute: {typical_step(trace.end):.6g}}}  # ASSUMED",
            *run_of(STEPS, len(trace.nodes)),
        ),
    )  # fmt: skip


def _others(
    hosts: int | str | None, slow: set[int], names: Mapping[int, str], source: str
) -> dict[int, str]:
    """The nodes of the hosts that are not in the record, with their names; "" for none."""
    if hosts is None:
        return {}
    known = {names.get(k, str(k)) for k in slow}
    listed = [name.strip() for name in str(hosts).split(",")]
    if len(listed) == 1 and listed[0].isdecimal():
        missing = [""] * (int(listed[0]) - len(slow))
        if int(listed[0]) < len(slow):
            raise InputError(f"--hosts {hosts}: {source} alone has {len(slow)}")
    else:
        if absent := sorted(known - {*listed}):
            raise InputError(
                f"--hosts {hosts}: {source} has {', '.join(absent)}, too; name all hosts "
                "of the job, with commas in between, or say how many they are"
            )
        missing = [name for name in dict.fromkeys(listed) if name not in known]
        if not names and all(name.isdecimal() for name in missing):
            return {int(name): "" for name in missing}
    free = (k for k in itertools.count() if k not in slow)
    return dict(zip(free, missing, strict=False))
