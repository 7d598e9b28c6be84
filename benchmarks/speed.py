"""Speed of simstrag's engine beside three other engines, on the same inputs.

First all four run the same job; their makespans must agree.  Then each runs a job that is long
enough to time, in turns, several times.  A ratio compares two runs of one turn; the results have
the median and the range of the ratios.  A rate is gradients applied per processor second.  The
inputs, such as noise, are prepared before the other engines are timed; simstrag's engine computes
them within its own time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks import callbacks, heap, processes
from benchmarks.jobs import NOISES, POLICIES, Job
from benchmarks.stopwatch import Progress, Timed, time_call

__all__ = ["OTHERS", "SIZES", "Effort", "agree", "measure"]

OTHERS: dict[str, ModuleType] = {"a": processes, "b": callbacks, "c": heap}
SIZES = (8, 64, 512, 4096, 65536)
NOISY = SIZES[:-1]
"""Numbers of workers that are measured with noise, too."""
TOLERANCE = 1e-9
"""Relative tolerance of makespans: SimPy adds durations, the others times; rounding differs."""
GRADIENTS = 20_000
"""Minimum number of gradients of the common job, which has at least two per rank."""
AMORTISED = 2
"""Minimum length of a run of simstrag's engine, in multiples of its set-up time."""


class Effort(NamedTuple):
    """Number of repetitions, and minimum seconds of each run."""

    repetitions: int = 3
    seconds: float = 0.3


def measure(sizes: Sequence[int], effort: Effort, progress: Progress) -> dict[str, Any]:
    """Rates and ratios by noise."""
    return {
        noise: _table(
            [n for n in sizes if noise == "no noise" or n in NOISY], noise, effort, progress
        )
        for noise in NOISES
    }


def _table(
    sizes: Sequence[int], noise: str, effort: Effort, progress: Progress
) -> dict[str, dict[str, dict[str, Any]]]:
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for policy in POLICIES:
        for n in sizes:
            progress(f"{policy}, {n} workers, {noise}")
            for name, values in _case(policy, n, noise, effort).items():
                table.setdefault(name, {}).setdefault(policy, {})[str(n)] = values
    return table


def agree(job: Job) -> dict[str, Timed]:
    """Run a job on every engine.  Raises `AssertionError` if the makespans differ."""
    job.prepare()
    runs = {name: _run(name, job) for name in (*OTHERS, "engine")}
    makespan = runs["engine"].result.summary["makespan"]
    for name in OTHERS:
        end, tolerance = runs[name].result, 0 if name == "c" else TOLERANCE
        assert math.isclose(end, makespan, rel_tol=tolerance), (
            f"({name}) ends at {end!r}, this engine at {makespan!r}: {job}"
        )
    return runs


def _run(engine: str, job: Job) -> Timed:
    if engine == "engine":
        return time_call(job.simulate)
    run = getattr(OTHERS[engine], job.policy)
    return time_call(lambda: run(job))


def _case(policy: str, n: int, noise: str, effort: Effort) -> dict[str, dict[str, Any]]:
    """Rates and ratios of one policy and number of workers."""
    common = Job(policy, n, max(2, GRADIENTS // n), noise)
    first = agree(common)
    jobs = {name: _lengthen(common, first[name].cpu, effort.seconds) for name in OTHERS}
    for job in jobs.values():
        job.prepare()
    jobs["engine"] = _lengthen_engine(common, first["engine"].cpu, effort.seconds)
    turns = [{x: _run(x, job) for x, job in jobs.items()} for _ in range(effort.repetitions)]
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


def _lengthen(job: Job, seconds: float, least: float) -> Job:
    """The job with enough rounds for `least` seconds, given the seconds that it took."""
    if seconds >= least:
        return job
    times = 1.1 * least / max(seconds, 1e-4)
    return replace(job, rounds=math.ceil(job.rounds * times))


def _lengthen_engine(job: Job, seconds: float, least: float) -> Job:
    """The same for simstrag's engine, whose set-up counts; the inputs of the job are read."""
    setup = time_call(_read_inputs(replace(job, rounds=1)).simulate).cpu
    enough = max(least, AMORTISED * setup)
    while seconds < enough:
        times = min(max(1.2 * (enough - setup) / max(seconds - setup, 1e-3), 2), 50)
        job = _read_inputs(replace(job, rounds=math.ceil(job.rounds * times)))
        seconds = time_call(job.simulate).cpu
    return _read_inputs(job)


def _read_inputs(job: Job) -> Job:
    _ = job.scenario.inputs
    return job
