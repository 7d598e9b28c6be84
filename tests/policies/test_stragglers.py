"""Detectors: pure functions on arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.contract.ties import is_at_most
from simstrag.contract.view import device_gain
from simstrag.errors import InputError
from simstrag.policies.estimators.detectors import (
    Baseline,
    Limit,
    baseline,
    find_suspects,
    full_precision_time,
    mad,
    may_stand_out,
    median,
    robust_z,
)

SECONDS = st.floats(1e-3, 1e3)


@given(st.lists(SECONDS, min_size=1, max_size=20))
def test_the_median_is_numpys(values: list[float]) -> None:
    assert median(np.array(values)) == pytest.approx(np.median(values), rel=1e-15)


def test_a_window_that_is_not_full_has_no_median() -> None:
    assert np.isnan(median(np.array([1.0, math.nan])))


@given(st.lists(SECONDS, min_size=3, max_size=20))
def test_the_robust_z_is_the_modified_z_score_of_iglewicz_and_hoaglin(values: list[float]) -> None:
    x = np.array(values)
    spread = float(mad(x))
    if spread > 1e-6:
        z = robust_z(x, float(median(x)), 1.4826 * spread)
        assert z == pytest.approx(0.6745 * (x - np.median(x)) / spread, rel=1e-4, abs=1e-9)


def test_of_two_ranks_the_mad_makes_every_deviation_equal() -> None:
    x = np.array([1.0, 50.0])
    z = robust_z(x, float(median(x)), 1.4826 * float(mad(x)))
    assert z == pytest.approx([-0.6745, 0.6745], rel=1e-4)


def windows_of(*levels: float) -> np.ndarray:
    """Windows of ten equal times, one row per level."""
    return np.repeat(np.array(levels)[:, np.newaxis], 10, axis=1)


def baseline_of(windows: np.ndarray, clean: float | None = None, guard: bool = True) -> Baseline:
    return baseline(
        median(windows), lambda: windows, clean=clean, delta=0.1, floor=0.01, guard=guard
    )


def test_among_three_ranks_the_reference_is_their_median() -> None:
    assert baseline_of(windows_of(1.0, 1.1, 3.0)) == pytest.approx((1.1, 1.4826 * 0.1))


def test_two_ranks_are_compared_with_the_faster_one() -> None:
    assert baseline_of(windows_of(1.2, 3.0)).reference == 1.2


def test_no_reference_lies_below_a_known_clean_step_where_ranks_are_few() -> None:
    assert baseline_of(windows_of(0.9, 3.0), clean=1.0).reference == 1.0


def test_a_cluster_slow_as_a_whole_is_compared_with_its_fastest_rank() -> None:
    mostly_contended = windows_of(1.0, 2.0, 2.0, 2.0)
    assert baseline_of(mostly_contended, clean=1.0).reference == 1.0
    assert baseline_of(mostly_contended, clean=1.0, guard=False).reference == 2.0


def test_without_a_clean_step_nothing_guards_against_a_shift_of_all() -> None:
    assert baseline_of(windows_of(1.0, 2.0, 2.0, 2.0)).reference == 2.0


def test_a_clean_time_known_too_low_does_not_make_everybody_a_suspect() -> None:
    windows = windows_of(1.0, 1.0, 1.0, 1.0)
    against = baseline_of(windows, clean=0.85)
    assert not find_suspects(median(windows), against, z_on=3.5, delta_on=0.1).any()


def test_few_ranks_take_their_scale_from_their_own_windows() -> None:
    window = np.array([0.8, 0.8, 0.9, 0.9, 1.0, 1.0, 1.1, 1.1, 1.2, 1.2])
    against = baseline_of(np.array([window, window]))
    assert against.scale == pytest.approx(1.4826 * 0.1 * 1.2533 / math.sqrt(10))


def test_a_rank_without_a_median_takes_part_in_nothing() -> None:
    windows = windows_of(1.0, 1.0, 1.0, 9.0)
    windows[3, 0] = math.nan
    assert baseline_of(windows) == baseline_of(windows_of(1.0, 1.0, 1.0))
    assert not find_suspects(median(windows), baseline_of(windows), 3.5, 0.1).any()


def test_nothing_is_known_of_a_cluster_without_any_median() -> None:
    assert np.isnan(baseline_of(np.full((3, 10), math.nan))).all()


def test_fast_outliers_are_no_suspects() -> None:
    x = np.array([1.0, 1.0, 1.0, 0.2])
    assert not find_suspects(x, Baseline(1.0, 0.01), 3.5, 0.1).any()


def test_a_suspect_must_pass_both_gates() -> None:
    beyond_noise_only, beyond_share_only, both = 1.05, 1.2, 1.5
    x = np.array([beyond_noise_only, beyond_share_only, both])
    assert find_suspects(x[:1], Baseline(1.0, 0.01), 3.5, 0.1).tolist() == [False]
    assert find_suspects(x[1:], Baseline(1.0, 0.1), 3.5, 0.1).tolist() == [False, True]


@given(rho=st.floats(1.0, 3.0), share=st.floats(0.0, 0.3))
def test_the_full_precision_time_is_exact_without_contention(rho: float, share: float) -> None:
    amp_time = np.array([1.0 / rho])
    assert full_precision_time(amp_time, rho, share, 1.0) == pytest.approx([1.0])


@given(c=st.floats(1.0, 5.0), rho=st.floats(1.0, 3.0))
def test_it_is_exact_under_gpu_contention_too_where_all_is_gpu(c: float, rho: float) -> None:
    assert full_precision_time(np.array([c / rho]), rho, 0.0, 1.0) == pytest.approx([c])


@given(c=st.floats(1.0, 5.0))
def test_with_a_known_host_part_gpu_contention_is_still_converted_exactly(c: float) -> None:
    host, gpu, rho = 0.25, 0.75, 1.5
    amp_time = np.array([host + gpu * c / device_gain(rho, host, host + gpu)])
    assert full_precision_time(amp_time, rho, host, 1.0) == pytest.approx([host + gpu * c])


def test_a_step_without_a_device_part_gains_nothing() -> None:
    assert device_gain(1.5, 1.0, 1.0) == 1.0


def test_a_ratio_that_the_host_part_forbids_is_refused() -> None:
    with pytest.raises(InputError, match=r"rho 3 is impossible .* must be below 2"):
        device_gain(3.0, 0.5, 1.0)


# -- checks that need no judgement ---------------------------------------------------------------


ON, OFF = Limit(0.1, 3.5, 0.01), Limit(0.05, 2.0, 0.025)


@given(seed=st.integers(0, 2**32 - 1), ranks=st.integers(1, 9), guard=st.booleans())
def test_a_rank_that_stands_out_is_foreseen(seed: int, ranks: int, guard: bool) -> None:
    random = np.random.default_rng(seed)
    windows = random.normal(1.0, random.choice([0.001, 0.02, 0.05]), (6, ranks, 3))
    slow = random.random(ranks) < random.choice([0.0, 0.3])
    windows[:, random.random(ranks) < random.choice([0.0, 0.3])] *= random.choice([1.12, 1.3, 0.8])
    windows[random.random((6, ranks, 3)) < random.choice([0.0, 0.1])] = math.nan
    clean = random.choice([None, 0.9, 0.95, 1.0])  # at .9 some medians are contended
    x = median(windows)
    foreseen = may_stand_out(
        x, np.flatnonzero(~slow), np.flatnonzero(slow), on=ON, off=OFF, clean=clean, guard=guard
    )
    for row, own, said in zip(x, windows, foreseen.tolist(), strict=True):
        against = baseline_of(own, clean, guard)
        scale = max(against.scale, OFF.floor * against.reference)
        well = is_at_most(row, (1 + OFF.delta) * against.reference)
        well &= is_at_most(robust_z(row, against.reference, scale), OFF.z)
        stands_out = find_suspects(row, against, ON.z, ON.delta)[~slow].any() or well[slow].any()
        known = row[~np.isnan(row)]
        of_median = len(known) > 2 and against.reference == np.median(known)
        assert said == stands_out if of_median else said >= stands_out
