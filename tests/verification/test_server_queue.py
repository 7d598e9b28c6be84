"""The parameter server as a queue: shards, incast, and the engine's agreement with both.

A server of k shards is simulated as k queues of its own and held against the claim that it is one
queue whose service is that of the largest share (docs/semantics.md, rule 11).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simstrag.contract import Late, Plan, Quorum, Via
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.timing.constants import ServerCost
from tests.support.strategies import Fixed

TOLERANCE = 1e-9
SHARES = ((1.0,), (0.5, 0.5), (0.25,) * 4, (0.1, 0.6, 0.3), (0.05, 0.05, 0.9), (1 / 7,) * 7)


def departures(arrivals: list[float], service: float) -> list[float]:
    """Ends of the jobs of a single first-in-first-out server."""
    ends: list[float] = []
    free = 0.0
    for arrival in arrivals:
        free = max(arrival, free) + service
        ends.append(free)
    return ends


def drawn_arrivals(seed: int, load: float, service: float, n: int = 500) -> list[float]:
    """Bursty: gaps are exponential, and a third of the gradients arrive with the one before."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(service / load, n) * rng.choice([0.0, 1.5], n, p=[1 / 3, 2 / 3])
    return [float(time) for time in gaps.cumsum()]


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("load", [0.3, 0.9, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_last_of_k_shards_is_always_the_one_with_the_largest_share(
    shares: tuple[float, ...], load: float, seed: int
) -> None:
    server = ServerCost(service=0.02, shards=shares)
    arrivals = drawn_arrivals(seed, load, server.service)
    of_shards = [departures(arrivals, server.service * share) for share in shares]
    last = [max(ends) for ends in zip(*of_shards, strict=True)]
    assert departures(arrivals, server.job) == pytest.approx(last, rel=TOLERANCE)


def scenario(workers: int, **server: Any) -> Scenario:
    return Scenario.of(
        {"workers": workers, "updates": 1, "step": {"compute": 1.0}, "server": server}
    )


@pytest.mark.parametrize("n", [1, 2, 8, 32])
def test_a_full_barrier_of_n_equal_ranks_costs_n_jobs(n: int) -> None:
    """Incast: everybody arrives at once, and the server takes one after the other."""
    run = simulate(scenario(n, service=0.01, push=0.1, pull=0.2), "bsp:via=server")
    expected = 0.2 + 1.0 + 0.1 + n * 0.01
    assert run.summary["makespan"] == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize(("n", "k"), [(8, 1), (8, 5), (32, 31)])
def test_of_n_equal_ranks_the_kth_gradient_is_in_after_k_jobs(n: int, k: int) -> None:
    plan = Plan((Quorum(count=k, via=Via.SERVER, late=Late.QUEUE),))
    run = simulate(scenario(n, service=0.01), Fixed(plan))
    assert run.summary["makespan"] == pytest.approx(1.0 + k * 0.01, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("shards", "largest"), [(1, 1.0), (4, 0.25), ([0.7, 0.3], 0.7), ([0.2, 0.2, 0.6], 0.6)]
)
def test_shards_shorten_the_incast_by_the_largest_share(shards: Any, largest: float) -> None:
    run = simulate(scenario(8, service=0.01, shards=shards), "bsp:via=server")
    assert run.summary["makespan"] == pytest.approx(1.0 + 8 * 0.01 * largest, rel=TOLERANCE)


@pytest.mark.parametrize("shards", [1, 4, [0.7, 0.3]])
def test_a_saturated_server_makes_one_update_per_job(shards: Any) -> None:
    """Asynchronous ranks that are back before the server has gone through all the others."""
    made = scenario(32, service=0.2, shards=shards).replaced(updates=500)
    job = made.inputs.server.job
    assert 32 * job > 1.0 + job
    times = [1.0 + update * job for update in range(1, 501)]
    assert list(simulate(made, "asgd").updates["time"]) == pytest.approx(times, rel=TOLERANCE)
