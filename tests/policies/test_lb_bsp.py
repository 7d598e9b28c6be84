"""Shares of the batch by speed: what lb_bsp makes of times, and what that saves."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.arrays import Floats
from simstrag.contract import WINDOW, Hints, Plan, Quorum, Via, View
from simstrag.engine.simulate import simulate
from simstrag.policies import load
from simstrag.policies.estimators.shares import balanced
from simstrag.scenario.scenario import Scenario
from tests.support.stories import Engine, tell, world


def view(times: list[float], shares: list[float] | None = None, **facts: Any) -> View:
    """Every rank has taken `times[rank]` for `shares[rank]` of its batch, again and again."""
    n = len(times)
    return View(
        n,
        version=20,
        steps=np.full(n, 20),
        local_times=again_and_again(times),
        batch=again_and_again(shares or [1.0] * n),
        **facts,
    )


def again_and_again(column: list[float]) -> Floats:
    return np.tile(np.array(column)[:, np.newaxis], WINDOW)


def shares_of(plan: Plan) -> tuple[float, ...]:
    assert isinstance(plan.batch, tuple)
    return plan.batch


def test_a_rank_three_times_as_slow_gets_a_third_of_the_samples(engine: Engine) -> None:
    # Two rounds of 3 s fill the window: 1 and 1/3 of a batch per second, shares 3/2 and 1/2.  From
    # 6 on both need 1.5 s, and their speeds say the same again.
    tell(engine, world([[1], [3]], updates=4, learner={"batch": 2}), load("lb_bsp:window=2"))("""
        0   start 0.0 1.0 on 0
        3   update 0.0 1.0 to 1
        3   start 0.1 1.1 on 1
        6   update 0.1 1.1 to 2
        6   start 0.2 1.2 on 2
        7.5 update 0.2 1.2 to 3
        7.5 start 0.3 1.3 on 3
        9   update 0.3 1.3 to 4
    """)


def test_twice_as_slow_is_two_thirds_and_four_thirds() -> None:
    """Five rounds of 2 s fill the window, and five of 4/3 s follow."""
    run = simulate(world([[1], [2]], updates=10, learner={"batch": 3}), "lb_bsp")
    assert shares_of(load("lb_bsp").plan(view([1, 2]))) == pytest.approx((4 / 3, 2 / 3))
    assert run.summary["makespan"] == pytest.approx(5 * 2 + 5 * 4 / 3, rel=1e-12)
    assert run.summary["rebalances"] == 1
    assert run.summary["samples"] == 10 * 2 * 3


def test_once_balanced_a_round_takes_the_harmonic_mean_of_the_times() -> None:
    times, rounds = [1.0, 1.5, 2.0, 4.0], 20
    run = simulate(world([[t] for t in times], rounds, learner={"batch": 240}), "lb_bsp")
    balanced_round = len(times) / sum(1 / t for t in times)
    assert run.summary["makespan"] == pytest.approx(5 * 4 + (rounds - 5) * balanced_round, rel=0.01)


def test_at_equal_speeds_it_is_bsp_log_for_log() -> None:
    scenario = Scenario(workers=8, updates=50, step={"compute": 0.1}, allreduce={"alpha": 0.001})
    run, bsp = (
        simulate(scenario, p, record_steps=True, record_gradients=True) for p in ("lb_bsp", "bsp")
    )
    assert run.summary["rebalances"] == 0
    assert (run.updates, run.steps, run.gradients) == (bsp.updates, bsp.steps, bsp.gradients)


def test_inside_the_dead_band_the_plan_stays_the_same_object() -> None:
    policy = load("lb_bsp")
    before = policy.plan(view([1, 2]))
    nearly = view([4 / 3 * 1.04, 4 / 3], shares=[4 / 3, 2 / 3])
    assert policy.plan(nearly) is before
    clearly = view([4 / 3 * 1.2, 4 / 3], shares=[4 / 3, 2 / 3])
    assert shares_of(policy.plan(clearly)) == pytest.approx((1.25, 0.75))


def test_a_speed_is_samples_per_second_whatever_the_share_was() -> None:
    policy = load("lb_bsp")
    balanced_before = policy.plan(view([1, 2]))
    assert policy.plan(view([4 / 3, 4 / 3], shares=[4 / 3, 2 / 3])) is balanced_before


@pytest.mark.parametrize("missing", ["batch", "local_times", "lower_bound"])
def test_nothing_is_decided_before_the_windows_of_all_hold_whole_steps(missing: str) -> None:
    given = view([1, 2])
    facts = np.array(getattr(given, missing))
    facts[1, -5] = True if missing == "lower_bound" else math.nan
    changes: dict[str, Any] = {missing: facts}
    plan = load("lb_bsp").plan(dataclasses.replace(given, **changes))
    assert plan.batch is None


def test_a_step_that_was_aborted_before_it_computed_says_nothing() -> None:
    given = view([1, 2])
    times, cancelled = given.local_times.copy(), np.zeros((2, WINDOW), dtype=bool)
    times[1, -1], cancelled[1, -1] = 0.0, True
    seen = dataclasses.replace(given, local_times=times, lower_bound=cancelled)
    assert load("lb_bsp").plan(seen).batch is None


def test_no_rank_goes_without_a_sample() -> None:
    """A tenth of a batch of 2 is no whole sample."""
    plan = load("lb_bsp:low=0.1").plan(view([1, 1, 9], hints=Hints(batch=2)))
    assert shares_of(plan) == (1.25, 1.25, 0.5)
    assert plan.samples(batch=2, world_size=3) == (3, 2, 1)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.floats(0.05, 1), st.floats(1, 8))
def test_shares_sum_to_n_keep_their_limits_and_between_them_go_by_speed(
    rate: list[float], low: float, high: float
) -> None:
    shares = balanced(np.array(rate), low, high)
    assert shares.sum() == pytest.approx(len(rate), rel=1e-9)
    assert shares.min() >= low
    assert shares.max() <= high
    free = [(s / r) for s, r in zip(shares, rate, strict=True) if low < s < high]
    assert free == pytest.approx([free[0]] * len(free) if free else [], rel=1e-6)
    if free:
        at_low = [low / r for s, r in zip(shares, rate, strict=True) if s == low]
        at_high = [high / r for s, r in zip(shares, rate, strict=True) if s == high]
        assert min(at_low, default=math.inf) >= free[0] * (1 - 1e-6)
        assert max(at_high, default=0) <= free[0] * (1 + 1e-6)


def test_through_a_server_the_shares_are_the_same() -> None:
    """The slow rank takes half of a batch, and every gradient goes to the server."""
    plans = [load(spec).plan(view([1.0, 3.0])) for spec in ("lb_bsp", "lb_bsp:via=server")]
    reduced, served = (plan.resolved(2) for plan in plans)
    assert shares_of(served) == shares_of(reduced) == (1.5, 0.5)
    assert served.quorums == Plan((Quorum(via=Via.SERVER),)).resolved(2).quorums


@pytest.mark.parametrize("nearby", [0.0, 1.0, 2.0])
def test_a_change_by_exactly_the_dead_band_changes_nothing(nearby: float) -> None:
    policy = load("lb_bsp")
    for times in ([1.0, 1.0], [math.nextafter(1 / 1.05, nearby), math.nextafter(1 / 0.95, nearby)]):
        policy.plan(view(times))
    assert policy.summary() == {"rebalances": 0}  # type: ignore[attr-defined]
