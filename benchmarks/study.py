"""The study of 1e9 gradients: ten policies, twenty seeds, 512 workers, noise and a drawn trace.

Scaled down, every run has so many gradients less; all else stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import joblib

from benchmarks.stopwatch import timed
from simstrag.engine.simulate import simulate
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.traces.generate import generate

__all__ = ["POLICIES", "measure", "run", "scenario"]

POLICIES = (
    "star_h", "lb_bsp", "korel", "cgp", "ssp", "backup", "k_async", "asgd", "bsp:via=server", "bsp",
)  # fmt: skip
"""The dear ones first, so that no process is left alone with one in the end."""
WORKERS, SEEDS, ROUNDS = 512, 20, 10_000
SECONDS = 3600.0
"""Of the trace, which is looped."""
BUSY = 0.5
"""The share of its time that the server needs where nobody waits."""


def scenario(workers: int, rounds: int) -> Scenario:
    """The trace is `simstrag trace generate --seconds 3600`; the constants are assumed."""
    drawn = generate(nodes=workers, seconds=SECONDS, seed=0)
    given = {
        "workers": workers,
        "samples": workers * rounds * 128,
        "step": {"compute": 0.1, "host_share": 0.1, "amp_ratio": 1.6, "cv": 0.05},
        "allreduce": {"alpha": 1e-5, "bytes": 1e8, "bandwidth": 1e10, "overlap": 0.5},
        "server": {"service": BUSY * 0.1 / workers, "push": 0.001, "pull": 0.001},
        "trace": tuple(row._asdict() for row in drawn.rows),
        "trace_end": "loop",
    }
    made = Scenario.of(given, source="the study")
    _ = made.inputs
    return made


def run(asked: Scenario, policy: str, seed: int = 0) -> Run:
    """One run; k_async makes an update of half of the ranks' gradients: of all it would be bsp."""
    if policy == "k_async":
        policy = f"k_async:x={asked.workers // 2}"
    return simulate(asked, policy, seed, record_updates=False)


def measure(scale: float, jobs: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """The section `study` of the results: wall seconds of all, processor seconds by policy."""
    asked = scenario(WORKERS, max(1, round(ROUNDS * scale)))
    tasks = [(policy, seed) for policy in POLICIES for seed in range(SEEDS)]
    seconds = dict.fromkeys(POLICIES, 0.0)
    gradients = dict.fromkeys(POLICIES, 0)
    whole = timed(lambda: _run(asked, tasks, jobs, tell))
    for policy, cpu, applied in whole.answer:
        seconds[policy] += cpu
        gradients[policy] += applied
    return {
        "wall": whole.wall,
        "jobs": jobs,
        "cores": os.cpu_count(),
        "scale": scale,
        "gradients": sum(gradients.values()),
        "seconds": seconds,
        "seconds_per_million": {p: seconds[p] / gradients[p] * 1e6 for p in POLICIES},
    }


def _run(
    asked: Scenario, tasks: list[tuple[str, int]], jobs: int, tell: Callable[[str], None]
) -> list[tuple[str, float, int]]:
    calls = (joblib.delayed(_one)(asked, policy, seed) for policy, seed in tasks)
    found = []
    for one in joblib.Parallel(jobs, return_as="generator_unordered")(calls):
        found.append(one)
        tell(f"study: {len(found)} of {len(tasks)} runs")
    return found


def _one(asked: Scenario, policy: str, seed: int) -> tuple[str, float, int]:
    taken = timed(lambda: run(asked, policy, seed))
    return policy, taken.cpu, taken.answer.summary["applied"]
