"""What operators do about slow workers: drain, hot_spare and fewer, worked out by hand.

Batches are of 2 samples, so that two of three ranks share out the 6 of an update in halves; a step
of 3 samples takes 1.5 times as long as the story's seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simstrag import Run
from simstrag.contract import Plan, Quorum, View
from simstrag.engine.simulate import simulate
from simstrag.policies import load
from simstrag.policies.estimators.slow_ranks import worth_leaving
from simstrag.scenario.scenario import Scenario
from tests.support.stories import Engine, tell, world
from tests.support.strategies import SEEN, Watching
from tests.support.trace_rows import slowed

PAIRS: dict[str, Any] = {"learner": {"batch": 2}}


def one_slow(until: float, value: float = 2.0, workers: int = 4, **keys: Any) -> Scenario:
    """Steps of one second; those of rank 1 take `value` times as long until a time."""
    rows = [slowed(1, value, resource="step"), slowed(1, 1.0, until, "step")]
    given = {"workers": workers, "updates": 100, "step": {"compute": 1.0}, "trace": rows}
    return Scenario.of(given | {"learner": {"batch": 3}} | keys)


def test_a_slow_rank_is_drained_and_probed_at_growing_distances(engine: Engine) -> None:
    # Two checks in a row, at 4 and 8, find rank 2 slow; the others take 1.5 s for 3 samples each.
    # Two updates later, at 11, it is probed and still takes 4 s; so it is out for four updates.
    # The probe at 21 takes 1 s, and rank 2 stays.
    tell(
        engine,
        world([[1], [1], [4, 4, 4, 1]], updates=11, **PAIRS),
        load("drain:window=1,checks=2,wait=2,probe=1"),
    )("""
        0    start 0.0 1.0 2.0 on 0
        4    update 0.0 1.0 2.0 to 1
        4    start 0.1 1.1 2.1 on 1
        8    update 0.1 1.1 2.1 to 2
        8    start 0.2 1.2 on 2
        9.5  update 0.2 1.2 to 3
        9.5  start 0.3 1.3 on 3
        11   update 0.3 1.3 to 4
        11   start 0.4 1.4 2.2 on 4
        15   update 0.4 1.4 2.2 to 5
        15   start 0.5 1.5 on 5
        16.5 update 0.5 1.5 to 6
        16.5 start 0.6 1.6 on 6
        18   update 0.6 1.6 to 7
        18   start 0.7 1.7 on 7
        19.5 update 0.7 1.7 to 8
        19.5 start 0.8 1.8 on 8
        21   update 0.8 1.8 to 9
        21   start 0.9 1.9 2.3 on 9
        22   update 0.9 1.9 2.3 to 10
        22   start 0.10 1.10 2.4 on 10
        23   update 0.10 1.10 2.4 to 11
    """)


def test_a_slow_rank_and_a_spare_change_places(engine: Engine) -> None:
    # Ranks 0 and 1 have 3 samples each.  Rank 1 takes 6 s for its steps 2 and 3, so rank 2 takes
    # its place at 15.  That is slow from its second step on; at 28.5 rank 1 has rested enough.
    tell(
        engine,
        world([[1], [1, 1, 4, 4, 1], [1, 4]], updates=8, **PAIRS),
        load("hot_spare:window=1,checks=2,rest=3"),
    )("""
        0    start 0.0 1.0 on 0
        1.5  update 0.0 1.0 to 1
        1.5  start 0.1 1.1 on 1
        3    update 0.1 1.1 to 2
        3    start 0.2 1.2 on 2
        9    update 0.2 1.2 to 3
        9    start 0.3 1.3 on 3
        15   update 0.3 1.3 to 4
        15   start 0.4 2.0 on 4
        16.5 update 0.4 2.0 to 5
        16.5 start 0.5 2.1 on 5
        22.5 update 0.5 2.1 to 6
        22.5 start 0.6 2.2 on 6
        28.5 update 0.6 2.2 to 7
        28.5 start 0.7 1.4 on 7
        30   update 0.7 1.4 to 8
    """)


def test_all_ranks_wait_while_a_rank_moves_to_a_spare(engine: Engine) -> None:
    # Rank 1 is slow at 9; ranks 0 and 2 start 60 s later, once.
    tell(
        engine,
        world([[1], [1, 4], [1]], updates=4, **PAIRS),
        load("hot_spare:window=1,checks=1,pause=60"),
    )("""
        0    start 0.0 1.0 on 0
        1.5  update 0.0 1.0 to 1
        1.5  start 0.1 1.1 on 1
        7.5  update 0.1 1.1 to 2
        67.5 start 0.2 2.0 on 2
        69   update 0.2 2.0 to 3
        69   start 0.3 2.1 on 3
        70.5 update 0.3 2.1 to 4
    """)


def test_the_slowest_rank_of_the_first_updates_leaves_for_good(engine: Engine) -> None:
    # Rank 1 is as fast as the others after two updates, and gone.
    tell(engine, world([[1], [3, 3, 1], [1]], updates=4, **PAIRS), load("fewer:measure=2"))("""
        0   start 0.0 1.0 2.0 on 0
        3   update 0.0 1.0 2.0 to 1
        3   start 0.1 1.1 2.1 on 1
        6   update 0.1 1.1 2.1 to 2
        6   start 0.2 2.2 on 2
        7.5 update 0.2 2.2 to 3
        7.5 start 0.3 2.3 on 3
        9   update 0.3 2.3 to 4
    """)


def test_given_ranks_do_not_even_begin(engine: Engine) -> None:
    tell(engine, world([[1], [3], [1]], updates=1, **PAIRS), load("fewer:ranks=1"))("""
        0   start 0.0 2.0 on 0
        1.5 update 0.0 2.0 to 1
    """)


@pytest.mark.parametrize("policy", ["drain", "hot_spare", "fewer", "fewer:ranks=0+1"])
def test_the_mathematics_of_training_is_that_of_bsp(policy: str) -> None:
    scenario = one_slow(30, learner={"batch": 3, "noise_scale": 50})
    run = simulate(scenario, policy, record_gradients=True)
    bsp = simulate(scenario, "bsp")
    assert list(run.updates["progress"]) == list(bsp.updates["progress"])
    gradients = run.frame("gradients")
    assert gradients.groupby("update")["weight"].sum().to_numpy() == pytest.approx(1.0)
    assert run.summary["deviation"] == 0
    assert (run.summary["dropped"], run.summary["aborted"]) == (0, 0)


def test_without_redistribution_an_update_is_smaller_by_the_missing_samples() -> None:
    run = simulate(one_slow(1000), "drain:redistribute=no,wait=1000", record_gradients=True)
    weights = run.frame("gradients").groupby("update")["weight"].sum()
    assert list(weights.round(9)) == [1.0] * 7 + [0.75] * 93
    assert run.summary["makespan"] == 7 * 2 + 93 * 1


def test_steps_of_before_a_rank_was_out_do_not_count_against_it() -> None:
    """All steps that the view shows of it when its probe begins are slow."""
    SEEN.clear()
    simulate(one_slow(20), Watching(load("drain")))
    run = simulate(one_slow(20), "drain")
    found = {key: run.summary[key] for key in ("drains", "probes", "readmissions")}
    assert found == {"drains": 1, "probes": 1, "readmissions": 1}
    # 7 updates of 2 s, 20 of 4/3 s, and all others, the probe among them, are of all ranks
    assert run.summary["makespan"] == pytest.approx(14 + 20 * 4 / 3 + 73)
    before = next(view for view in SEEN if view.version == 27)
    assert before.steps[1] == 7
    assert np.nanmin(before.local_times[1]) == 2.0


def test_a_rank_that_costs_less_than_it_does_is_kept() -> None:
    # Without one of 4 ranks an update takes 4/3 s; 1.3 s with it.
    assert simulate(one_slow(1000, 1.3), "drain").summary["drains"] == 0
    assert simulate(one_slow(1000, 1.4), "drain").summary["drains"] == 1
    # with 2 samples each the largest share of 8 among 3 is 3, and takes 1.5 s
    assert simulate(one_slow(1000, 1.4, learner={"batch": 2}), "drain").summary["drains"] == 0


@pytest.mark.parametrize(
    ("paces", "least", "leaving"),
    [
        ([1, 1, 1, 1, 4, 4], 1, [4, 5]),  # 4/6, 4/5 and 1/4 s a sample
        ([1, 1, 1, 1, 4, 4], 4, [4, 5]),
        ([1, 1, 1, 1, 4, 4], 5, []),  # one alone gains nothing
        ([1, 1, 1, 1, 4, 8], 5, [5]),
        ([1, 2, 2, 2], 1, []),  # 2/4 and 1/1
        ([1, 1, np.nan, 4], 1, [3]),
        ([np.nan, 4], 1, []),  # it is not known whether the other is any better
    ],
)
def test_the_others_do_more_without_it(paces: list[float], least: int, leaving: list[int]) -> None:
    x = np.array(paces)
    assert sorted(worth_leaving(x, x > 1, least)) == leaving


def test_two_ranks_that_are_slow_are_drained_together_and_probed_together() -> None:
    rows = [slowed(k, 4, resource="step") for k in (0, 3)]
    run = simulate(one_slow(0, workers=6, trace=rows, learner={"batch": 2}), "drain:wait=50")
    # 7 updates of 4 s, 50 of 6/4 s, a probe of 3, and 40 of 6/4 s
    assert run.summary["makespan"] == 7 * 4 + 50 * 1.5 + 3 * 4 + 40 * 1.5
    assert (run.summary["drains"], run.summary["probes"]) == (2, 2)


def suspected(run: Run) -> list[tuple[int, list[int]]]:
    decisions = run.frame("decisions")
    return list(zip(decisions["update"], map(list, decisions["suspects"]), strict=True))


def test_a_slow_rank_that_may_not_leave_again_stays_a_suspect() -> None:
    """In its probe rank 1 takes 1.3 s instead of 2; without it an update takes 4/3 s."""
    rows = [slowed(1, v, t, "step") for t, v in ((0, 2.0), (20, 1.3), (60, 1.0))]
    run = simulate(one_slow(0, trace=rows), "drain")
    found = {key: run.summary[key] for key in ("drains", "probes", "readmissions")}
    assert found == {"drains": 1, "probes": 1, "readmissions": 1}
    # it is out from update 7 to 27, and as fast as the others in two of three updates at 44
    assert suspected(run) == [(0, []), (7, [1]), (27, [1]), (44, [])]


def test_a_rank_that_was_slow_is_suspected_while_it_rests() -> None:
    run = simulate(one_slow(1000), "hot_spare:rest=10")
    assert suspected(run) == [(0, []), (7, [1]), (17, [])]


def test_spares_that_all_have_been_slow_rest_first() -> None:
    # Rank 0 leaves after 7 updates, the spare 3 after 7 more; no rank is ready before update 107.
    rows = [slowed(k, 2, resource="step") for k in (0, 3)]
    run = simulate(one_slow(0, trace=rows), "hot_spare")
    assert run.summary["swaps"] == 1
    assert simulate(one_slow(0, trace=rows), "hot_spare:rest=0").summary["swaps"] == 14


def test_nobody_left_out_is_bsp() -> None:
    assert load("fewer:leave_out=0,measure=1").plan(View(2, steps=[1, 1])) == Plan()
    assert load("fewer:ranks=1").plan(View(3)).quorums == (Quorum((0, 2)),)
