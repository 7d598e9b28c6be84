"""Who was slow: named where a worker was, and nobody where none was.

Seeds are fixed; steps are log-normal about 0.1 s, with a spread of 8 % unless a test says more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import stdtr

from simstrag.records.record import Record
from simstrag.statistics.slow_workers import ALARM, excesses
from simstrag.statistics.student import upper_tail
from simstrag.whatif.culprits import Culprit, culprits, gather
from simstrag.whatif.operation_array import Layout

STEPS, RANKS, SLOW = 40, 4, 1
RUNS = 100
MOST_ALARMS = int(RUNS * ALARM)


def job(
    seed: int, slowdown: float = 1.0, spread: float = 0.08, heavy: bool = False, lag: float = 0.0,
    when: npt.NDArray[np.bool_] | None = None, steps: int = STEPS,
) -> tuple[Culprit, ...]:  # fmt: skip
    """Who is named in a job whose rank 1 is slow in the steps of `when`, all by default.

    steps: of the job.
    heavy: deviations by Student's t with 3 degrees of freedom.
    lag: their correlation from one step to the next.
    """
    draw = np.random.default_rng(seed)
    shape = steps, RANKS
    noise = draw.standard_t(3, shape) / np.sqrt(3) if heavy else draw.standard_normal(shape)
    for step in range(1, steps):
        noise[step] = lag * noise[step - 1] + np.sqrt(1 - lag**2) * noise[step]
    seconds = 0.1 * np.exp(spread * noise)
    slow = np.ones(steps, np.bool_) if when is None else when
    seconds[slow, SLOW] *= slowdown
    record = Record.of_ranks(
        np.arange(steps), np.arange(RANKS), {"compute": seconds}, "drawn", "drawn"
    )
    return culprits(Layout.of(record))


def test_an_excess_is_over_the_median_of_the_peers() -> None:
    seconds = np.array([2.0, 4.0, 8.0, 1.0]).reshape(4, 1, 1)
    assert np.exp(excesses(seconds)).ravel() == pytest.approx([0.5, 2, 4, 0.25])


def test_a_rank_slower_by_a_fifth_is_named_and_no_other() -> None:
    named = [[each.rank for each in job(seed, 1.2)] for seed in range(RUNS)]
    assert named.count([SLOW]) >= RUNS - MOST_ALARMS


@pytest.mark.parametrize(
    "noise",
    [{}, {"spread": 0.15}, {"heavy": True}, {"lag": 0.6}, {"spread": 0.15, "heavy": True}],
    ids=["normal", "wide", "heavy tails", "lasting", "wide and heavy"],
)
def test_nobody_is_named_where_all_ranks_are_alike(noise: dict[str, float]) -> None:
    named = [job(1000 + seed, **noise) for seed in range(RUNS)]  # type: ignore[arg-type]
    assert sum(map(bool, named)) <= MOST_ALARMS


def test_ranks_that_differ_by_less_than_the_floor_are_not_named() -> None:
    assert sum(bool(job(seed, 1.03)) for seed in range(RUNS)) <= MOST_ALARMS


def test_a_rank_that_is_always_slow_is_chronic_from_the_first_step() -> None:
    (named,) = job(0, 1.5)
    assert (named.pattern, named.since, named.until) == ("chronic", 0, STEPS - 1)
    assert named.slowdown == pytest.approx(1.5, abs=0.1)
    assert named.p < 1e-6


def test_since_when_a_rank_is_slow_is_told_to_a_step_or_two() -> None:
    late = np.arange(STEPS) >= 25
    since = [job(seed, 1.6, when=late)[0].since for seed in range(20)]
    assert np.abs(np.array(since) - 25).max() <= 2


def test_a_rank_that_is_slow_every_fifth_step_is_periodic() -> None:
    every_fifth = np.arange(STEPS) % 5 == 3
    named = [job(seed, 1.8, when=every_fifth) for seed in range(20)]
    found = [(one[0].rank, one[0].pattern, one[0].period) for one in named if one]
    assert found.count((SLOW, "periodic", 5)) >= 19


def test_of_periods_the_one_that_chance_explains_least_is_named() -> None:
    """A long period has few steps in a phase, and a larger t by chance."""
    every_tenth = np.arange(250) % 10 == 3
    named = [job(seed, 1.35, 0.05, when=every_tenth, steps=250) for seed in range(20)]
    found = [(one[0].rank, one[0].pattern, one[0].period) for one in named if one]
    assert found.count((SLOW, "periodic", 10)) >= 19


def test_one_very_slow_step_is_a_one_off() -> None:
    (named,) = job(0, 12.0, when=np.arange(STEPS) == 7)
    assert (named.rank, named.pattern, named.steps) == (SLOW, "one-off", (7,))


def test_without_peers_and_with_few_steps_nobody_is_named() -> None:
    seconds = np.array([[0.1, 0.9]] * 4)
    for steps, ranks in ((4, 2), (3, 1)):
        record = Record.of_ranks(
            np.arange(steps), np.arange(ranks), {"compute": seconds[:steps, :ranks]}, "few", "few"
        )
        assert culprits(Layout.of(record)) == ()


def test_the_tail_of_student_s_distribution_is_scipy_s() -> None:
    values = (-3.0, -0.1, 0.0, 1e-3, 0.7, 2.0, 6.0, 30.0, np.inf)
    for freedom in (1, 2.5, 4, 39, 180.3, 5000):
        found = [upper_tail(t, freedom) for t in values]
        assert found == pytest.approx(stdtr(freedom, -np.array(values)), rel=1e-11, abs=1e-300)


@pytest.mark.parametrize(
    ("first", "second", "at_once"), [((40, 90), (100, 150), False), ((40, 150), (45, 150), True)]
)
def test_only_ranks_that_are_slow_at_once_are_one_thing(
    first: tuple[int, int], second: tuple[int, int], at_once: bool
) -> None:
    """Half of the ranks, or all of a host: slow one after the other, they are two."""
    seconds = 0.1 * np.exp(0.01 * np.random.default_rng(0).standard_normal((200, RANKS)))
    for rank, (since, until) in enumerate((first, second)):
        seconds[since:until, rank] *= 1.5
    record = Record.of_ranks(
        np.arange(200), np.arange(RANKS), {"compute": seconds}, "drawn", "drawn"
    )
    layout = Layout.of(record)
    for hosts in ({}, {0: "a", 1: "a", 2: "b", 3: "b"}):
        slow = culprits(layout, hosts)
        assert {each.rank for each in slow} == {0, 1}
        assert [len(each.members) for each in gather(slow, layout, hosts)] == [2] * at_once
