"""What Korel gains, in short runs; tests/verification/test_korel_figures.py has the full tables."""

from __future__ import annotations

import pytest

from simstrag.policies.amp_all import AmpAll
from simstrag.policies.bsp import Bsp
from simstrag.policies.korel import Korel
from tests.support.lockstep import World, bsp_run, mitigation, seconds_between, steps_between


@pytest.mark.parametrize("rho", [1.36, 2.26])
@pytest.mark.parametrize("c", [1.25, 2.0, 4.0])
def test_a_window_of_steps_is_mitigated_as_the_closed_form_says(c: float, rho: float) -> None:
    """Seven steps of latency and two of each probe are lost of what AMP can gain at once."""
    length = 300
    at_once = (c - max(1, c / rho)) / (c - 1)
    world = World(steps_between(c, 20, 20 + length), updates=340, rho=rho)
    measured, _ = mitigation(Korel(), world)
    assert measured == pytest.approx(at_once * (1 - (7 + 2 * (length // 202)) / length), abs=0.005)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_clean_cluster_is_left_alone(n: int) -> None:
    run = bsp_run(Korel(), World(updates=400, n=n, cv=0.05))
    assert run.summary["switches"] == 0
    assert run.amp_steps == 0


def test_with_a_ratio_of_one_nothing_is_gained_and_nothing_lost() -> None:
    world = World(steps_between(2.0, 50, 350), updates=400, rho=1.0, cv=0.03)
    assert bsp_run(Korel(), world).makespan == bsp_run(Bsp(), world).makespan


def test_amp_everywhere_is_at_least_as_fast() -> None:
    world = World(seconds_between(2.0, 50, 250), updates=300, cv=0.03)
    assert bsp_run(AmpAll(), world).makespan <= bsp_run(Korel(), world).makespan


def test_only_the_contended_rank_is_ever_in_amp() -> None:
    world = World(steps_between(1.5, 50, 200), updates=300, cv=0.03, contended=(3,))
    run = bsp_run(Korel(), world)
    assert [rank for rank in range(8) if run.suspected(rank)] == [3]
    assert run.amp_steps == len(run.suspected(3))


def test_normalised_times_do_not_flap() -> None:
    """Between 1+delta_on and rho a rank is contended, and in AMP still faster than the others."""
    world = World(steps_between(1.4, 50, 450), updates=500, cv=0.03)
    normalised, at_face_value = bsp_run(Korel(), world), bsp_run(Korel(rho=1.0, flap=0), world)
    assert normalised.summary["switches"] == 2
    assert at_face_value.summary["switches"] >= 20
