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


@pytest.mark.parametrize("n", [2, 3, 5, 20])
@pytest.mark.parametrize("kind", ["mean", "speed-up", "mitigation"])
def test_ninety_five_of_a_hundred_intervals_hold_the_truth(n: int, kind: str) -> None:
    """However few seeds there are; an interval that is not defined claims nothing."""
    rng = np.random.default_rng(n)
    missed = 0
    for _ in range(2000):
        luck = rng.normal(0, 0.2, n)
        times, baseline, clean = (
            level + share * luck + rng.normal(0, 0.1, n)
            for level, share in ((10.0, 1.0), (15.0, 2.0), (8.0, 0.3))
        )
        truth, (_, low, high) = {
            "mean": (10.0, mean(times)),
            "speed-up": (1.5, speedup(times, baseline)),
            "mitigation": (5 / 7, mitigation(times, baseline, clean)),
        }[kind]
        missed += not low <= truth <= high and not math.isnan(low)
    assert missed / 2000 == pytest.approx(0.05, abs=0.015)


def test_a_difference_is_paired_so_that_common_luck_cancels() -> None:
    baseline = 100 + 20 * LUCK
    estimate = difference(baseline - 3, baseline)
    assert estimate.value == pytest.approx(-3)
    assert (estimate.low, estimate.high) == pytest.approx((-3, -3))
    unpaired = difference(RNG.permutation(baseline) - 3, baseline)
    assert unpaired.high - unpaired.low > 5


def test_no_interval_of_times_reaches_below_0_as_one_of_differences_may() -> None:
    """Two seeds: Student's half width is 12.7 times the standard error."""
    times, nothing = np.array([520.0, 600.0]), np.zeros(2)
    assert difference(times, nothing).high == mean(times).high == pytest.approx(560 + 508.2, abs=1)
    assert mean(times) == difference(times, nothing)
    wide = np.array([500.0, 620.0])
    assert difference(wide, nothing).low < 0
    assert mean(wide) == (560.0, 0.0, difference(wide, nothing).high)
    assert speedup(np.array([10.0, 10.1]), wide)[:2] == (560 / 10.05, 0.0)
    assert difference(wide, 2 * wide).low < mean(wide).low


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


def test_a_delay_that_is_not_shown_gives_mitigation_no_interval() -> None:
    clean = np.full(8, 100.0)
    baseline = clean + np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0])
    estimate = mitigation(clean, baseline, clean)
    assert estimate.value == 1.0
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)


@pytest.mark.parametrize("gain", np.linspace(0.0, 2.0, 9))
def test_a_speed_up_is_shown_exactly_where_the_difference_is(gain: float) -> None:
    """On both sides of the limit, so that no two numbers of a report contradict each other."""
    baseline = 100 + 5 * LUCK[:6]
    times = baseline - gain + RNG.normal(0, 1, 6)
    assert (difference(times, baseline).high < 0) == (speedup(times, baseline).low > 1)


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


def test_the_interval_of_a_mean_is_that_of_scipys_t_test() -> None:
    theirs = stats.ttest_1samp(LUCK, 0).confidence_interval(0.95)
    nothing = np.zeros(len(LUCK))
    assert difference(LUCK, nothing)[1:] == pytest.approx((theirs.low, theirs.high), rel=1e-12)


def test_the_ends_of_a_ratio_are_where_the_t_test_turns() -> None:
    times, baseline = 80 + 5 * LUCK + RNG.normal(0, 1, 40), 100 + 8 * LUCK
    for end in speedup(times, baseline)[1:]:
        assert stats.ttest_1samp(baseline - end * times, 0).pvalue == pytest.approx(0.05, rel=1e-9)


def test_an_estimate_is_a_value_and_two_ends() -> None:
    assert Estimate(1.0, 0.5, 1.5).low == 0.5
