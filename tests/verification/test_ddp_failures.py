"""Samples per second of real ranks of which one is killed, against the simulation's.

Steps sleep, so that they take as long on a busy machine; a machine of two cores is enough.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")

from simstrag.engine.simulate import simulate  # noqa: E402
from simstrag.scenario.scenario import Scenario  # noqa: E402
from tests.verification.test_ddp_faults import RANKS, Running, running  # noqa: E402

BATCH, BEFORE, AFTER = 64, 10.0, 30.0
DETECTION = {"bsp": 0.3, "asgd": 0.1}
"""Seconds until the others know of a rank that was killed (docs/measured.md)."""
GRADIENTS = {"bsp": RANKS, "asgd": 1}
"""Gradients of an update while all ranks are there."""
FIVE_PERCENT = 0.05

Seen = list[tuple[float, int]]
"""Seconds, and updates so far."""


def watch(job: Running, seconds: float) -> Seen:
    """Updates over time, at each look at the journals."""
    seen, end = list[tuple[float, int]](), time.monotonic() + seconds
    while time.monotonic() < end:
        seen.append((time.monotonic(), job.updates()))
        time.sleep(0.05)
    return seen


def killed(folder: Path, policy: str, on_fault: str) -> tuple[Seen, float, Seen]:
    """What was seen before a rank was killed, when it was, and what was seen afterwards."""
    with running(folder, policy, on_fault, workload="tests.support.sleeping:workload") as job:
        before, pid = watch(job, BEFORE), job.rank(1)
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        after = watch(job, AFTER)
        while on_fault == "restart" and after[-1][1] < before[-1][1] + 150:  # torch is imported
            after += watch(job, 5.0)
        job.end()
    return before, at, after


def resumed(seen: Seen) -> float:
    """When the longest time without an update ended."""
    news = [now[0] for last, now in itertools.pairwise(seen) if now[1] > last[1]]
    pauses = [(b - a, b) for a, b in itertools.pairwise([seen[0][0], *news])]
    return max(pauses)[1]


@pytest.mark.parametrize("on_fault", ["continue", "restart"])
@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_samples_per_second_of_a_job_whose_rank_is_killed_are_predicted(
    policy: str, on_fault: str, tmp_path: Path
) -> None:
    """The pace before the fault, and how long a restart takes, are measured in the run itself."""
    before, at, after = killed(tmp_path / "run", policy, on_fault)
    (begin, first), (last, ahead), (end, total) = before[0], before[-1], after[-1]
    interval = (last - begin) / (ahead - first)
    gradients, fewer = GRADIENTS[policy], on_fault == "continue" and policy == "bsp"
    later = gradients - 1 if fewer else gradients
    samples = BATCH * (gradients * (ahead - first) + later * (total - ahead))
    failures: dict[str, Any] = {
        "events": [{"time": at - begin, "rank": 1}], "on_fault": on_fault,
        "detection": DETECTION[policy],
    }  # fmt: skip
    step = interval * RANKS / gradients
    if on_fault == "restart":
        failures["restart"] = resumed(after) - at - DETECTION[policy] - step
        failures["checkpoint"] = {"on_failure": True}
    scenario = Scenario.of({
        "workers": RANKS, "samples": samples, "learner": {"batch": BATCH}, "failures": failures,
        "step": {"compute": step},
    })  # fmt: skip
    run = simulate(scenario, policy)
    predicted, measured = run.summary["useful_throughput"], samples / (end - begin)
    print(
        f"{policy}, {on_fault}: {measured:.0f} samples/s measured, {predicted:.0f} predicted "
        f"({predicted / measured - 1:+.1%}); {1 / interval:.2f} updates/s before"
    )
    assert predicted == pytest.approx(measured, rel=FIVE_PERCENT)
