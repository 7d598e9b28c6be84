"""The threshold that a fast rank may exceed: when dssp raises it, by how much, and until when."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from simstrag.contract import WINDOW, View
from simstrag.engine.simulate import simulate
from simstrag.policies import load
from simstrag.scenario.scenario import Scenario
from tests.support.stories import Engine, tell, world
from tests.support.strategies import SEEN, Watching
from tests.support.trace_rows import slowed

CONTENDED = Scenario.of(
    {
        "workers": 6,
        "updates": 600,
        "step": {"compute": 1.0, "cv": 0.3},
        "server": {"service": 0.02, "push": 0.02, "pull": 0.03},
        "trace": [
            slowed(node, value, time)
            for time, node, value in ((5, 0, 3), (30, 0, 1), (30, 1, 2.5), (70, 1, 1), (70, 2, 6))
        ],
    }
)


def view(
    steps: list[int], paces: list[float | None], since: list[float], now: float, **facts: Any
) -> View:
    """The last step of rank i took `paces[i]`; it began the present one at `since[i]`."""
    times = np.full((len(steps), WINDOW), np.nan)
    times[:, -1] = [np.nan if pace is None else pace for pace in paces]
    return View(
        len(steps),
        version=sum(steps),
        time=now,
        steps=np.array(steps),
        local_times=times,
        pending_since=np.array(since),
        **facts,
    )


def bounds(policy: Any, *views: View) -> tuple[Any, ...]:
    """What the policy answers to the last of several views, the first of which is its beginning."""
    policy.plan(View(views[0].world_size))
    plans = [policy.plan(shown) for shown in views]
    assert isinstance(plans[-1].bound, tuple)
    return plans[-1].bound


def test_the_fast_rank_may_run_on_until_shortly_before_the_slow_ones_push(engine: Engine) -> None:
    # s_L = 1, r_max = 2; 1 s and 4 s.  At 2 nothing is known of rank 1, and rank 0 waits.  At 5 it
    # blocks again: it would push at 5, 6 and 7, rank 1 next at 8, so it may do 2 more.  At 7 these
    # are used: it waits until it is 1 ahead, at 16.
    tell(engine, world([[1], [4]], updates=10), load("dssp:low=1,extra=2"))("""
        0  start 0.0 1.0 on 0
        1  update 0.0 to 1
        1  start 0.1 on 1
        2  update 0.1 to 2
        4  update 1.0 to 3
        4  start 0.2 1.1 on 3
        5  update 0.2 to 4
        5  start 0.3 on 4
        6  update 0.3 to 5
        6  start 0.4 on 5
        7  update 0.4 to 6
        8  update 1.1 to 7
        8  start 1.2 on 7
        12 update 1.2 to 8
        12 start 1.3 on 8
        16 update 1.3 to 9
        16 start 0.5 1.4 on 9
        17 update 0.5 to 10
    """)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("dssp", "other"),
    [
        ("dssp:extra=0", "ssp:bound=3"),
        ("dssp:low=0,extra=0", "ssp:bound=0"),
        ("dssp:low=1000000", "asgd"),
    ],
)
def test_without_extra_steps_it_is_ssp_and_with_a_bound_never_reached_asgd(
    dssp: str, other: str, seed: int
) -> None:
    """Not by construction: dssp has a bound per rank and is asked at every block."""
    run, expected = (
        simulate(CONTENDED, p, seed, record_steps=True, record_gradients=True)
        for p in (dssp, other)
    )
    assert run.updates == expected.updates
    assert run.steps == expected.steps
    assert run.gradients == expected.gradients


@pytest.mark.parametrize(
    ("since", "pace", "extra"),
    [
        (0.0, 8.0, 2),  # pushes at 6, 7, 8; the slow one's at 8
        (0.0, 7.5, 1),  # at 7.5
        (0.0, 6.25, 0),  # at 6.25 and 12.5: not 7 - 6.25, though the two lie as close together
        (5.5, 1.75, 1),  # at 7.25 and 9
        (2.0, 3.0, 0),  # overdue since 5: expected at once
        (6.0, 1.0, 1),  # at 7, 8, 9
        (5.0, 3.0, 2),  # at 8
    ],
)
def test_the_extra_steps_are_those_after_which_the_wait_is_least(
    since: float, pace: float, extra: int
) -> None:
    """At 6 the fast rank, with steps of 1 s, is 4 ahead; s_L = 3, r_max = 2."""
    shown = view([5, 1], [1.0, pace], [np.nan, since], now=6.0)
    assert bounds(load("dssp:extra=2"), shown) == (3 + extra, 3)


def test_communication_is_a_part_of_the_pace() -> None:
    """1 s of computing and 0.5 s of communication: pushes at 6, 7.5, 9, the slow one's at 7.5."""
    shown = view([5, 1], [1.0, 4.0], [np.nan, 3.0], now=6.0)
    slow = np.full((2, WINDOW), 0.5)
    assert bounds(load("dssp"), dataclasses.replace(shown, communication=slow)) == (4, 3)


def test_an_unknown_pace_grants_nothing() -> None:
    assert bounds(load("dssp"), view([4, 0], [1.0, None], [np.nan, 0.0], now=4.0)) == (3, 3)


def test_only_the_fastest_rank_may_run_on() -> None:
    shown = view([6, 5, 1], [1.0, 1.0, 8.0], [np.nan, np.nan, 0.0], now=6.0)
    assert bounds(load("dssp:extra=2"), shown) == (5, 3, 3)


def test_of_several_slowest_the_last_to_push_is_waited_for() -> None:
    shown = view([5, 1, 1], [1.0, 6.5, 8.0], [np.nan, 0.0, 0.0], now=6.0)
    assert bounds(load("dssp:extra=2"), shown) == (5, 3, 3)


def test_a_rank_that_has_used_its_extra_steps_waits_for_the_lower_bound() -> None:
    granted = view([5, 1], [1.0, 8.0], [np.nan, 0.0], now=6.0)
    used = view([7, 1], [1.0, 8.0], [np.nan, 0.0], now=8.0)
    meanwhile = view([7, 2], [1.0, 8.0], [np.nan, 8.0], now=8.5)
    again = view([7, 4], [1.0, 8.0], [8.5, 8.5], now=9.0)
    policy = load("dssp:extra=2")
    assert bounds(policy, granted) == (5, 3)
    assert bounds(policy, used) == (3, 3)
    assert bounds(policy, meanwhile, again) == (3, 3)
    assert policy.summary() == {"grants": 1, "extra_steps": 2}  # type: ignore[attr-defined]


def test_ranks_are_ahead_by_what_they_did_since_the_plan_began() -> None:
    policy = load("dssp")
    first = view([40, 10], [1.0, 8.0], [0.0, 0.0], now=0.0)
    assert policy.plan(first).bound == (3, 3)
    assert policy.plan(view([43, 10], [1.0, 8.0], [3.0, 0.0], now=3.0)).bound == (3, 3)
    assert policy.plan(view([44, 10], [1.0, 8.0], [np.nan, 0.0], now=4.0)).bound == (7, 3)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_ever_leaves_the_range(seed: int) -> None:
    SEEN.clear()
    run = simulate(CONTENDED, Watching(load("dssp:low=2,extra=4")), seed)
    ahead = [int(shown.steps.max() - shown.steps.min()) for shown in SEEN]
    assert max(ahead) == 2 + 4 + 1, "the step that ends at the threshold is blocked after it"
    assert run.summary["updates"] == 600


def test_grants_are_counted() -> None:
    summary = simulate(CONTENDED, "dssp").summary
    assert summary["grants"] > 0
    assert summary["extra_steps"] >= summary["grants"]


@pytest.mark.parametrize("pace", [1 - 1e-15, 1.0, 1 + 1e-15])
def test_a_push_that_meets_the_slow_ones_up_to_rounding_waits_for_nothing(pace: float) -> None:
    # The slow rank pushes at 8; the fast one would push at 5, 6, 7 and, with 3 more steps, at 8.
    shown = view([3, 1], [pace, 3.0], [math.nan, 5.0], now=5.0)
    assert bounds(load("dssp:low=1,extra=5"), shown) == (4, 1)
