"""The study of 1e9 gradients: ten policies, twenty seeds, 512 workers, noise, a generated trace.

A scale shortens every run; the other parameters stay the same.
"""

from __future__ import annotations

import os
from typing import Any

import joblib

from benchmarks.stopwatch import Progress, time_call
from simstrag.engine.simulate import simulate
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.traces.generate import generate

__all__ = ["POLICIES", "build_scenario", "measure", "run"]

POLICIES = (
    "star_h", "lb_bsp", "korel", "cgp", "ssp", "backup", "k_async", "asgd", "bsp:via=server", "bsp",
)  # fmt: skip
"""Expensive policies first, so that no process works alone at the end."""
WORKERS, SEEDS, ROUNDS = 512, 20, 10_000
SECONDS = 3600.0
"""Length of the trace, which is looped."""
BUSY = 0.5
"""Share of the time in which the server is busy if no rank waits."""


def build_scenario(workers: int, rounds: int) -> Scenario:
    """The scenario, with the trace of `simstrag trace generate --seconds 3600`.

    Its constants are assumed.
    """
    trace = generate(nodes=workers, seconds=SECONDS, seed=0)
    sections = {
        "workers": workers,
        "samples": workers * rounds * 128,
        "step": {"compute": 0.1, "host_share": 0.1, "amp_ratio": 1.6, "cv": 0.05},
        "allreduce": {"alpha": 1e-5, "bytes": 1e8, "bandwidth": 1e10, "overlap": 0.5},
        "server": {"service": BUSY * 0.1 / workers, "push": 0.001, "pull": 0.001},
        "trace": tuple(row._asdict() for row in trace.rows),
        "trace_end": "loop",
    }
    scenario = Scenario.of(sections, source="the study")
    _ = scenario.inputs
    return scenario


def run(scenario: Scenario, policy: str, seed: int = 0) -> Run:
    """One run; k_async waits for half of the ranks, because with all of them it equals bsp."""
    if policy == "k_async":
        policy = f"k_async:x={scenario.workers // 2}"
    return simulate(scenario, policy, seed, record_updates=False)


def measure(scale: float, jobs: int, progress: Progress) -> dict[str, Any]:
    """The section `study` of the results: total wall seconds, processor seconds by policy."""
    study = build_scenario(WORKERS, max(1, round(ROUNDS * scale)))
    seconds = dict.fromkeys(POLICIES, 0.0)
    gradients = dict.fromkeys(POLICIES, 0)

    def run_all() -> None:
        tasks = [(policy, seed) for policy in POLICIES for seed in range(SEEDS)]
        calls = (joblib.delayed(_measure_run)(study, *task) for task in tasks)
        runs = joblib.Parallel(jobs, return_as="generator_unordered")(calls)
        for count, (policy, cpu, applied) in enumerate(runs, 1):
            seconds[policy] += cpu
            gradients[policy] += applied
            progress(f"study: {count} of {len(tasks)} runs")

    wall = time_call(run_all).wall
    return {
        "wall": wall,
        "jobs": jobs,
        "cores": os.cpu_count(),
        "scale": scale,
        "gradients": sum(gradients.values()),
        "seconds": seconds,
        "seconds_per_million": {p: seconds[p] / gradients[p] * 1e6 for p in POLICIES},
    }


def _measure_run(scenario: Scenario, policy: str, seed: int) -> tuple[str, float, int]:
    """Policy, processor seconds and applied gradients of a run."""
    timed = time_call(lambda: run(scenario, policy, seed))
    return policy, timed.cpu, timed.result.summary["applied"]
