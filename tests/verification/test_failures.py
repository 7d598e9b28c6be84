"""Failures against renewal theory in closed form; every tolerance was set beforehand."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario

ERRORS = 4.0
"""Standard errors within which a mean lies: false of one in 16,000."""


def mean_and_error(scenario: Scenario, policy: str, seeds: int, key: str) -> tuple[float, float]:
    """The mean over seeds, and its standard error."""
    runs = (simulate(scenario, policy, seed, record_updates=False) for seed in range(seeds))
    values = [float(run.summary[key]) for run in runs]
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(seeds)


@pytest.mark.parametrize("policy", ["bsp", "bsp:via=server", "local_sgd:h=2"])
@pytest.mark.parametrize("every", [5, 20])
def test_restarts_take_as_long_as_dalys_exact_formula_says(policy: str, every: int) -> None:
    """A segment of s seconds with its checkpoint takes M e^(D/M) (e^(s/M) - 1) in the mean.

    M: mean time between failures of the job; D: detection and restart, in which ranks fail, too.
    Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
    Generation Computer Systems 22 (2006), equation 13.
    """
    workers, updates, cost, step = 4, 200, 0.5, 2.0 if "local" in policy else 1.0
    job, down = 60.0 * step, 2.0
    scenario = Scenario.of({
        "workers": workers, "updates": updates, "step": {"compute": 1.0},
        "failures": {
            "mtbf": workers * job, "on_fault": "restart", "detection": 0.5, "restart": 1.5,
            "checkpoint": {"updates": every, "cost": cost},
        },
    })  # fmt: skip

    def expected(seconds: float) -> float:
        return job * math.exp(down / job) * math.expm1(seconds / job)

    segments, last = updates // every - 1, expected(every * step)  # the end is no checkpoint
    mean, error = mean_and_error(scenario, policy, 300, "makespan")
    assert abs(mean - segments * expected(every * step + cost) - last) < ERRORS * error
    assert error < 0.02 * mean


def test_the_interval_of_young_and_daly_loses_least() -> None:
    """The optimum is near sqrt(2 C M) - C for cost C and mean time between failures M."""
    workers, cost, job = 4, 2.0, 100.0

    def makespan(every: int) -> float:
        declared: dict[str, Any] = {
            "workers": workers, "updates": 2000, "step": {"compute": 1.0},
            "failures": {
                "mtbf": workers * job, "on_fault": "restart", "restart": 5.0,
                "checkpoint": {"updates": every, "cost": cost},
            },
        }  # fmt: skip
        return mean_and_error(Scenario.of(declared), "bsp", 60, "makespan")[0]

    best = round(math.sqrt(2 * cost * job) - cost)
    assert best == 18
    assert makespan(best) < min(makespan(best // 4), makespan(4 * best))


@pytest.mark.parametrize("detection", [0.0, 3.0])
def test_asynchronous_ranks_that_come_back_make_so_many_updates_per_second(
    detection: float,
) -> None:
    """A rank that is up for Exp(m) ends 1 / (e^(h/m) - 1) steps of h seconds, then is away.

    The others do not wait for it, whether they know of the failure or not.
    """
    workers, mtbf, away = 8, 20.0, 5.0
    scenario = Scenario.of({
        "workers": workers, "updates": 1500, "step": {"compute": 1.0},
        "failures": {
            "mtbf": mtbf, "on_fault": "continue", "detection": detection, "rejoin": away,
        },
    })  # fmt: skip
    rate = workers / math.expm1(1 / mtbf) / (mtbf + away)
    mean, error = mean_and_error(scenario, "asgd", 40, "useful_throughput")
    assert abs(mean - rate * scenario.learner.batch) < ERRORS * error + 0.004 * mean  # its ends
    assert error < 0.02 * mean
