"""This engine beside three others that a user could write, on the same inputs.

First all four run the same job, whose makespans must agree.  Then each runs a job of its own
length, long enough to be timed, in turns; a ratio is one of neighbours in time, and what is told
is the median of such ratios and their range.  A rate is gradients applied per second of processor
time; what everybody is given (noise among it) is made before the others' clocks start, and within
this engine's own time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks import callbacks, heap, processes
from benchmarks.jobs import CV, POLICIES, Job
from benchmarks.stopwatch import Taken, timed

__all__ = ["OTHERS", "SIZES", "How", "agree", "measure"]

OTHERS: dict[str, ModuleType] = {"a": processes, "b": callbacks, "c": heap}
SIZES = (8, 64, 512, 4096, 65536)
NOISY = (8, 4096)
"""Sizes that are measured with noise too."""
TOLERANCE = 1e-9
"""SimPy adds up durations, this engine and the heap loop times: they part in the last digits."""
GRADIENTS = 20_000
"""Of the job that all run, at least, and at least two of every rank."""
AMORTISED = 2
"""How many times as long as its set-up a run of this engine must be."""

Tell = Callable[[str], None]


class How(NamedTuple):
    """How often everything is measured, and for how many seconds at least."""

    repetitions: int = 3
    long: float = 0.3


def measure(sizes: Sequence[int], noisy: Sequence[int], how: How, tell: Tell) -> dict[str, Any]:
    """Sections of the results, of these sizes without and with noise."""
    clean = _table(sizes, False, how, tell)
    found = _table(noisy, True, how, tell)
    return {**clean, "noise": False, "noisy": {**found, "noise": f"lognormal, cv {CV}"}}


def _table(sizes: Sequence[int], noise: bool, how: How, tell: Tell) -> dict[str, Any]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for policy in POLICIES:
        for n in sizes:
            tell(f"{policy}, {n} workers, {'with' if noise else 'without'} noise")
            for name, values in _case(policy, n, noise, how).items():
                found.setdefault(name, {}).setdefault(policy, {})[str(n)] = values
    return found


def agree(job: Job) -> dict[str, Taken]:
    """Run a job everywhere. Raises `AssertionError` where makespans differ."""
    job.prepare()
    taken = {name: _timed(name, job) for name in (*OTHERS, "engine")}
    makespan = taken["engine"].answer.summary["makespan"]
    for name in OTHERS:
        answer, tolerance = taken[name].answer, 0 if name == "c" else TOLERANCE
        assert math.isclose(answer, makespan, rel_tol=tolerance), (
            f"({name}) ends at {answer!r}, this engine at {makespan!r}: {job}"
        )
    return taken


def _timed(name: str, job: Job) -> Taken:
    if name == "engine":
        return timed(job.simulate)
    run = getattr(OTHERS[name], job.policy)
    return timed(lambda: run(job))


def _case(policy: str, n: int, noise: bool, how: How) -> dict[str, dict[str, Any]]:
    common = Job(policy, n, max(2, GRADIENTS // n), noise)
    first = agree(common)
    jobs = {name: _lengthened(common, first[name].cpu, how.long) for name in OTHERS}
    for job in jobs.values():
        job.prepare()
    jobs["engine"] = _amortised(common, first["engine"].cpu, how.long)
    turns = [{x: _timed(x, job) for x, job in jobs.items()} for _ in range(how.repetitions)]
    rates = {
        clock: [{x: jobs[x].gradients / getattr(t[x], clock) for x in jobs} for t in turns]
        for clock in ("cpu", "wall")
    }
    ratios = {
        clock: {x: [rate["engine"] / rate[x] for rate in rates[clock]] for x in OTHERS}
        for clock in rates
    }
    return {
        "rates": {x: statistics.median(r[x] for r in rates["cpu"]) for x in jobs},
        "ratios": {x: statistics.median(many) for x, many in ratios["cpu"].items()},
        "spread": {x: [min(many), max(many)] for x, many in ratios["cpu"].items()},
        "wall_ratios": {x: statistics.median(many) for x, many in ratios["wall"].items()},
    }


def _lengthened(job: Job, seconds: float, long: float) -> Job:
    """The same job, long enough for whom it took so long."""
    if seconds >= long:
        return job
    times = 1.1 * long / max(seconds, 1e-4)
    return replace(job, rounds=math.ceil(job.rounds * times))


def _amortised(job: Job, seconds: float, long: float) -> Job:
    """The same job, long enough for this engine, which it took so long; its inputs are read."""
    setup = timed(_read(replace(job, rounds=1)).simulate).cpu
    enough = max(long, AMORTISED * setup)
    while seconds < enough:
        times = min(max(1.2 * (enough - setup) / max(seconds - setup, 1e-3), 2), 50)
        job = _read(replace(job, rounds=math.ceil(job.rounds * times)))
        seconds = timed(job.simulate).cpu
    return _read(job)


def _read(job: Job) -> Job:
    _ = job.scenario.inputs
    return job
