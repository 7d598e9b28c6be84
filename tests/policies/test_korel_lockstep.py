"""The lock-step driver that Korel is judged in, against what can be said of it without it."""

from __future__ import annotations

import pytest

from simstrag.policies.amp_all import AmpAll
from simstrag.policies.bsp import Bsp
from tests.support.lockstep import World, bsp_run, noise, steps_between


def test_bsp_moves_at_the_pace_of_its_slowest_rank() -> None:
    world = World(steps_between(2.0, 10, 30), updates=50)
    assert bsp_run(Bsp(), world).makespan == pytest.approx(30 * 1.0 + 20 * 2.0)


def test_reduced_precision_shortens_the_device_part_only() -> None:
    world = World(steps_between(3.0, 0, 10), 10, host=0.3, gpu=0.7, resource="host")
    amp_part = 1 / 1.66 - 0.3
    assert bsp_run(AmpAll(), world).makespan == pytest.approx(10 * (3 * 0.3 + amp_part))


def test_the_noise_has_mean_one_and_the_declared_spread() -> None:
    factors = noise(seed=0, updates=20_000, n=8, cv=0.05)
    assert factors.mean() == pytest.approx(1, abs=5e-4)
    assert factors.std() == pytest.approx(0.05, rel=0.01)
