"""Slowdowns of workers on one device by sensitivity and pressure."""

from __future__ import annotations

import numpy as np
import pytest

from simstrag.cluster.colocation import (
    K80,
    LAWS,
    TIME_SLICES,
    Colocated,
    ColocationLaw,
    colocated_slowdowns,
    fit,
)

LAW = ColocationLaw("x", workloads={"hurt": Colocated(3.0, 0.25), "harmful": Colocated(0.5, 2.0)})


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_worker_alone_or_beside_idle_ones_is_not_slowed(law: ColocationLaw) -> None:
    assert colocated_slowdowns(np.array([0.7]), law).tolist() == [1.0]
    assert colocated_slowdowns(np.array([1.0, 0.0, 0.0]), law)[0] == 1.0


def test_time_slices_are_the_sum_of_busy_shares_and_at_least_1() -> None:
    assert colocated_slowdowns(np.array([0.5, 0.75, 0.5]), TIME_SLICES).tolist() == [1.75] * 3
    assert colocated_slowdowns(np.array([0.25, 0.5]), TIME_SLICES).tolist() == [1.0, 1.0]


def test_a_workload_is_slowed_by_its_sensitivity_times_the_pressure_of_the_others() -> None:
    # hurt: 1 + 3 x 2 x 0.5 = 4; harmful: 0.5 + 0.5 x 0.25 x 1 = 0.625, which is not slowed
    slowed = colocated_slowdowns(np.array([1.0, 0.5]), LAW, ["hurt", "harmful"])
    assert slowed.tolist() == [4.0, 1.0]


def test_pressures_of_several_others_add_up() -> None:
    # 1 + 0.5 x (0.25 + 0.25)
    slowed = colocated_slowdowns(np.ones(3), LAW, ["harmful", "hurt", "hurt"])
    assert slowed[0] == 1.25


def test_an_unknown_workload_is_typical() -> None:
    assert K80.response("ResNet-34") == K80.response(None) == K80.typical
    assert TIME_SLICES.response("ResNet-50") == Colocated(1.0, 1.0)


def test_a_fit_finds_the_responses_that_made_the_speeds() -> None:
    true = {"a": Colocated(2.0, 0.5), "b": Colocated(0.5, 2.0), "c": Colocated(1.0, 1.0)}
    speeds = [
        (own, other, 1 / (1 + true[own].sensitivity * true[other].pressure))
        for own in true
        for other in true
    ]
    found = fit(speeds * 100)  # so many measurements outweigh the ridge
    for name, response in true.items():
        assert found[name].sensitivity == pytest.approx(response.sensitivity, rel=0.01)
        assert found[name].pressure == pytest.approx(response.pressure, rel=0.01)
