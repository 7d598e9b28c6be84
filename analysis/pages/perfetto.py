"""One run as a file for the Perfetto UI (https://ui.perfetto.dev), step by step.

Chrome's JSON trace-event format, with processes for groups of tracks and threads for tracks.
Times are whole microseconds, because releases of Perfetto differ in how they round fractions, and
touching slices could overlap.  Slices of a track never overlap, and are never cut at the ends of a
window.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag.analysis.derived import phase_intervals as derived
from simstrag.analysis.derived import steps as logs
from simstrag.analysis.derived.phase_intervals import Moments, Phases, micro
from simstrag.analysis.derived.steps import Fate, RunSteps, suspicions
from simstrag.errors import InputError
from simstrag.runs.run import Run, plain
from simstrag.timing.timing import Timing

Event = dict[str, Any]

RUN, WORKERS, SUSPECTS, SLOWDOWN = 1, 2, 3, 4
"""Processes; 0 is the idle process of Perfetto."""
ABOUT, UPDATES, DECISIONS, SERVER = 11, 12, 13, 14
RANK_0, SUSPECT_0 = 1000, 1_000_000
"""Threads; all numbers of threads and processes differ."""
MOST = 200_000
"""Most events in one file; the Perfetto UI is still fast with them."""


class TimelineFile(NamedTuple):
    """The contents of a file: events, the seconds it covers, and the steps that it leaves out.

    cut: whether it holds less than the window, which has more than `MOST` events.
    """

    events: int
    start: float
    end: float
    steps_left_out: int
    cut: bool


def write_timeline(
    run: Run, path: Path, timing: Timing | None, window: tuple[float, float] | None = None
) -> TimelineFile:
    """Write a run with its steps as a timeline; gzipped if the name ends in `.gz`.

    timing: what the run was simulated with, `scenario.timing(seed)`.  Without it there are no
    slowdowns, and of updates through a server no pushes, pulls and jobs.
    window: seconds from and to, all by default.  Of more than `MOST` events the stretch of so many
    is written in which the ranks waited longest, of equal ones the first.
    Raises `InputError` for a run without steps, an impossible window, and a file that cannot be
    written.

    >>> import tempfile
    >>> from simstrag import Scenario, simulate
    >>> scenario = Scenario(workers=2, updates=3, step={"compute": 0.1})
    >>> run = simulate(scenario, "bsp", record_steps=True, record_gradients=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_timeline(run, Path(folder) / "bsp.json.gz", scenario.timing(0))
    >>> written.steps_left_out, round(written.end, 6)
    (0, 0.3)
    """
    if run.excerpt is not None:
        raise InputError(
            f"a timeline needs every step, and the run of {run.policy} kept an excerpt of them; "
            "simulate it with record_steps=True"
        )
    if run.steps is None:
        raise InputError(
            "a timeline is made of steps, and this run kept none; "
            "simulate it with record_steps=True"
        )
    start, end = _clip(run, window)
    steps = logs.steps_of(run)
    phases = derived.phases_of(run, steps, timing)
    moments = derived.moments_of(run, phases, timing)
    names = list(_names(run, phases, timing))
    shown = moments.within(start, end)
    room = MOST - len(names) - _at_the_edges(run, timing)
    cut = len(shown.left) > room
    if cut:
        start, end = shown.most_waited(max(room, 1))
        shown = moments.within(start, end)
    first, last = micro(phases.marks[:, 0]), micro(phases.marks[:, -1])
    left_out, seconds = int(np.sum((last < start) | (first > end))), (start / 1e6, end / 1e6)
    about = _about(run, phases, timing, seconds, left_out)
    events = [
        *_phase_events(run, steps, phases, shown),
        *_update_events(run, shown),
        *_decision_events(run, shown, start),
        *_suspicion_events(run, shown),
        *_counters(timing, start, end),
        _slice(RUN, ABOUT, start, end, about["covers"], "about", about),
    ]
    events.sort(key=lambda event: (event["ts"], event["tid"], event["name"]))
    _write(Path(path), [*names, *events], about)
    return TimelineFile(len(names) + len(events), *seconds, left_out, cut)


def _at_the_edges(run: Run, timing: Timing | None) -> int:
    """Most events of a window that begin before it.

    A slice of each rank and of the server, each suspicion, the plan in force, the first value of
    each slowdown, and the note on the file.
    """
    changing = 0 if timing is None else len(timing.contention.slowdowns)
    return len(run.summary["compute_by_rank"]) + 1 + len(_suspected(run)) + 1 + changing + 1


def _suspected(run: Run) -> list[int]:
    """The ranks that were ever suspected."""
    return sorted({suspicion.rank for suspicion in suspicions(run)})


def _has_jobs(phases: Phases) -> bool:
    return not np.isnan(phases.served).all()


def _names(run: Run, phases: Phases, timing: Timing | None) -> Iterator[Event]:
    """Names and order of processes and threads."""
    threads = [(RUN, ABOUT, "about"), (RUN, UPDATES, "updates")]
    if run.decisions is not None:
        threads.append((RUN, DECISIONS, "decisions"))
    if _has_jobs(phases):
        threads.append((RUN, SERVER, "server"))
    ranks = range(len(run.summary["compute_by_rank"]))
    threads += [(WORKERS, RANK_0 + rank, f"rank {rank}") for rank in ranks]
    processes = [(RUN, RUN, f"{run.policy}, seed {run.seed}"), (WORKERS, WORKERS, "workers")]
    suspected = _suspected(run)
    if suspected:
        processes.append((SUSPECTS, SUSPECTS, "suspects"))
    threads += [(SUSPECTS, SUSPECT_0 + rank, f"rank {rank}") for rank in suspected]
    if timing is not None and timing.contention.slowdowns:
        processes.append((SLOWDOWN, SLOWDOWN, "slowdown"))
    for what, who in (("process", processes), ("thread", threads)):
        for pid, tid, name in who:
            for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": tid})):
                yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_{key}", "args": args}


def _clip(run: Run, window: tuple[float, float] | None) -> tuple[int, int]:
    """The part of a run that lies in a window of seconds, all without one, in microseconds.

    Raises `InputError` for a window that is empty or not in the run.
    """
    end = float(run.updates["time"][-1])
    low, high = (0.0, end) if window is None else window
    if window is not None and not low < high:
        raise InputError(f"the window {low:g} to {high:g} s must end after it begins")
    if high < 0 or low > end:
        raise InputError(f"the window {low:g} to {high:g} s is not in the run, 0 to {end:g} s")
    return int(micro(max(low, 0.0))), int(micro(min(high, end)))


# -- events -------------------------------------------------------------------------------------


def _phase_events(run: Run, steps: RunSteps, phases: Phases, shown: Moments) -> Iterator[Event]:
    """A slice for each activity of ranks and server; lost work has names of its own."""
    fates = logs.fates_of(run, steps, phases.step)
    switches = {True: "switch to amp", False: "switch to full"}
    for left, right, kind, row in zip(*(column.tolist() for column in shown), strict=True):
        if kind > derived.JOB:
            continue
        fate, rank, step = fates[row], int(steps.rank[row]), int(phases.step[row])
        tid, assumed = RANK_0 + rank, ",order assumed" if phases.assumed[row] else ""
        if kind == derived.JOB:
            args = _args(step=step, update=fate.update)
            yield _slice(RUN, SERVER, left, right, f"rank {rank}", "service", args)
            continue
        name = derived.KINDS[kind]
        if name == "compute":
            args = _args(step=step, version=int(steps.version[row]), update=fate.update)
            precision = "amp" if steps.amp[row] else "full"
            yield _slice(WORKERS, tid, left, right, _named(precision, fate), fate.word, args)
        elif name == "wait":
            yield _slice(WORKERS, tid, left, right, "waiting", f"waiting{assumed}", {})
        elif name == "switch":
            yield _slice(WORKERS, tid, left, right, switches[bool(steps.amp[row])], "switch", {})
        elif name == "exchange":
            word, args = phases.exchange, _args(update=fate.update)
            word = "communication" if assumed else word
            yield _slice(WORKERS, tid, left, right, word, f"communication{assumed}", args)
        else:
            yield _slice(WORKERS, tid, left, right, name, "communication", {})


def _named(precision: str, fate: Fate) -> str:
    """Discarded work has a name of its own, and thus a colour."""
    return precision if fate.word in ("applied", "in flight") else f"{precision}, {fate.word}"


def _update_events(run: Run, shown: Moments) -> Iterator[Event]:
    """An instant per update."""
    updates = run.updates
    own = shown.kind == derived.UPDATE
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


def _decision_events(run: Run, shown: Moments, start: int) -> Iterator[Event]:
    """An instant per changed plan, and for the plan in force at the start."""
    if run.decisions is None:
        return
    times, names = micro(run.decisions["time"]), logs.headings(run)
    rows = shown.row[shown.kind == derived.DECISION].tolist()
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
    """One row of the decisions, without absent suspects and without equal shares."""
    plan = {name: column[row] for name, column in decisions.items() if name != "time"}
    for name in ("suspects", "amp", "batch"):
        if plan[name] is not None:
            plan[name] = " ".join(f"{value:g}" for value in plan[name]) or "none"
    return _args(**plan)


def _suspicion_events(run: Run, shown: Moments) -> Iterator[Event]:
    """A slice per suspicion, on a track for each rank."""
    found = suspicions(run)
    own = shown.kind == derived.SUSPICION
    columns = (column[own].tolist() for column in (shown.left, shown.right, shown.row))
    for left, right, row in zip(*columns, strict=True):
        args = _args(update=found[row].update)
        tid = SUSPECT_0 + found[row].rank
        yield _slice(SUSPECTS, tid, left, right, "suspected", "suspicion", args)


def _counters(timing: Timing | None, start: int, end: int) -> Iterator[Event]:
    """The slowdowns between two times in microseconds."""
    for rank, resource, time, factor in derived.slowdowns(timing, start, end):
        yield {
            "ph": "C", "pid": SLOWDOWN, "tid": SLOWDOWN, "ts": time,
            "name": f"rank {rank}", "cat": "slowdown", "args": {resource: factor},
        }  # fmt: skip


def _slice(
    pid: int, tid: int, left: int, right: int, name: str, cat: str, args: dict[str, Any]
) -> Event:
    """A slice of a track, from and to in microseconds."""
    event = {"ph": "X", "pid": pid, "tid": tid, "ts": left, "dur": right - left, "name": name}
    return event | {"cat": cat} | ({"args": args} if args else {})


def _args(**values: Any) -> dict[str, Any]:
    """Arguments in the types of JSON: floats with six digits, None and NaN left out."""
    own = {name: value for name, value in plain(values).items() if value is not None}
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in own.items()}


# -- the file ----------------------------------------------------------------------------------


def _about(
    run: Run, phases: Phases, timing: Timing | None, seconds: tuple[float, float], left_out: int
) -> dict[str, Any]:
    """The note on the file: what it covers, leaves out and assumes."""
    n, assumed = len(phases.step), int(np.count_nonzero(phases.assumed))
    whole, way = float(run.updates["time"][-1]), run.summary["architecture"]
    absent = "left out: the timing of the run was not given"
    if run.recorded is not None:
        absent = "not known of a real run"
    notes = {}
    if assumed:
        notes["order"] = (
            f"after {assumed} of {n} steps it is not known in which order their rank waited and "
            "communicated; waiting is put first"
        )
    if _has_jobs(phases):
        notes["server"] = "its jobs are derived from the steps, and agree with the updates"
        if assumed:
            notes["server"] += "; those of steps without a known order are left out"
    elif "server" in way or "leader" in way:
        does_not_follow = "left out: its jobs do not follow from the steps"
        notes["server"] = absent if timing is None else does_not_follow
    if timing is None:
        notes["slowdown"] = absent
    elif timing.contention.durations:
        notes["slowdown"] = "not known of ranks whose steps were recorded with their durations"
    if run.decisions is None:
        notes["decisions"] = "an older version wrote the run, and kept neither plans nor suspects"
    return {
        "covers": f"{seconds[0]:.6g} to {seconds[1]:.6g} s of {whole:.6g} s",
        "steps": n - left_out,
        "steps_left_out": left_out,
        "policy": run.policy,
        "seed": run.seed,
        "architecture": way,
        **notes,
        "unfinished": "steps that still computed when the run ended are not recorded, not shown",
        "time": "whole microseconds; what is shorter than half of one is left out",
        "simstrag": run.provenance["simstrag"],
        "commit": run.provenance["commit"] or "not known",
    }


def _write(path: Path, events: Iterable[Event], about: dict[str, Any]) -> None:
    """Write one event per line, completely or not at all; equal events give equal bytes."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    head = json.dumps(about, indent=1)
    text = f'{{"displayTimeUnit":"ms",\n"metadata":{head},\n"traceEvents":[\n{lines}\n]}}\n'
    data = text.encode()
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
