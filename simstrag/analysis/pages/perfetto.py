"""One run as a file for the Perfetto UI (https://ui.perfetto.dev), step by step.

Chrome's JSON trace-event format, with processes for groups of tracks and threads for tracks.
Times are whole microseconds, because releases of Perfetto differ in how they round fractions, and
touching slices could overlap.  Slices of a track never overlap, and are never cut at the ends of a
window.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag.analysis.derived import phase_intervals as derived
from simstrag.analysis.derived import steps as logs
from simstrag.analysis.derived.phase_intervals import Moments, Phases, micro
from simstrag.analysis.derived.steps import RunSteps, Suspicion, suspicions
from simstrag.documents.file_io import write_atomically
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

    timing: the timing of the simulation, `scenario.timing(seed)`.  Without it there are no
    slowdowns, and no pushes, pulls and jobs of a server.
    window: seconds from and to, all by default.  If there are more than `MOST` events, only the
    stretch of `MOST` events with the most waiting is written; the first of equals.
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
    whole = float(run.updates["time"][-1])
    low, high = (0.0, whole) if window is None else window
    if window is not None and not low < high:
        raise InputError(f"the window {low:g} to {high:g} s must end after it begins")
    if high < 0 or low > whole:
        raise InputError(f"the window {low:g} to {high:g} s is not in the run, 0 to {whole:g} s")
    start, end = int(micro(max(low, 0.0))), int(micro(min(high, whole)))
    steps = logs.steps_of(run)
    phases = derived.phases_of(run, steps, timing)
    moments = derived.moments_of(run, phases, timing)
    held = suspicions(run)
    suspected = sorted({suspicion.rank for suspicion in held})
    names = list(_names(run, phases, timing, suspected))
    shown = moments.within(start, end)
    # Events that begin before a window: a slice of each rank and of the server, each suspicion, the
    # plan in force, the first value of each slowdown, and the note on the file.
    changing = 0 if timing is None else len(timing.contention.slowdowns)
    at_the_edges = len(run.summary["compute_by_rank"]) + len(suspected) + changing + 3
    room = MOST - len(names) - at_the_edges
    cut = len(shown.left) > room
    if cut:
        start, end = shown.most_waited(max(room, 1), start)
        shown = moments.within(start, end)
    first, last = micro(phases.marks[:, 0]), micro(phases.marks[:, -1])
    left_out, seconds = int(np.sum((last < start) | (first > end))), (start / 1e6, end / 1e6)
    about = _about(run, phases, timing, seconds, left_out)
    events = [
        *_phase_events(run, steps, phases, shown),
        *_run_events(run, held, shown, start),
        *(
            {
                "ph": "C", "pid": SLOWDOWN, "tid": SLOWDOWN, "ts": int(micro(change.time)),
                "name": f"rank {change.rank}", "cat": "slowdown",
                "args": {change.resource: change.after},
            }
            for change in ([] if timing is None else derived.slowdown_changes(
                timing.contention, start / 1e6, end / 1e6
            ))
        ),
        _slice(RUN, ABOUT, start, end, about["covers"], "about", about),
    ]  # fmt: skip
    events.sort(key=lambda event: (event["ts"], event["tid"], event["name"]))
    _write(Path(path), [*names, *events], about)
    return TimelineFile(len(names) + len(events), *seconds, left_out, cut)


def _names(
    run: Run, phases: Phases, timing: Timing | None, suspected: Sequence[int]
) -> Iterator[Event]:
    threads = [(RUN, ABOUT, "about"), (RUN, UPDATES, "updates")]
    if run.decisions is not None:
        threads.append((RUN, DECISIONS, "decisions"))
    if phases.has_jobs:
        threads.append((RUN, SERVER, "server"))
    ranks = range(len(run.summary["compute_by_rank"]))
    threads += [(WORKERS, RANK_0 + rank, f"rank {rank}") for rank in ranks]
    threads += [(SUSPECTS, SUSPECT_0 + rank, f"rank {rank}") for rank in suspected]
    processes = [(RUN, RUN, f"{run.policy}, seed {run.seed}"), (WORKERS, WORKERS, "workers")]
    if suspected:
        processes.append((SUSPECTS, SUSPECTS, "suspects"))
    if timing is not None and timing.contention.slowdowns:
        processes.append((SLOWDOWN, SLOWDOWN, "slowdown"))
    for what, who in (("process", processes), ("thread", threads)):
        for pid, tid, name in who:
            for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": tid})):
                yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_{key}", "args": args}


# -- events -------------------------------------------------------------------------------------


def _phase_events(run: Run, steps: RunSteps, phases: Phases, shown: Moments) -> Iterator[Event]:
    """A slice for each activity of ranks and server; lost work has names of its own."""
    fates = logs.fates_of(run, steps)
    for left, right, kind, row in zip(*(column.tolist() for column in shown), strict=True):
        if kind > derived.JOB:
            continue
        fate, rank, step = fates[row], int(steps.rank[row]), int(steps.step[row])
        assumed = ",order assumed" if phases.assumed[row] else ""
        amp = bool(steps.amp[row])
        name = "service" if kind == derived.JOB else derived.KINDS[kind]
        pid, tid, word, category, args = WORKERS, RANK_0 + rank, name, "communication", {}
        if name == "service":
            pid, tid, word, category = RUN, SERVER, f"rank {rank}", name
            args = _args(step=step, update=fate.update)
        elif name == "compute":
            word, category = "amp" if amp else "full", fate.word
            if fate.word not in ("applied", "in flight"):  # a name of its own, and thus a colour
                word += f", {fate.word}"
            args = _args(step=step, version=int(steps.version[row]), update=fate.update)
        elif name == "wait":
            word, category = "waiting", f"waiting{assumed}"
        elif name == "switch":
            word, category = f"switch to {'amp' if amp else 'full'}", "switch"
        elif name == "exchange":
            word, category = phases.word(row, kind), f"communication{assumed}"
            args = _args(update=fate.update)
        yield _slice(pid, tid, left, right, word, category, args)


def _run_events(run: Run, held: Sequence[Suspicion], shown: Moments, start: int) -> Iterator[Event]:
    """Instants for updates and changed plans, also for the plan in force; slices for suspicions."""
    decisions: Mapping[str, Sequence[Any]] = run.decisions or {"time": []}
    names = logs.headings(run)
    before = int(np.count_nonzero(micro(decisions["time"]) < start))
    if before:
        name = f"in force since {decisions['time'][before - 1]:.6g} s"
        yield _instant(DECISIONS, start, name, "decision", _plan(decisions, before - 1))
    for left, right, kind, row in zip(*(column.tolist() for column in shown), strict=True):
        if kind == derived.UPDATE:
            update = {name: column[row] for name, column in run.updates.items()}
            members = update["members"]
            args = _args(
                version=update["version"], members=len(members), ranks=" ".join(map(str, members)),
                gradients=update["n_own"], staleness_mean=update["staleness_mean"],
                staleness_max=update["staleness_max"], samples=update["samples"],
                progress=update["progress"],
            )  # fmt: skip
            yield _instant(UPDATES, left, f"update {args['version']}", "update", args)
        elif kind == derived.DECISION:
            yield _instant(DECISIONS, left, names[row], "decision", _plan(decisions, row))
        elif kind == derived.SUSPICION:
            tid, args = SUSPECT_0 + held[row].rank, _args(update=held[row].update)
            yield _slice(SUSPECTS, tid, left, right, "suspected", "suspicion", args)


def _plan(decisions: Mapping[str, Sequence[Any]], row: int) -> dict[str, Any]:
    """One row of the decisions, without absent suspects and without equal shares."""
    plan = {name: column[row] for name, column in decisions.items() if name != "time"}
    for name in ("suspects", "amp", "batch"):
        if plan[name] is not None:
            plan[name] = " ".join(f"{value:g}" for value in plan[name]) or "none"
    return _args(**plan)


def _instant(tid: int, time: int, name: str, cat: str, args: dict[str, Any]) -> Event:
    event = {"ph": "i", "s": "t", "pid": RUN, "tid": tid, "ts": time, "name": name}
    return event | {"cat": cat, "args": args}


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
    n, assumed = len(phases.assumed), int(np.count_nonzero(phases.assumed))
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
    if phases.has_jobs:
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

    def write(part: Path) -> None:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)

    write_atomically(path, write)
