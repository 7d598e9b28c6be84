"""BSP, then ASGD: when sync_switch switches, and what it does about stragglers before."""

from __future__ import annotations

import numpy as np
import pytest

from simstrag.contract import ALL, WINDOW, Hints, Quorum, Review, Via, View
from simstrag.engine.simulate import simulate
from simstrag.errors import PlanError
from simstrag.policies import load
from simstrag.scenario.scenario import Scenario
from tests.support.stories import Engine, tell, world
from tests.support.strategies import SEEN, Watching

ONE = {"learner": {"batch": 1}}


def view(version: int, samples: int, times: tuple[float, ...] = (1.0, 1.0, 1.0)) -> View:
    filled = np.tile(np.array(times)[:, np.newaxis], WINDOW)
    n = len(times)
    return View(n, version, samples, steps=np.full(n, version), local_times=filled)


def test_the_switch_is_at_the_first_update_that_reaches_the_share(engine: Engine) -> None:
    # A quarter of 6 samples is 1.5; the first round has 2.
    tell(engine, world([[1], [3]], updates=3, **ONE), load("sync_switch:share=0.25,samples=6"))("""
        0  start 0.0 1.0 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 on 1
        4  update 0.1 to 2
        4  start 0.2 on 2
        5  update 0.2 to 3
    """)


def test_it_is_asked_once_and_exactly_there() -> None:
    scenario = Scenario(workers=8, samples=8 * 128 * 16, step={"compute": 1.0, "cv": 0.1})
    SEEN.clear()
    run = simulate(scenario, Watching(load("sync_switch")))
    assert [(shown.version, shown.samples) for shown in SEEN] == [(0, 0), (2, 2 * 8 * 128)]
    assert list(run.updates["n_own"]) == [8, 8] + [1] * (14 * 8)


@pytest.mark.parametrize(("share", "n_own"), [(0, 1), (1, 4)])
def test_a_share_of_0_is_asgd_and_of_1_is_bsp(share: int, n_own: int) -> None:
    scenario = Scenario(workers=4, samples=4096, step={"compute": 1.0, "cv": 0.1})
    run = simulate(scenario, f"sync_switch:share={share}")
    assert run.updates == simulate(scenario, "bsp" if share else "asgd").updates
    assert set(run.updates["n_own"]) == {n_own}


def test_asked_midway_it_counts_what_is_left() -> None:
    policy = load("sync_switch:share=0.5,samples=100")
    assert policy.plan(view(0, 0)).review == Review(samples=50)
    assert policy.plan(view(10, 30)).review == Review(samples=20)
    assert policy.plan(view(17, 51)).review == Review()


@pytest.mark.parametrize("via", ["allreduce", "server"])
def test_the_synchronous_part_goes_by_either_way(via: str) -> None:
    plan = load(f"sync_switch:samples=100,via={via}").plan(view(0, 0))
    assert plan.quorums == (Quorum(via=Via(via)),)


def test_while_there_is_a_straggler_greedy_is_asynchronous(engine: Engine) -> None:
    # Rank 2 takes 4 s for its steps 2, 3, 4: at 14 the median of five is 4.  Asynchronous, it does
    # 3 steps of 1 s; at 17 the median is 1 again.  Ranks 0 and 1 have started by then, and at 18
    # the round is full.
    tell(
        engine,
        world([[1], [1], [1, 1, 4, 4, 4, 1]], updates=15, **ONE),
        load("sync_switch:share=1,stragglers=greedy,samples=1000"),
    )("""
        0  start 0.0 1.0 2.0 on 0
        1  update 0.0 1.0 2.0 to 1
        1  start 0.1 1.1 2.1 on 1
        2  update 0.1 1.1 2.1 to 2
        2  start 0.2 1.2 2.2 on 2
        6  update 0.2 1.2 2.2 to 3
        6  start 0.3 1.3 2.3 on 3
        10 update 0.3 1.3 2.3 to 4
        10 start 0.4 1.4 2.4 on 4
        14 update 0.4 1.4 2.4 to 5
        14 start 0.5 1.5 2.5 on 5
        15 update 0.5 to 6
        15 start 0.6 on 6
        15 update 1.5 to 7
        15 start 1.6 on 7
        15 update 2.5 to 8
        15 start 2.6 on 8
        16 update 0.6 to 9
        16 start 0.7 on 9
        16 update 1.6 to 10
        16 start 1.7 on 10
        16 update 2.6 to 11
        16 start 2.7 on 11
        17 update 0.7 to 12
        17 start 0.8 on 12
        17 update 1.7 to 13
        17 start 1.8 on 13
        17 update 2.7 to 14
        17 start 2.8 on 14
        18 update 0.8 1.8 2.8 to 15
    """)


def test_elastic_leaves_the_straggler_out_until_the_switch(engine: Engine) -> None:
    # Five rounds of 4 s, then two of ranks 0 and 1 alone; with 19 of 38 samples, at 22, everybody
    # takes part.
    tell(
        engine,
        world([[1], [1], [4]], updates=9, **ONE),
        load("sync_switch:share=0.5,stragglers=elastic,samples=38"),
    )("""
        0  start 0.0 1.0 2.0 on 0
        4  update 0.0 1.0 2.0 to 1
        4  start 0.1 1.1 2.1 on 1
        8  update 0.1 1.1 2.1 to 2
        8  start 0.2 1.2 2.2 on 2
        12 update 0.2 1.2 2.2 to 3
        12 start 0.3 1.3 2.3 on 3
        16 update 0.3 1.3 2.3 to 4
        16 start 0.4 1.4 2.4 on 4
        20 update 0.4 1.4 2.4 to 5
        20 start 0.5 1.5 on 5
        21 update 0.5 1.5 to 6
        21 start 0.6 1.6 on 6
        22 update 0.6 1.6 to 7
        22 start 0.7 1.7 2.5 on 7
        23 update 0.7 to 8
        23 start 0.8 on 8
        23 update 1.7 to 9
    """)


def test_one_who_was_left_out_stays_out_though_the_others_slow_down() -> None:
    policy = load("sync_switch:stragglers=elastic,samples=1000")
    assert policy.plan(view(10, 30, (1, 1, 4))).quorums[0].ranks == (0, 1)
    plan = policy.plan(view(11, 32, (4, 4, 4)))
    assert plan.quorums[0].ranks == (0, 1)
    assert plan.suspects == frozenset({2})
    assert policy.plan(view(12, 34, (4, 4, 4))) is plan
    asynchronous = policy.plan(view(60, 130, (4, 4, 4)))
    assert asynchronous.quorums == (Quorum(ALL, count=1, via=Via.SERVER),)
    assert policy.summary() == {"switches": 1, "evictions": 1}  # type: ignore[attr-defined]


def test_nobody_is_slow_before_the_windows_are_full() -> None:
    policy = load("sync_switch:stragglers=elastic,samples=1000")
    young = view(4, 12, (1, 1, 4))
    times = np.array(young.local_times)
    times[:, :-4] = np.nan
    shown = View(3, 4, 12, steps=young.steps, local_times=times)
    assert policy.plan(shown).suspects == frozenset()


def test_a_ratio_says_who_is_slow() -> None:
    shown = view(10, 30, (1, 1, 1.3))
    spec = "sync_switch:stragglers=elastic,samples=1000"
    assert load(spec).plan(shown).suspects == frozenset({2})
    assert load(f"{spec},ratio=1.5").plan(shown).suspects == frozenset()


def test_without_a_number_of_samples_it_says_what_to_give() -> None:
    with pytest.raises(PlanError, match=r"give samples=..., or samples in the scenario"):
        load("sync_switch").plan(View(8))
    assert load("sync_switch").plan(View(8, hints=Hints(samples=800))).review.samples == 100
