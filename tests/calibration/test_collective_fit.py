"""Fits of all-reduce times: known constants are found, and what was left out says what is best."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simstrag.calibration.fits import allreduce_fit
from simstrag.calibration.fits.allreduce_fit import (
    ALGORITHMS,
    Algorithm,
    AllReducePoint,
    fit,
    points_around,
)
from simstrag.calibration.fits.visit_statistics import estimate
from simstrag.calibration.import_nccl_tests import choose, predict_placements
from simstrag.timing.constants import AllReduce

PLACEMENTS = ((2,), (8,), (8, 8), (8,) * 4, (8,) * 16)
SIZES = tuple(1 << k for k in range(10, 29, 2))


def measured(
    algorithm: Algorithm, placements: tuple[tuple[int, ...], ...] = PLACEMENTS, noise: float = 0.0
) -> list[AllReducePoint]:
    """By the simulator's own formula: 20 us and 10 GB/s between nodes, 3 us and 150 GB/s inside."""
    rng = np.random.default_rng(0)
    return [
        AllReducePoint(
            nodes, size,
            AllReduce(20e-6, 10e9, size, 0.0, algorithm, 3e-6, 150e9).seconds(nodes)
            * math.exp(noise * rng.normal()),
        )
        for nodes in placements
        for size in SIZES
    ]  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_constants_behind_the_times_are_found(algorithm: Algorithm) -> None:
    found = fit(measured(algorithm), algorithm)
    assert found.alpha == pytest.approx(20e-6, rel=1e-4)
    assert found.bandwidth == pytest.approx(10e9, rel=1e-4)
    assert found.intra_alpha == pytest.approx(3e-6, rel=1e-4)
    assert found.intra_bandwidth == pytest.approx(150e9, rel=1e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_simulator_takes_what_was_fitted(algorithm: Algorithm) -> None:
    points = measured(algorithm, noise=0.05)
    found = fit(points, algorithm)
    for point, residual in zip(points, found.residuals(points), strict=True):
        taken = found.law(point.bytes).seconds(point.ranks_per_node)
        assert taken == found.seconds(point)
        assert taken / point.seconds - 1 == residual


def test_on_one_machine_all_links_are_alike() -> None:
    found = fit([p for p in measured("ring") if p.ranks_per_node == (8,)])
    assert found.alpha == pytest.approx(3e-6, rel=1e-4)
    assert found.bandwidth == pytest.approx(150e9, rel=1e-4)
    assert found.intra_alpha is None
    assert found.intra_bandwidth is None


def test_small_sizes_count_as_much_as_large_ones() -> None:
    points = measured("ring", ((8,),), noise=0.05)
    residuals = fit(points).residuals(points)
    assert max(map(abs, residuals[:3])) < 0.15  # microseconds among seconds
    assert max(map(abs, residuals[-3:])) < 0.15


def test_one_wild_time_moves_the_constants_little() -> None:
    points = measured("ring", ((8,),), noise=0.02)
    clean = fit(points)
    points[0] = AllReducePoint((8,), points[0].bytes, 14 * points[0].seconds)
    assert fit(points).alpha == pytest.approx(clean.alpha, rel=0.15)
    assert fit(points).bandwidth == pytest.approx(clean.bandwidth, rel=0.05)


def held(sizes: tuple[int, ...], visits: int, rounds: int, off: float = 0.0) -> float:
    """Share of 95 % intervals of alpha and bandwidth with the truth in them.

    visits: to each size, 3 % apart from each other; 0 for single times without an error of their
    own.  off: standard deviation of what each size differs by from the formula, relative.
    """
    rng = np.random.default_rng(len(sizes) + visits)
    inside = []
    for _ in range(rounds):
        true = [(2e-4 + s / 1e9) * math.exp(off * rng.normal()) for s in sizes]
        times = [t * np.exp(0.03 * rng.normal(size=max(1, visits))) for t in true]
        estimates = [estimate(each) for each in times]
        points = [AllReducePoint((2,), s, e.value) for s, e in zip(sizes, estimates, strict=True)]
        found = fit(points, estimates=estimates if visits else ())
        inside += [
            found.low[name] <= value <= found.high.get(name, math.inf)
            for name, value in (("alpha", 1e-4), ("bandwidth", 1e9))
            if name in found.low
        ]
    assert len(inside) > 1.8 * rounds
    return float(np.mean(inside))


FEW_SIZES = (1 << 17, 1 << 18, 1 << 19)


@pytest.mark.parametrize("sizes", [FEW_SIZES, SIZES], ids=len)
def test_intervals_by_the_errors_of_cells_hold_the_truth_where_the_formula_is_true(
    sizes: tuple[int, ...],
) -> None:
    assert held(sizes, visits=5, rounds=200) >= 0.95


@pytest.mark.parametrize("sizes", [FEW_SIZES, SIZES], ids=len)
def test_intervals_of_single_times_hold_the_truth_as_often_as_they_say(
    sizes: tuple[int, ...],
) -> None:
    assert held(sizes, visits=0, rounds=300) == pytest.approx(0.95, abs=0.025)


def test_intervals_are_wider_where_the_formula_is_off_by_more_than_cells_errors() -> None:
    """Three sizes cannot tell well by how much: these are short of 95 %, and docs say so."""
    assert held(SIZES, visits=5, rounds=200, off=0.06) >= 0.9
    assert held(FEW_SIZES, visits=5, rounds=200, off=0.06) >= 0.8


def test_with_as_many_times_as_constants_nothing_is_told_of_the_error() -> None:
    estimates = [estimate([t, 1.02 * t, 0.99 * t]) for t in (2.1e-4, 1.2e-3)]
    points = [
        AllReducePoint((2,), s, e.value) for s, e in zip((1 << 14, 1 << 20), estimates, strict=True)
    ]
    for found in (fit(points), fit(points, estimates=estimates)):
        assert (found.low, found.high, found.freedom) == ({}, {}, 0)


def test_times_that_do_not_grow_tell_no_bandwidth() -> None:
    with pytest.raises(ValueError, match="no bandwidth"):
        fit([AllReducePoint((2,), size, 1e-3 / size) for size in SIZES])
    with pytest.raises(ValueError, match="do not tell"):
        fit([AllReducePoint((2,), 1024, 1e-3)])


def test_one_size_is_fitted_without_hops() -> None:
    points = [p for p in measured("ring") if p.bytes == SIZES[-1]]
    found = fit(points, "ring", hops=False)
    assert (found.alpha, found.intra_alpha) == (0.0, 0.0)
    assert found.bandwidth == pytest.approx(10e9, rel=0.05)


def test_what_is_left_out_is_not_seen() -> None:
    points = measured("ring")
    spoilt = [AllReducePoint(p.ranks_per_node, p.bytes, 2 * p.seconds) if p.ranks == 128 else p
              for p in points]  # fmt: skip
    errors = allreduce_fit.left_out_errors(
        spoilt, lambda given: fit(given).seconds, lambda p: p.ranks_per_node
    )
    assert len(errors) == len(points)
    for point, error in errors:
        if point.ranks == 128:
            assert error == pytest.approx(-0.5, abs=1e-3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_left_out_placements_tell_the_algorithm(algorithm: Algorithm) -> None:
    chosen, errors = choose(measured(algorithm, noise=0.01))
    assert chosen == algorithm
    assert errors[algorithm] < 0.03


def test_the_error_left_out_is_of_an_algorithm_chosen_without_what_is_left_out() -> None:
    """A placement that spoils the choice does so everywhere but where it is predicted itself."""
    points = [p for p in measured("halving_doubling") if p.bytes >= 1 << 20]
    spoilt = [replace(p, seconds=30 * p.seconds) if p.ranks == 128 else p for p in points]
    without = [p for p in points if p.ranks != 128]
    found = predict_placements(spoilt)
    assert found is not None
    chosen, _ = choose(without)
    law = fit(without, chosen)
    for cell, point in zip(
        [c for c in found.cells if "128 ranks" in c.cell],
        [p for p in spoilt if p.ranks == 128],
        strict=True,
    ):
        assert cell.predicted == pytest.approx(law.seconds(point), rel=1e-5)
    assert "chosen and fitted without it" in found.note
    assert choose(spoilt)[0] != chosen


def test_around_a_gradient_stay_the_sizes_near_it_and_three_at_least() -> None:
    points = measured("ring", ((2,),))
    assert [p.bytes for p in points_around(points, 1 << 20)] == [1 << 18, 1 << 20, 1 << 22]
    assert [p.bytes for p in points_around(points, 1e12)] == [1 << 24, 1 << 26, 1 << 28]
