"""Statistics of a comparison: ratios of means, paired over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from simstrag.experiments.paired_statistics import Estimate, difference, mean, mitigation, speedup

RNG = np.random.default_rng(0)
LUCK = RNG.normal(0, 1, 40)
"""Of forty seeds: the same for every policy."""


def test_the_mean_and_its_interval_agree_with_the_normal_theory_for_many_seeds() -> None:
    times = RNG.normal(100, 5, 400)
    estimate = mean(times)
    error = times.std() / 20
    assert estimate.value == times.mean()
    assert estimate.low == pytest.approx(times.mean() - 1.96 * error, abs=0.1 * error)
    assert estimate.high == pytest.approx(times.mean() + 1.96 * error, abs=0.1 * error)


def test_ninety_five_of_a_hundred_intervals_hold_the_truth() -> None:
    """Percentile bootstraps of 40 seeds are a little too narrow: 93 to 94 % is what they give."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        low, high = mean(rng.normal(0, 1, 40))[1:]
        covered += low <= 0 <= high
    assert 0.91 <= covered / 400 <= 0.97


def test_a_difference_is_paired_so_that_common_luck_cancels() -> None:
    baseline = 100 + 20 * LUCK
    estimate = difference(baseline - 3, baseline)
    assert estimate.value == pytest.approx(-3)
    assert (estimate.low, estimate.high) == pytest.approx((-3, -3))
    unpaired = difference(RNG.permutation(baseline) - 3, baseline)
    assert unpaired.high - unpaired.low > 5


def test_a_speed_up_by_the_same_factor_under_every_seed_is_certain() -> None:
    baseline = 100 + 20 * LUCK
    assert speedup(baseline / 1.25, baseline) == pytest.approx((1.25, 1.25, 1.25))


def test_a_speed_up_is_the_ratio_of_means_and_not_the_mean_of_ratios() -> None:
    times, baseline = np.array([1.0, 100.0]), np.array([10.0, 100.0])
    assert speedup(times, baseline).value == 110 / 101
    assert np.mean(baseline / times) == 5.5


def test_mitigation_is_a_ratio_of_means_too() -> None:
    times, baseline, clean = (np.array(a) for a in ([11.0, 30.0], [12.0, 40.0], [10.0, 20.0]))
    assert mitigation(times, baseline, clean).value == 11 / 22


@pytest.mark.parametrize(
    ("time", "share"), [(100.0, 1.0), (110.0, 0.5), (120.0, 0.0), (130.0, -0.5), (95.0, 1.25)]
)
def test_mitigation_is_the_share_of_straggler_delay_removed(time: float, share: float) -> None:
    one = np.ones(5)
    assert mitigation(time * one, 120 * one, 100 * one) == pytest.approx((share, share, share))


@pytest.mark.parametrize(
    ("delay", "defined"), [(0.0, False), (0.4, False), (0.6, True), (-5, False)]
)
def test_without_half_a_percent_of_delay_there_is_no_mitigation(
    delay: float, defined: bool
) -> None:
    one = np.ones(5)
    estimate = mitigation(100 * one, (100 + delay) * one, 100 * one)
    assert [not math.isnan(x) for x in estimate] == [defined] * 3


def test_an_interval_that_reaches_into_the_undefined_is_undefined() -> None:
    """Leaving those resamples out would claim a certainty that is not there."""
    clean = np.full(8, 100.0)
    baseline = clean + np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0])
    estimate = mitigation(clean, baseline, clean)
    assert estimate.value == 1.0
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)


def test_a_few_undefined_resamples_widen_the_interval() -> None:
    """Four in a thousand resamples here hold too little delay; they count at either end."""
    clean = np.full(12, 100.0)
    baseline = clean + np.array([0.0] * 4 + [1.5] * 8)
    estimate = mitigation((baseline + clean) / 2 + 0.1, baseline, clean)
    assert estimate.low < estimate.value < estimate.high
    assert math.isfinite(estimate.low)


def test_one_seed_has_no_interval() -> None:
    estimate = mean(np.array([3.0]))
    assert estimate.value == 3.0
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)


def test_a_run_that_never_reached_its_target_leaves_no_estimate() -> None:
    assert all(math.isnan(x) for x in mean(np.array([1.0, math.nan, 2.0])))
    assert all(math.isnan(x) for x in speedup(np.array([1.0, math.nan]), np.array([2.0, 2.0])))


def test_the_interval_is_the_same_every_time() -> None:
    times = 100 + 5 * LUCK
    assert mean(times) == mean(times.copy())


def test_the_bootstrap_agrees_with_scipys() -> None:
    times, baseline = 80 + 5 * LUCK + RNG.normal(0, 1, 40), 100 + 8 * LUCK
    ours = speedup(times, baseline)
    theirs = stats.bootstrap(
        (times, baseline),
        lambda a, b, axis: np.mean(b, axis=axis) / np.mean(a, axis=axis),
        paired=True, method="percentile", n_resamples=20_000, vectorized=True, rng=0,
    ).confidence_interval  # fmt: skip
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.05 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.05 * width)


def test_an_estimate_is_a_value_and_two_ends() -> None:
    assert Estimate(1.0, 0.5, 1.5).low == 0.5
