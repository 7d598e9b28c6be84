"""Estimates over visits: they find what is true, and their intervals hold it as often as stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.noise_scale import noise_scales
from simstrag.calibration.fits.step_estimates import describe_noise
from simstrag.calibration.fits.visit_statistics import (
    CORRELATED_STEPS,
    clip,
    draw_values,
    estimate,
    lag1_autocorrelation,
    measured_quantity,
    noise_quantiles,
    ratio,
    relative_half_width,
    student_quantile,
    visit_statistic,
)
from simstrag.calibration.samples import Samples
from simstrag.learning.noise_scale_estimate import (
    NoiseScaleEstimate,
    NormPair,
    estimate_noise_scale,
)
from simstrag.profile.quantity import Quantity
from tests.support.synthetic import NOISE_SCALE, Machine, samples_of


@pytest.mark.parametrize("visits", [3, 5, 12])
def test_an_interval_holds_the_truth_about_19_times_in_20(visits: int) -> None:
    rng = np.random.default_rng(visits)
    held = 0
    for _ in range(2000):
        found = estimate(0.1 * np.exp(0.03 * rng.normal(size=visits)))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.1 <= found.high
    assert 0.93 <= held / 2000 <= 0.985


def test_one_visit_has_no_interval_and_two_have_a_wide_one() -> None:
    one, two = estimate([0.1]), estimate([0.1, 0.102])
    assert (one.low, one.high, one.error) == (None, None, math.inf)
    assert relative_half_width([0.1]) == math.inf
    assert relative_half_width([0.1, 0.102]) > 0.1
    assert two.low > 0
    assert measured_quantity(one, "alone").low is None


def test_no_visit_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="no visit"):
        estimate([])


def test_one_visit_that_was_disturbed_does_not_move_the_estimate() -> None:
    assert estimate([0.1, 0.101, 0.1, 0.099, 0.25]).value == 0.1


def test_a_share_may_be_negative_and_its_error_is_in_its_own_unit() -> None:
    found = estimate([-0.02, 0.01, 0.0, -0.01], relative=False)
    assert found.value == pytest.approx(-0.005)
    assert found.low < 0


@pytest.mark.parametrize("freedom", [1, 2, 5, 10, 11, 30, 200])
def test_the_quantile_of_student_is_that_of_tables(freedom: int) -> None:
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=0.003)


def test_draws_spread_as_the_intervals_do() -> None:
    given = estimate([0.1, 0.104, 0.098, 0.101, 0.097])
    (low,), (high,) = np.quantile(draw_values([given], 20_000), [[0.025], [0.975]])
    assert (low, high) == pytest.approx((given.low, given.high), rel=0.003)
    assert np.array_equal(draw_values([given]), draw_values([given]))


def test_what_has_no_error_is_drawn_as_it_is() -> None:
    assert np.all(draw_values([estimate([0.1])]) == 0.1)


def test_the_error_of_a_ratio_is_that_of_both() -> None:
    a, b = estimate([2.0, 2.1, 1.9]), estimate([1.0, 1.05, 0.95, 1.01])
    found = ratio(a, b)
    assert (found.value, found.visits) == (pytest.approx(2.0 / 1.005), 3)
    assert found.error == pytest.approx(math.hypot(a.error, b.error))
    assert ratio(a, estimate([1.0])).low is None


def test_drift_between_visits_is_no_noise() -> None:
    """Steps of each visit scatter by 3 %, visits by 20 %: noise is of 3 %, the interval wide."""
    rng = np.random.default_rng(0)
    machine = Machine(drift=0.2, cv=0.03, lag=0.0)
    visits = [machine.steps(rng, 0.1, 500) for _ in range(8)]
    table = noise_quantiles(visits)
    assert (table[1:] + table[:-1]).mean() / 2 == pytest.approx(1, abs=1e-12)
    drawn = np.interp(rng.random(100_000), np.linspace(0, 1, len(table)), table)
    assert drawn.std() == pytest.approx(0.03, rel=0.05)
    assert relative_half_width([float(np.median(v)) for v in visits]) > 0.1


@pytest.mark.parametrize("lag", [0.0, 0.4, 0.8])
def test_the_autocorrelation_is_that_within_visits(lag: float) -> None:
    rng = np.random.default_rng(1)
    machine = Machine(drift=0.2, cv=0.03, lag=lag)
    assert lag1_autocorrelation([machine.steps(rng, 0.1, 500) for _ in range(10)]) == pytest.approx(
        lag, abs=0.05
    )


@pytest.mark.parametrize("steps", [3, 5, 60])
def test_independent_steps_scatter_as_in_truth_however_short_visits_are(steps: int) -> None:
    rng = np.random.default_rng(4)
    machine = Machine(drift=0.05, cv=0.03, lag=0.0)
    table = noise_quantiles([machine.steps(rng, 0.1, steps) for _ in range(6000 // steps)])
    drawn = np.interp(rng.random(100_000), np.linspace(0, 1, len(table)), table)
    assert drawn.std() == pytest.approx(0.03, rel=0.03)


def test_noise_of_wild_pairs_stays_above_0() -> None:
    assert noise_quantiles([[0.01, 9.0]] * 20).min() > 0


def test_short_visits_tell_no_autocorrelation() -> None:
    """Five independent steps over their own mean look correlated by -0.25."""
    rng = np.random.default_rng(5)
    machine = Machine(cv=0.03, lag=0.0)
    short = [machine.steps(rng, 0.1, 5) for _ in range(400)]
    assert lag1_autocorrelation(short) is None
    long = [machine.steps(rng, 0.1, CORRELATED_STEPS) for _ in range(100)]
    assert (
        lag1_autocorrelation([*short, *long])
        == lag1_autocorrelation(long)
        == pytest.approx(0, abs=0.1)
    )
    noise = describe_noise(short)
    assert noise.lag1_autocorrelation is None
    assert "No visit has 20 steps" in noise.note


def test_too_few_steps_tell_neither_noise_nor_autocorrelation() -> None:
    assert describe_noise([[0.1, 0.11], [0.1]]) is None
    assert describe_noise([[0.1]] * 100) is None
    assert lag1_autocorrelation([[0.1], [0.2]]) is None
    assert lag1_autocorrelation([[0.1] * 100]) is None


def test_a_quantity_tells_its_standard_error_in_its_own_unit() -> None:
    times, share = estimate([0.1, 0.104, 0.098, 0.101]), estimate([-0.1, 0.1], relative=False)
    assert measured_quantity(times, "").error == pytest.approx(times.value * times.error, rel=1e-5)
    assert measured_quantity(share, "").error == pytest.approx(share.error, rel=1e-5)
    assert measured_quantity(estimate([0.1]), "").error is None


@pytest.mark.parametrize(
    ("ends", "left"),
    [((-0.4, -0.2), (None, None)), ((-0.4, 0.1), (0.0, 0.1)), ((-0.4, 0.0), (None, None)),
     ((None, None), (None, None)), ((-0.4, 1.5), (0.0, 1.0))],
)  # fmt: skip
def test_what_cannot_be_is_cut_and_its_interval_as_far_as_it_reaches_inside(
    ends: tuple[float | None, float | None], left: tuple[float | None, float | None]
) -> None:
    low, high = ends
    found = clip(Quantity(value=-0.3, kind="measured", low=low, high=high, error=0.1), 0.0, 1.0)
    assert (found.value, found.low, found.high, found.error) == (0.0, *left, None)
    assert "measured -0.3" in found.note
    assert ("; no interval" in found.note) == (low is not None and left[0] is None)


def test_what_can_be_is_left_as_it_is() -> None:
    given = Quantity(value=0.3, kind="measured", low=0.2, high=0.4, error=0.05, note="so")
    assert clip(given, 0.0, 1.0) == given
    wide = clip(given.model_copy(update={"low": -0.1}), 0.0, 1.0)
    assert (wide.low, wide.high, wide.error, wide.note) == (0.0, 0.4, 0.05, "so")


SERIES = {"seconds": (0.2, 0.4, 0.3), "clean": (0.1, 0.1, 0.1)}


@pytest.mark.parametrize(
    ("part", "samples", "value"),
    [
        ("step", {"seconds": (0.2, 0.4, 0.3), "host": (9.0,)}, 0.3),
        ("contention", SERIES, 3.0),
        ("allreduce", {"seconds": (0.2,)}, 0.2),
        ("overlap", {"compute": (0.1,), "together": (0.15,), "apart": (0.2,)}, 1.5),
        ("lockstep", {"alone": (9.0,), "local": (0.1, 0.3), "rest": (0.1,)}, 0.3),
        ("server", {"push": (0.1,), "service": (0.3,), "pull": (0.2,)}, 0.6),
        ("gradient", {"small": (3.0,), "large": (1.0,)}, 1.0),
    ],
)
def test_each_part_has_a_number_by_which_more_visits_are_made(
    part: str, samples: dict[str, tuple[float, ...]], value: float
) -> None:
    visit = Visit(MeasurementCell(part, batch=8), 0, 0.0, samples)  # type: ignore[arg-type]
    assert visit_statistic(visit) == pytest.approx(value)


def noise_scale_of(small: list[float], large: list[float]) -> NoiseScaleEstimate | None:
    norms = zip(small, large, strict=True)
    return estimate_noise_scale([NormPair(one, other, 4, 32) for one, other in norms])


def test_the_noise_scale_is_found_without_bias() -> None:
    """Gradients of 50 numbers: |G|^2 = 1 and tr(Sigma) = 40, from pairs of batches of 4 and 32."""
    rng = np.random.default_rng(2)
    true = np.full(50, 1 / math.sqrt(50))
    small, large = (
        ((true + rng.normal(size=(3000, 50)) * math.sqrt(40 / 50 / b)) ** 2).sum(axis=1)
        for b in (4, 32)
    )
    found = noise_scale_of(small.tolist(), large.tolist())
    assert found.value == pytest.approx(40, rel=0.06)
    assert found.low < 40 < found.high
    assert found.high - found.low < 8


def test_without_a_signal_above_the_noise_there_is_no_noise_scale() -> None:
    assert noise_scale_of([4.0, 4.0], [0.5, 0.5]) is None
    assert noise_scale_of([1.0, 1.0], [1.1, 1.1]) is None


def test_an_interval_without_an_end_is_told_to_have_none() -> None:
    rng = np.random.default_rng(3)
    small, large = (20 / b * rng.chisquare(5, 12) / 5 + 0.05 for b in (4, 32))
    found = noise_scale_of(small.tolist(), large.tolist())
    assert found.high is None


def test_the_noise_scale_is_told_along_the_training_and_where_it_is_not() -> None:
    samples = samples_of(Machine(), [MeasurementCell("gradient", batch=8)], visits=3)
    lost = Visit(
        MeasurementCell("gradient", batch=8), 3, 3.0, {"small": (4.0, 4.0), "large": (0.5, 0.5)},
        {"trained": 500, "small_batch": 4, "large_batch": 32},
    )  # fmt: skip
    found, without = noise_scales(Samples(samples.header, (*samples.visits, lost)))
    assert [(each.batch, each.trained) for each in found] == [(8, 0), (8, 1000), (8, 2000)]
    assert [each.scale.value for each in found] == pytest.approx([NOISE_SCALE] * 3, rel=0.05)
    (untold,) = without
    assert untold.cell == "gradient batch 8, noise scale after 500 samples"
    assert "2 pairs of gradients of 4 and 32 samples leave no signal" in untold.reason
