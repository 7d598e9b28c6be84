"""Five policies on four ranks, the last of which is slow from 1 to 2.5 s."""

from __future__ import annotations

from simstrag.scenario.scenario import Scenario
from tests.support.contention import slow

TRACE = [slow(2.0, 1.0, 3), slow(1.0, 2.5, 3)]


def scenario(**changes: object) -> Scenario:
    data = {
        "workers": 4,
        "samples": 4 * 128 * 60,
        "target_progress": 20.0,
        "step": {"compute": 0.05, "amp_ratio": 1.6, "cv": 0.04},
        "allreduce": {"alpha": 1e-4},
        "server": {"service": 5e-4},
        "trace": TRACE,
        "policies": ["bsp", "bsp:via=server", "asgd", "backup", "korel"],
        "seeds": 3,
    }
    return Scenario.of({k: v for k, v in (data | changes).items() if v is not None})
