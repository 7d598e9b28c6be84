"""Groups of similar speed: how cgp forms them, when it forms them anew, and what they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simstrag.contract import WINDOW, Damping, Hints, Plan, Quorum, Review, Via, View
from simstrag.engine.simulate import simulate
from simstrag.policies import load
from simstrag.policies.cgp import group_by_speed
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from tests.support.stories import Engine, tell, world
from tests.support.trace_rows import slowed

ONE = {"learner": {"batch": 1}}
TWO_SPEEDS: list[list[float]] = [[1], [1], [2]]
ONE_GROUP_AT_FIRST = """
    0  start 0.0 1.0 2.0 on 0
    2  update 0.0 1.0 2.0 to 1
    2  start 0.1 1.1 2.1 on 1
    4  update 0.1 1.1 2.1 to 2
    4  start 0.2 1.2 2.2 on 2
    6  update 0.2 1.2 2.2 to 3
    6  start 0.3 1.3 2.3 on 3"""
"""Rank 2 takes 2 s, the others less: at 6 all have shown three times, and groups are planned."""


def view(rounds: int, times: tuple[float, ...] | list[float], **hints: Any) -> View:
    """Every rank has done `rounds` steps, the last of them in `times[rank]` each."""
    n = len(times)
    filled = np.tile(np.array(times, dtype=float)[:, np.newaxis], WINDOW)
    filled[:, : max(WINDOW - rounds, 0)] = np.nan
    steps = np.full(n, rounds)
    return View(n, rounds * n, steps=steps, local_times=filled, hints=Hints(**hints))


def groups_of(plan: Plan, world_size: int) -> list[tuple[int, ...]]:
    return [quorum.members for quorum in plan.resolved(world_size).quorums]


# -- how groups form


@pytest.mark.parametrize(
    ("times", "groups"),
    [
        ([1.0, 1.0, 1.0], [(0, 1, 2)]),
        ([2.0, 1.0, 1.2, 2.4], [(1, 2), (0, 3)]),
        ([1.0, 1.15, 1.3, 1.45], [(0, 1), (2, 3)]),  # compared with the fastest, not the last
        ([3.0, 2.0, 1.0], [(2,), (1,), (0,)]),
    ],
)
def test_a_gap_to_the_fastest_opens_a_new_group(
    times: list[float], groups: list[tuple[int, ...]]
) -> None:
    found = group_by_speed(np.array(times), ratio=1.2)
    assert [tuple(group) for group in found] == groups


def test_a_full_group_opens_a_new_one_too() -> None:
    groups = group_by_speed(np.array([1.0, 1.0, 1.1, 1.1, 2.0]), ratio=1.2, max_group=2)
    assert [tuple(group) for group in groups] == [(0, 1), (2, 3), (4,)]


def test_the_all_reduce_is_inside_groups_and_leaders_fuse(engine: Engine) -> None:
    # At 8 the second update of ranks 0 and 1 and the first of rank 2 wait for the server together.
    tell(engine, world(TWO_SPEEDS, updates=5, **ONE), load("cgp"))(
        ONE_GROUP_AT_FIRST
        + """
        7  update 0.3 1.3 to 4
        7  start 0.4 1.4 on 4
        8  update 0.4 1.4 2.3 to 5
        """
    )


def test_without_fusing_every_group_makes_its_own_updates(engine: Engine) -> None:
    tell(engine, world(TWO_SPEEDS, updates=6, **ONE), load("cgp:fuse=false"))(
        ONE_GROUP_AT_FIRST
        + """
        7  update 0.3 1.3 to 4
        7  start 0.4 1.4 on 4
        8  update 0.4 1.4 to 5
        8  start 0.5 1.5 on 5
        8  update 2.3 to 6
        """
    )


def test_a_window_takes_whoever_is_ready(engine: Engine) -> None:
    # Half a step of the fastest: rank 1 is ready 0.25 s after rank 0, and at 8.5 rank 0 is ready
    # at the very moment at which the window of rank 2 ends.
    tell(engine, world([[1], [1.25], [2]], updates=5, **ONE), load("cgp:groups=window,window=0.5"))(
        ONE_GROUP_AT_FIRST
        + """
        7.5 update 0.3 1.3 to 4
        7.5 start 0.4 1.4 on 4
        8.5 update 0.4 2.3 to 5
        """
    )


def test_a_window_is_a_share_of_the_clean_step_where_that_is_known() -> None:
    policy = load("cgp:groups=window,max_group=5")
    plan = policy.plan(view(3, [2, 2, 3], clean_seconds=1.0))
    assert plan.quorums[0].window == pytest.approx(0.3)
    assert plan.quorums[0].count == 3, "no more than there are"
    assert policy.plan(view(30, [4, 4, 5], clean_seconds=1.0)) is plan


def test_a_fast_group_does_rounds_of_its_own(engine: Engine) -> None:
    # Ranks 0 and 1 are twice as fast as rank 2: they push the sum of two rounds, pulled at 6.
    tell(engine, world(TWO_SPEEDS, updates=4, **ONE), load("cgp:groups=rounds"))(
        ONE_GROUP_AT_FIRST
        + """
        7  start 0.4 1.4 on 3
        8  update 0.3 0.4 1.3 1.4 2.3 to 4
        """
    )


def test_rounds_are_as_many_as_fit_into_the_slowest_groups_step() -> None:
    plan = load("cgp:groups=rounds").plan(view(3, [1.0, 1.1, 1.9, 5.9]))
    by_ranks = {quorum.ranks: quorum.rounds for quorum in plan.quorums}
    assert by_ranks == {(0, 1): 5, (2,): 3, (3,): 1}


def test_staleness_may_be_damped() -> None:
    assert load("cgp:power=0.5").plan(View(4)).damping == Damping(0.5, shift=1)
    assert load("cgp").plan(View(4)).damping.factor(staleness=9) == 1


# -- when they are formed anew


def test_before_every_rank_has_shown_three_times_all_are_one_group() -> None:
    policy = load("cgp")
    first = policy.plan(View(3))
    assert first.quorums == (Quorum(via=Via.LEADER),)
    assert policy.plan(view(2, [1, 1, 2])) is first
    assert groups_of(policy.plan(view(3, [1, 1, 2])), 3) == [(0, 1), (2,)]


def test_it_asks_to_be_asked_once_a_round() -> None:
    assert load("cgp").plan(View(6)).review == Review(updates=6)
    assert load("cgp").plan(View(6, hints=Hints(batch=32))).review == Review(samples=6 * 32)


def test_groups_are_planned_anew_after_20_rounds() -> None:
    """A rank drifts by 8 %: inside its band's tolerance, but past the gap of 1.2."""
    policy = load("cgp")
    before = policy.plan(view(3, [1, 1, 1.19]))
    for rounds in range(4, 23):
        assert policy.plan(view(rounds, [1, 1, 1.29])) is before
    after = policy.plan(view(23, [1, 1, 1.29]))
    assert groups_of(after, 3) == [(0, 1), (2,)]
    assert policy.plan(view(43, [1, 1, 1.29])) is after
    assert policy.summary() == {"replans": 1, "groups": 2}  # type: ignore[attr-defined]


@pytest.mark.parametrize("time", [0.85, 1.35])
def test_a_rank_that_leaves_its_band_for_three_rounds_calls_for_new_groups(time: float) -> None:
    policy = load("cgp")
    before = policy.plan(view(3, [1, 1, 1.1]))
    assert policy.plan(view(4, [1, 1, time])) is before
    assert policy.plan(view(5, [1, 1, time])) is before
    assert policy.plan(view(6, [1, 1, 1.1])) is before, "and counts anew"
    assert policy.plan(view(7, [1, 1, time])) is before
    assert policy.plan(view(8, [1, 1, time])) is before
    after = policy.plan(view(9, [1, 1, time]))
    assert (after is before) == (time == 0.85), "a faster rank makes one group again"


def test_asked_more_often_than_once_a_round_it_counts_rounds() -> None:
    policy = load("cgp")
    before = policy.plan(view(3, [1, 1, 1.1]))
    outside = view(4, [1, 1, 2.0])
    assert all(policy.plan(outside) is before for _ in range(5))
    within = View(3, 13, steps=outside.steps, local_times=outside.local_times)
    assert policy.plan(within) is before


def test_equal_groups_are_the_same_plan() -> None:
    policy = load("cgp")
    before = policy.plan(view(3, [1, 1, 2]))
    assert all(policy.plan(view(r, [1.01, 1.0, 2.1])) is before for r in range(4, 100, 5))
    assert policy.summary() == {"replans": 1, "groups": 2}  # type: ignore[attr-defined]


def test_a_group_follows_a_rank_whose_contention_ends() -> None:
    rows = [slowed(0, 3.0, time=20), slowed(0, 1.0, time=60)]
    scenario = Scenario.of(
        {"workers": 4, "samples": 100 * 4 * 128, "step": {"compute": 1.0, "cv": 0.02}}
        | {"trace": rows, "server": {"service": 0.01}}
    )
    run = simulate(scenario, "cgp")
    assert run.summary["replans"] == 2
    assert run.summary["groups"] == 1
    members = run.frame("updates").set_index("time")["members"]
    assert set(members[members.index < 20]) == {(0, 1, 2, 3)}
    assert (1, 2, 3) in set(members[(members.index > 40) & (members.index < 60)])
    assert set(members[members.index > 80]) == {(0, 1, 2, 3)}


# -- what is the same as what


def noisy(**sections: Any) -> Scenario:
    rows = [slowed(0, 2.0)]
    data = {"workers": 5, "updates": 60, "step": {"compute": 1.0, "cv": 0.3}, "trace": rows}
    return Scenario.of(data | {"allreduce": {"alpha": 0.01}} | sections)


def times(run: Run) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(run.updates["time"])


@pytest.mark.parametrize("seed", range(3))
def test_one_group_is_bsp_and_one_global_exchange_a_round(seed: int) -> None:
    scenario = noisy(server={"service": 0.25, "push": 0.5, "pull": 0.125})
    cgp, bsp = (simulate(scenario, p, seed) for p in ("cgp:ratio=1000000", "bsp"))
    rounds = np.arange(1, 61)
    assert times(cgp) == pytest.approx(times(bsp) + rounds * (0.25 + 0.5 + 0.125), rel=1e-12)
    for name in ("members", "samples", "staleness_max", "progress"):
        assert cgp.updates[name] == bsp.updates[name], name


@pytest.mark.parametrize("seed", range(3))
def test_one_group_with_a_server_that_costs_nothing_is_bsp(seed: int) -> None:
    cgp, bsp = (simulate(noisy(), p, seed) for p in ("cgp:ratio=1000000", "bsp"))
    assert cgp.updates == bsp.updates
