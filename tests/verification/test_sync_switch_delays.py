"""Sync-Switch's runs with late workers: what one tells of two; tolerances came after a first look.

Li et al., "Sync-Switch", ICDCS 2021, curves in cake-lab/Sync-Switch @09af086 (Apache-2.0): steps
per second of K80 workers, clean and with 10 ms more per message of one or two workers.  How many
workers there are (four, inferred) and how many messages a step has is not said: the messages are
fitted to asynchronous runs with one late worker.
"""

from __future__ import annotations

import pytest

from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario

MEASURED = {"asgd": (18.886, 18.041, 17.205), "bsp:via=server": (3.930, 3.706, 3.299)}
"""Updates per second with none, one and two late workers."""
WORKERS, LATE = 4, 0.010
CYCLE = WORKERS / MEASURED["asgd"][0]
MESSAGES = (1 / (MEASURED["asgd"][1] - (WORKERS - 1) / CYCLE) - CYCLE) / LATE
"""Messages of a step of which each waits for the one before: 4.6."""


def rate(policy: str, late: int, step: float, delay: float = LATE) -> float:
    """Updates per second; half of the messages come before a step, half after it."""
    rows = [
        {
            "time": 0, "node": node, "resource": "net", "kind": "delay",
            "value": MESSAGES / 2 * delay,
        }
        for node in range(late)
    ]  # fmt: skip
    scenario = Scenario.of({
        "workers": WORKERS, "updates": 4000, "step": {"compute": step}, "trace": rows or None,
    })  # fmt: skip
    run = simulate(scenario, policy, record_updates=False)
    return float(run.summary["updates"] / run.summary["makespan"])


def test_the_delay_of_one_worker_predicts_that_of_two() -> None:
    clean, one, two = MEASURED["asgd"]
    assert rate("asgd", 0, CYCLE) == pytest.approx(clean, rel=0.001)
    assert rate("asgd", 1, CYCLE) == pytest.approx(one, rel=0.001)
    predicted = rate("asgd", 2, CYCLE)
    print(f"asgd, two late: {predicted:.3f} predicted, {two} published")
    assert predicted == pytest.approx(two, rel=0.01)


def test_a_strict_barrier_is_later_than_theirs_by_one_worker_and_not_by_two() -> None:
    """With two late workers as published; with one theirs is between a barrier's and a clean one's.

    TensorFlow's SyncReplicas is no strict barrier.
    """
    clean, one, two = MEASURED["bsp:via=server"]
    first, second = (rate("bsp:via=server", late, 1 / clean) for late in (1, 2))
    print(f"sync, one and two late: {first:.3f}, {second:.3f} predicted; {one}, {two} published")
    assert second == pytest.approx(two, rel=0.02)
    assert first < one < clean


def test_predictions_for_30_ms_stand_beforehand() -> None:
    """Their measurements are kept back: these are what the constants above say."""
    predicted = [
        rate(policy, late, step, 0.030)
        for policy, step in (("asgd", CYCLE), ("bsp:via=server", 1 / MEASURED["bsp:via=server"][0]))
        for late in (1, 2)
    ]
    print("+30 ms, asgd and sync, one and two late:", *(f"{each:.3f}" for each in predicted))
    assert predicted == pytest.approx([17.02, 15.16, 2.55, 2.55], rel=0.01)
