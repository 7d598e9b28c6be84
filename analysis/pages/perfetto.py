"""One run as a file for the Perfetto UI (https://ui.perfetto.dev), to be looked at step by step.

Chrome's JSON trace-event format, with processes for groups of tracks and threads for tracks.
Times are whole microseconds: Perfetto counts nanoseconds, and its releases differ in how they turn
fractions of a microsecond into them, so that slices that touch may come to overlap.  Slices of a
track never overlap, and are never cut at the ends of a window.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag.analysis.derived.decisions import suspicions
from simstrag.analysis.derived.events import (
    ABOUT,
    DECISIONS,
    RANK_0,
    RUN,
    SERVER,
    SLOWDOWN,
    SUSPECT_0,
    SUSPECTS,
    UPDATES,
    WORKERS,
    Event,
    counters,
    of_decisions,
    of_phases,
    of_suspicions,
    of_updates,
    slice_of,
)
from simstrag.analysis.derived.moments import micro, moments_of, span
from simstrag.analysis.derived.phases import Phases, phases_of
from simstrag.analysis.derived.waiting import steps_of
from simstrag.errors import InputError
from simstrag.runs.run import Run
from simstrag.timing.timing import Timing

__all__ = ["MOST", "Written", "write_timeline"]

MOST = 200_000
"""Events in one file, with which the Perfetto UI is still quick."""


class Written(NamedTuple):
    """What a file holds: events, the seconds it covers, and how many steps it leaves out.

    cut: whether it holds less than was asked for, since that is more than `MOST` events.
    """

    events: int
    start: float
    end: float
    steps_left_out: int
    cut: bool


def write_timeline(
    run: Run, path: Path, timing: Timing | None, window: tuple[float, float] | None = None
) -> Written:
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
    start, end = span(run, window)
    steps = steps_of(run)
    phases = phases_of(run, steps, timing)
    moments = moments_of(run, phases, timing)
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
        *of_phases(run, steps, phases, shown),
        *of_updates(run, shown),
        *of_decisions(run, shown, start),
        *of_suspicions(run, shown),
        *counters(timing, start, end),
        slice_of(RUN, ABOUT, start, end, about["covers"], "about", about),
    ]
    events.sort(key=lambda event: (event["ts"], event["tid"], event["name"]))
    _write(Path(path), [*names, *events], about)
    return Written(len(names) + len(events), *seconds, left_out, cut)


def _at_the_edges(run: Run, timing: Timing | None) -> int:
    """How many events a window has at most besides those that begin in it.

    A slice of each rank and of the server, each suspicion and the plan that holds, each slowdown's
    first value, and a note on it all.
    """
    changing = 0 if timing is None else len(timing.contention.slowdowns)
    return len(run.summary["compute_by_rank"]) + 1 + len(_suspected(run)) + 1 + changing + 1


def _suspected(run: Run) -> list[int]:
    """The ranks that were ever suspected."""
    return sorted({suspicion.rank for suspicion in suspicions(run)})


def _has_jobs(phases: Phases) -> bool:
    return not np.isnan(phases.served).all()


def _names(run: Run, phases: Phases, timing: Timing | None) -> Iterator[Event]:
    """Who is who, and in which order they are shown."""
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


# -- the file ----------------------------------------------------------------------------------


def _about(
    run: Run, phases: Phases, timing: Timing | None, seconds: tuple[float, float], left_out: int
) -> dict[str, Any]:
    """What a reader must know of the file: what it covers, leaves out and assumes."""
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
    """One event to a line; whole or not at all, and the same bytes for the same events."""
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
