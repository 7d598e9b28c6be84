"""Runs of four ranks that computing, host work and the network slow at times."""

from __future__ import annotations

import functools
from typing import Any

from simstrag.engine.simulate import simulate
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.timing import Timing
from tests.support.contention import slow

WORKERS = 4


def scenario(**changes: Any) -> Scenario:
    data = {
        "workers": WORKERS,
        "samples": WORKERS * 128 * 50,
        "microbatches": 4,
        "step": {
            "compute": 0.05, "host_share": 0.2, "amp_ratio": 1.5, "cv": 0.05, "amp_switch": 0.01,
        },
        "allreduce": {"alpha": 2e-4},
        "server": {"service": 0.003, "push": 0.002, "pull": 0.001},
        "trace": [
            slow(2.5, 1.0, 1), slow(1.5, 1.5, 2, "host"), slow(1.0, 2.0, 1),
            slow(4.0, 2.0, 0, "net"),
        ],
    }  # fmt: skip
    return Scenario.of(data | changes)


@functools.cache
def run_of(policy: str, gradients: bool = False) -> tuple[Run, Timing]:
    """A run that kept its steps, and its times; made once."""
    made = scenario()
    run = simulate(made, policy, 3, record_steps=True, record_gradients=gradients)
    return run, made.timing(3)
