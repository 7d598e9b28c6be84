"""Korel, rules A.9.1 to A.9.17 of docs/korel.md, against closed forms and measured figures.

M = (T_bsp - T) / (T_bsp - T_clean) is the share of the straggler delay removed, T a makespan under
the same noise.  A step that contention stretches from 1 to c s takes max(1, c/rho) s with its rank
in AMP, so that at once M = (c - max(1, c/rho)) / (c - 1) over a window of steps, and
(min(c, rho) - 1) / (c - 1) over one of seconds in a run of fixed work.  Lost are the 7 steps until
the rank is in AMP and 2 of each probe.

Every tolerance was stated before the run.  The world is the lock-step driver of the tests; one
worker of eight is contended unless said otherwise.  `test_korel_flapping.py` has the figures on
flapping, on the engine.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from simstrag.policies.amp_all import AmpAll
from simstrag.policies.korel import Korel
from tests.support.lockstep import World, bsp_run, mitigation, seconds_between, steps_between

RATIOS = [1.36, 1.66, 2.26]
SLOWDOWNS = [1.25, 1.5, 2.0, 3.0, 4.0]


# -- one long window ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [100, 300, 1000])
@pytest.mark.parametrize("rho", RATIOS)
@pytest.mark.parametrize("c", SLOWDOWNS)
def test_a_window_of_steps(c: float, rho: float, length: int) -> None:
    at_once = (c - max(1, c / rho)) / (c - 1)
    world = World(steps_between(c, 50, 50 + length), updates=length + 100, rho=rho)
    measured, _ = mitigation(Korel(), world)
    assert measured == pytest.approx(at_once * (1 - (7 + 2 * (length // 202)) / length), abs=0.005)


@pytest.mark.parametrize("rho", RATIOS)
@pytest.mark.parametrize("c", SLOWDOWNS)
def test_a_window_of_seconds_in_a_run_of_fixed_work(c: float, rho: float) -> None:
    """The same window holds more steps the faster they are: latency and probes cost c s a step."""
    length, relieved = 3000.0, max(1.0, c / rho)
    at_once = (min(c, rho) - 1) / (c - 1)
    world = World(seconds_between(c, 50, 50 + length), updates=3100, rho=rho)
    probes = length // (200 * relieved + 2 * c)
    measured, _ = mitigation(Korel(), world)
    assert measured == pytest.approx(at_once * (1 - (7 + 2 * probes) * c / length), abs=0.005)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rho", RATIOS)
@pytest.mark.parametrize("c", SLOWDOWNS)
def test_noise_shifts_it_by_little(c: float, rho: float, seed: int) -> None:
    """The relieved rank is a smaller participant in the maximum over ranks."""
    at_once = (c - max(1, c / rho)) / (c - 1)
    world = World(steps_between(c, 50, 1050), updates=1100, rho=rho, cv=0.03, seed=seed)
    assert -0.02 <= mitigation(Korel(), world)[0] - at_once <= 0.08


@pytest.mark.parametrize(("cv", "expected", "tolerance"), [(0.0, 0.655, 0.01), (0.03, 0.70, 0.03)])
def test_contention_of_the_host_part_by_steps(cv: float, expected: float, tolerance: float) -> None:
    """AMP still shaves the device's part of a step whose host part is three times as long."""
    world = World(
        steps_between(3.0, 50, 2050), updates=2100, host=0.3, gpu=0.7, resource="host", cv=cv
    )
    assert mitigation(Korel(), world)[0] == pytest.approx(expected, abs=tolerance)


def test_contention_of_the_host_part_by_seconds() -> None:
    world = World(seconds_between(3.0, 50, 3050), updates=3100, host=0.3, gpu=0.7, resource="host")
    assert mitigation(Korel(), world)[0] == pytest.approx(0.55, abs=0.02)


# -- where AMP can hardly help --------------------------------------------------------------------


def host_bound(cv: float, seed: int) -> World:
    """AMP saves 2.5 % of a contended step, half of what counts as helping."""
    return World(
        steps_between(2.0, 50, 2050),
        updates=2100,
        host=0.9,
        gpu=0.1,
        rho=1.05,
        resource="host",
        cv=cv,
        seed=seed,
    )


@pytest.mark.parametrize("cv", [0.0, 0.01])
def test_useless_amp_is_stopped_in_every_run(cv: float) -> None:
    for seed in range(10):
        m, run = mitigation(Korel(), host_bound(cv, seed))
        assert run.summary["efficacy_stops"] == run.summary["activations"] == 3
        assert m < 0.02


@pytest.mark.parametrize("cv", [0.03, 0.05])
def test_noise_may_pass_for_an_effect_but_gains_stay_small(cv: float) -> None:
    """Two medians of ten are compared: their ratio is .975 with a standard error of
    1.41 * .37 * cv, so that it falls below .95 in 5 % of all confirmations at cv 3 % and in 17 % at
    5 %.  Such an activation stands, and keeps what AMP gains, about .05.
    """
    z = 0.025 / (0.975 * math.sqrt(2) * 0.372 * cv)
    chance = 0.5 * math.erfc(z / math.sqrt(2))
    results = [mitigation(Korel(), host_bound(cv, seed)) for seed in range(40)]
    assert all(m < 0.06 for m, _ in results)
    tests = sum(run.summary["activations"] for _, run in results)
    passed = tests - sum(run.summary["efficacy_stops"] for _, run in results)
    assert passed <= tests * chance + 3 * math.sqrt(tests * chance)
    assert all(m < 0.02 for m, run in results if run.summary["efficacy_stops"] == 3)


# -- against AMP everywhere, and on a clean cluster -----------------------------------------------


@pytest.mark.parametrize("rho", [1.0, 1.1, 1.66])
@pytest.mark.parametrize("cv", [0.0, 0.05])
def test_amp_everywhere_is_at_least_as_fast(rho: float, cv: float) -> None:
    for window in (steps_between(1.5, 50, 450), seconds_between(3.0, 50, 450)):
        world = World(window, updates=500, rho=rho, cv=cv)
        assert bsp_run(AmpAll(), world).makespan <= bsp_run(Korel(), world).makespan


@pytest.mark.parametrize("cv", [0.03, 0.05])
@pytest.mark.parametrize("n", [2, 3, 4, 8, 32])
def test_a_clean_cluster_is_left_alone(n: int, cv: float) -> None:
    for seed in range(20):
        run = bsp_run(Korel(), World(updates=2000, n=n, cv=cv, seed=seed))
        assert run.summary["switches"] == 0


def test_at_ten_percent_noise_the_threshold_must_follow_the_noise() -> None:
    """Four standard errors of a window's median, 4*1.25*cv/sqrt(W), instead of 10 %."""
    wide = 4 * 1.25 * 0.10 / math.sqrt(10)
    worlds = [World(updates=2000, cv=0.10, seed=seed) for seed in range(20)]
    assert sum(bsp_run(Korel(), w).summary["switches"] > 0 for w in worlds) > 10
    assert sum(bsp_run(Korel(delta_on=wide), w).summary["switches"] > 0 for w in worlds) < 5


# -- latency, many stragglers, few ranks ----------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "expected"),
    [(7, 0.0), (8, 0.13), (10, 0.30), (20, 0.65), (50, 0.86), (100, 0.935), (300, 0.978)],
)
def test_short_episodes_gain_little(length: int, expected: float) -> None:
    worlds = [
        World(steps_between(1.5, 50, 50 + length), updates=length + 100, cv=0.03, seed=seed)
        for seed in range(20)
    ]
    measured = np.mean([mitigation(Korel(), world)[0] for world in worlds])
    assert measured == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("c", [1.12, 1.19, 1.2, 1.5, 4.0])
def test_latency_is_seven_steps_and_eight_below_a_fifth(c: float) -> None:
    run = bsp_run(Korel(), World(steps_between(c, 50, 100), updates=100))
    assert run.suspected(0)[0] == 50 + (7 if c >= 1.2 else 8)


@pytest.mark.parametrize(
    ("n", "contended", "c", "cv", "expected"),
    [
        (8, 3, 1.5, 0.03, 1.00),
        (8, 3, 2.0, 0.03, 0.80),
        (64, 31, 1.5, 0.03, 1.00),
        (8, 4, 1.5, 0.03, 1.00),
        (8, 5, 1.5, 0.03, 1.00),
        (64, 33, 1.5, 0.03, 1.00),
        (2, 1, 2.0, 0.03, 0.80),
        (2, 1, 2.0, 0.05, 0.80),
    ],
)
def test_many_stragglers_and_few_ranks(
    n: int, contended: int, c: float, cv: float, expected: float
) -> None:
    world = World(steps_between(c, 50, 1050), updates=1100, n=n, contended=range(contended), cv=cv)
    assert mitigation(Korel(), world)[0] == pytest.approx(expected, abs=0.02)


def test_emptied_windows_cope_with_contention_that_comes_and_goes() -> None:
    """A square wave of eight steps on and eight off."""
    world = World(lambda step, time: 1.5 if step // 8 % 2 == 0 else 1.0, updates=4000, cv=0.03)
    assert mitigation(Korel(), world)[0] == pytest.approx(0.864, abs=0.01)
