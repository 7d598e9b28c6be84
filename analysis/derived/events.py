"""A run's moments as events of Chrome's JSON trace-event format, and the tracks they are on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simstrag.analysis.derived.decisions import headings, suspicions
from simstrag.analysis.derived.fates import Fate, fates_of
from simstrag.analysis.derived.moments import (
    DECISION,
    JOB,
    SUSPICION,
    UPDATE,
    Moments,
    micro,
    slowdowns,
)
from simstrag.analysis.derived.phases import KINDS, Phases
from simstrag.analysis.derived.waiting import Steps
from simstrag.runs.run import Run, plain
from simstrag.timing.timing import Timing

__all__ = [
    "ABOUT", "DECISIONS", "RANK_0", "RUN", "SERVER", "SLOWDOWN", "SUSPECTS", "SUSPECT_0",
    "UPDATES", "WORKERS", "Event", "counters", "of_decisions", "of_phases", "of_suspicions",
    "of_updates", "slice_of",
]  # fmt: skip

Event = dict[str, Any]

RUN, WORKERS, SUSPECTS, SLOWDOWN = 1, 2, 3, 4
"""Processes; to Perfetto 0 is the idle one."""
ABOUT, UPDATES, DECISIONS, SERVER = 11, 12, 13, 14
RANK_0, SUSPECT_0 = 1000, 1_000_000
"""Threads; no two have one number, or that of a process."""


def of_phases(run: Run, steps: Steps, phases: Phases, shown: Moments) -> Iterator[Event]:
    """What ranks and the server did: a slice each, lost work named apart."""
    fates = fates_of(run, steps, phases.step)
    switches = {True: "switch to amp", False: "switch to full"}
    for left, right, kind, row in zip(*(column.tolist() for column in shown), strict=True):
        if kind > JOB:
            continue
        fate, rank, step = fates[row], int(steps.rank[row]), int(phases.step[row])
        tid, assumed = RANK_0 + rank, ",order assumed" if phases.assumed[row] else ""
        if kind == JOB:
            args = _args(step=step, update=fate.update)
            yield slice_of(RUN, SERVER, left, right, f"rank {rank}", "service", args)
            continue
        name = KINDS[kind]
        if name == "compute":
            args = _args(step=step, version=int(steps.version[row]), update=fate.update)
            precision = "amp" if steps.amp[row] else "full"
            yield slice_of(WORKERS, tid, left, right, _named(precision, fate), fate.word, args)
        elif name == "wait":
            yield slice_of(WORKERS, tid, left, right, "waiting", f"waiting{assumed}", {})
        elif name == "switch":
            yield slice_of(WORKERS, tid, left, right, switches[bool(steps.amp[row])], "switch", {})
        elif name == "exchange":
            word, args = phases.exchange, _args(update=fate.update)
            word = "communication" if assumed else word
            yield slice_of(WORKERS, tid, left, right, word, f"communication{assumed}", args)
        else:
            yield slice_of(WORKERS, tid, left, right, name, "communication", {})


def _named(precision: str, fate: Fate) -> str:
    """Work that was thrown away has a name, and thus a colour, of its own."""
    return precision if fate.word in ("applied", "in flight") else f"{precision}, {fate.word}"


def of_updates(run: Run, shown: Moments) -> Iterator[Event]:
    """An instant per update."""
    updates = run.updates
    own = shown.kind == UPDATE
    for time, row in zip(shown.left[own].tolist(), shown.row[own].tolist(), strict=True):
        members = updates["members"][row]
        args = _args(
            version=updates["version"][row],
            members=len(members),
            ranks=" ".join(map(str, members)),
            gradients=updates["n_own"][row],
            staleness_mean=updates["staleness_mean"][row],
            staleness_max=updates["staleness_max"][row],
            samples=updates["samples"][row],
            progress=updates["progress"][row],
        )
        yield {
            "ph": "i", "s": "t", "pid": RUN, "tid": UPDATES, "ts": time,
            "name": f"update {args['version']}", "cat": "update", "args": args,
        }  # fmt: skip


def of_decisions(run: Run, shown: Moments, start: int) -> Iterator[Event]:
    """An instant per plan that decides something else, and for the one in force at the start."""
    if run.decisions is None:
        return
    times, names = micro(run.decisions["time"]), headings(run)
    rows = shown.row[shown.kind == DECISION].tolist()
    before = int(np.count_nonzero(times < start))
    if before:
        rows.insert(0, before - 1)
        names[before - 1] = f"in force since {run.decisions['time'][before - 1]:.6g} s"
    for row in rows:
        yield {
            "ph": "i", "s": "t", "pid": RUN, "tid": DECISIONS, "ts": max(int(times[row]), start),
            "name": names[row], "cat": "decision", "args": _decided(run.decisions, row),
        }  # fmt: skip


def _decided(decisions: Mapping[str, Sequence[Any]], row: int) -> dict[str, Any]:
    """One row of the decisions; without suspects where it judges nobody, without equal shares."""
    plan = {name: column[row] for name, column in decisions.items() if name != "time"}
    for name in ("suspects", "amp", "batch"):
        if plan[name] is not None:
            plan[name] = " ".join(f"{value:g}" for value in plan[name]) or "none"
    return _args(**plan)


def of_suspicions(run: Run, shown: Moments) -> Iterator[Event]:
    """A slice per stretch over which a rank was suspected, on a track of its own."""
    found = suspicions(run)
    own = shown.kind == SUSPICION
    columns = (column[own].tolist() for column in (shown.left, shown.right, shown.row))
    for left, right, row in zip(*columns, strict=True):
        args = _args(update=found[row].update)
        tid = SUSPECT_0 + found[row].rank
        yield slice_of(SUSPECTS, tid, left, right, "suspected", "suspicion", args)


def counters(timing: Timing | None, start: int, end: int) -> Iterator[Event]:
    """The slowdowns between two times in microseconds."""
    for rank, resource, time, factor in slowdowns(timing, start, end):
        yield {
            "ph": "C", "pid": SLOWDOWN, "tid": SLOWDOWN, "ts": time,
            "name": f"rank {rank}", "cat": "slowdown", "args": {resource: factor},
        }  # fmt: skip


def slice_of(
    pid: int, tid: int, left: int, right: int, name: str, cat: str, args: dict[str, Any]
) -> Event:
    """A slice of a track, from and to in microseconds."""
    event = {"ph": "X", "pid": pid, "tid": tid, "ts": left, "dur": right - left, "name": name}
    return event | {"cat": cat} | ({"args": args} if args else {})


def _args(**values: Any) -> dict[str, Any]:
    """What there is to say: JSON's own types, floats to six digits, nothing for None and NaN."""
    own = {name: value for name, value in plain(values).items() if value is not None}
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in own.items()}
