"""Noise has mean 1 and depends on seed, rank and step alone."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simstrag.errors import InputError
from simstrag.timing import noise
from simstrag.timing.noise import BLOCK, CELLS, END, Distribution, Noise

DRAWS = {
    "lognormal": noise.lognormal(0.3),
    "shifted_exponential": noise.shifted_exponential(0.3),
    "quantiles": noise.quantiles([0.8, 0.9, 1.0, 1.1, 1.2]),
    "lasting lognormal": noise.lognormal(0.3, lag1=0.6),
    "lasting exponential": noise.shifted_exponential(0.9, lag1=0.5),
    "lasting quantiles": noise.quantiles([0.7, 0.8, 0.95, 1.05, 1.5], lag1=0.56),
    "alternating": noise.lognormal(0.3, lag1=-0.4),
}
MANY = 200_000
KINDS = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
LASTING = pytest.mark.parametrize(
    "draw", [pytest.param(draw, id=name) for name, draw in DRAWS.items() if draw.lag1]
)


def sample(draw: Distribution, seed: int = 7, rank: int = 0, n: int = MANY) -> np.ndarray:
    """Factors of one rank, block after block."""
    key = noise.keys(seed, [rank])[0]
    blocks = [draw.factors(key, first, BLOCK) for first in range(0, n, BLOCK)]
    return np.concatenate(blocks)[:n]


def autocorrelation(factors: np.ndarray, lag: int) -> float:
    return float(np.corrcoef(factors[lag:], factors[:-lag])[0, 1])


@KINDS
def test_the_mean_is_one_within_four_standard_errors(draw: Distribution) -> None:
    factors = sample(draw)
    lasting = math.sqrt((1 + draw.rho) / (1 - draw.rho))
    assert abs(factors.mean() - 1) < 4 * lasting * factors.std() / math.sqrt(MANY)


@pytest.mark.parametrize("cv", [0.01, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["lognormal", "shifted_exponential"])
def test_the_coefficient_of_variation_is_the_declared_one(kind: str, cv: float) -> None:
    factors = sample(getattr(noise, kind)(cv))
    assert factors.std() / factors.mean() == pytest.approx(cv, rel=0.02)


@pytest.mark.parametrize(("cv", "realised"), [(2, 2.003), (5, 4.995), (10, 9.812), (30, 26.55)])
def test_a_wide_lognormal_has_less_spread_than_stated(cv: float, realised: float) -> None:
    """By its table, which ends at 5.67 standard deviations of the logarithm (rule 4)."""
    table = noise.lognormal(cv).quantiles
    low, high = table[:, :-1], table[:, 1:]
    squares = (noise.WEIGHTS * (low * low + low * high + high * high)).sum() / 3
    assert math.sqrt(squares - 1) == pytest.approx(realised, rel=1e-3)


def test_lognormal_noise_is_lognormal() -> None:
    sigma = math.sqrt(math.log1p(0.3**2))
    shape = stats.lognorm(sigma, scale=math.exp(-(sigma**2) / 2))
    assert stats.kstest(sample(noise.lognormal(0.3)), shape.cdf).pvalue > 0.01


def test_shifted_exponential_noise_is_a_constant_part_and_an_exponential_one() -> None:
    shape = stats.expon(loc=0.7, scale=0.3)
    assert stats.kstest(sample(noise.shifted_exponential(0.3)), shape.cdf).pvalue > 0.01


def test_empirical_noise_has_the_declared_quantiles() -> None:
    table = [0.7, 0.8, 0.95, 1.05, 1.4]
    mean = 0.9625  # of draws between them
    drawn = sample(noise.quantiles(table)) * mean
    for level, quantile in zip(np.linspace(0, 1, 5), table, strict=True):
        assert np.quantile(drawn, level) == pytest.approx(quantile, abs=0.005)


def test_empirical_noise_is_linear_between_its_quantiles() -> None:
    mean = 2.25
    drawn = sample(noise.quantiles([1.0, 2.0, 4.0])) * mean
    assert np.quantile(drawn, [0.25, 0.75]) == pytest.approx([1.5, 3.0], abs=0.02)


def test_shifted_exponential_noise_cannot_vary_more_than_its_mean() -> None:
    with pytest.raises(InputError, match=r"cv of shifted_exponential noise must be at most 1, not"):
        noise.shifted_exponential(1.5)


@KINDS
@given(asked=st.lists(st.integers(0, 3000), min_size=1, max_size=8))
def test_factor_k_is_the_same_in_whatever_order_it_is_asked_for(
    draw: Distribution, asked: list[int]
) -> None:
    in_order = sample(draw, seed=3, rank=5, n=3001)
    factors = Noise(3, draw)
    assert [factors.factor(5, k) for k in asked] == [in_order[k] for k in asked]


@KINDS
def test_other_ranks_do_not_disturb_the_stream_of_a_rank(draw: Distribution) -> None:
    alone, among = Noise(0, draw), Noise(0, draw)
    for rank in (4, 1, 2):
        among.factor(rank, 2000)
    assert alone.factor(3, 10) == among.factor(3, 10)


@KINDS
def test_ranks_and_seeds_have_different_luck(draw: Distribution) -> None:
    noises = [Noise(seed, draw) for seed in range(5)]
    drawn = {each.factor(rank, k) for each in noises for rank in range(5) for k in (0, 1)}
    assert len(drawn) == 50


@KINDS
def test_the_streams_of_neighbouring_ranks_and_seeds_are_uncorrelated(draw: Distribution) -> None:
    pairs = ((0, 0), (0, 1), (1, 0), (1, 1))
    drawn = [sample(draw, seed, rank, MANY // 10) for seed, rank in pairs]
    correlations = np.corrcoef(drawn)[np.triu_indices(4, 1)]
    lasting = (1 + draw.rho**2) / (1 - draw.rho**2)
    assert np.abs(correlations).max() < 4 * math.sqrt(lasting / (MANY // 10))


def test_without_a_distribution_there_is_no_noise() -> None:
    assert Noise(0, None).factor(3, 10**9) == 1.0


def test_another_process_draws_the_same_numbers() -> None:
    program = (
        "from simstrag.timing.noise import Noise, lognormal, shifted_exponential, quantiles\n"
        "draws = (lognormal(0.3), shifted_exponential(0.3), quantiles([0.8, 0.9, 1.0, 1.1, 1.2]),\n"
        "    lognormal(0.3, 0.6), shifted_exponential(0.9, 0.5),\n"
        "    quantiles([0.7, 0.8, 0.95, 1.05, 1.5], 0.56), lognormal(0.3, -0.4))\n"
        "for draw in draws:\n"
        "    print(*(Noise(9, draw).factor(r, k).hex() for r in (0, 7) for k in (0, 1023, 1024)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    here = [
        [Noise(9, draw).factor(r, k).hex() for r in (0, 7) for k in (0, 1023, 1024)]
        for draw in DRAWS.values()
    ]
    assert [line.split() for line in answer.stdout.splitlines()] == here


def test_the_words_are_those_of_splitmix64() -> None:
    """The outputs that its authors' program prints for the seed 1234567."""
    words = noise.nth(np.array([1234567], np.uint64), np.arange(3, dtype=np.uint64))
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_factor_is_the_quantile_at_the_word_of_seed_rank_and_step() -> None:
    """Rule 4: any implementation must give these; a change of them changes every published run."""
    key = noise.keys(11, [2])[0]
    words = noise.nth(np.array([key]), np.arange(3, dtype=np.uint64))
    levels = words / 2.0**64
    sigma = math.sqrt(math.log1p(0.3**2))
    expected = np.exp(sigma * stats.norm.ppf(levels) - sigma**2 / 2)
    factors = [Noise(11, noise.lognormal(0.3)).factor(2, k) for k in range(3)]
    assert factors == pytest.approx(expected, rel=1e-4)
    assert factors == [0.759988757240761, 0.7685058098115531, 0.9796991037206565]


def test_a_lasting_factor_is_a_function_of_seed_rank_and_step() -> None:
    """Rule 4 again: the autoregressive process, started anew in each block."""
    lasting = Noise(11, noise.lognormal(0.3, lag1=0.6))
    assert [lasting.factor(2, k) for k in (0, 1, 5000)] == [
        0.7079883589822651,
        0.6689911619817864,
        1.2009853366817649,
    ]


@LASTING
def test_successive_factors_have_the_declared_autocorrelation(draw: Distribution) -> None:
    factors = sample(draw, n=4 * MANY)
    assert autocorrelation(factors, 1) == pytest.approx(draw.lag1, abs=0.01)


def test_autocorrelation_falls_by_the_same_factor_with_every_step() -> None:
    factors = sample(noise.lognormal(0.05, lag1=0.6), n=4 * MANY)
    assert [autocorrelation(factors, k) for k in (2, 3, 4)] == pytest.approx(
        [0.6**k for k in (2, 3, 4)], abs=0.01
    )


HARD = {
    "two levels": ([1.0] * 95 + [9.0] * 5, 0.8),
    "two levels, long": ([1.0] * 95 + [9.0] * 5, 0.9),
    "two levels, alternating": ([1.0] * 95 + [9.0] * 5, -0.04),
    "two equal levels": ([1.0] * 50 + [9.0] * 50, 0.9),
    "five levels": ([0.7, 0.8, 0.95, 1.05, 1.5], 0.95),
}


@pytest.mark.parametrize(("values", "lag1"), HARD.values(), ids=HARD)
def test_levels_with_steps_between_them_have_the_declared_autocorrelation(
    values: list[float], lag1: float
) -> None:
    """By integrals over two successive normal numbers; the series falls slowly for such levels."""
    draw = noise.quantiles(values, lag1)
    x = np.arange(-6, 6.001, 1 / 256)
    density = stats.norm.pdf(x) / stats.norm.pdf(x).sum()
    nodes = np.arange(len(draw.marginal) - 1) / noise.PER_UNIT - noise.REACH

    def factor(normal: np.ndarray) -> np.ndarray:
        return np.interp(normal, nodes, draw.marginal[:-1]) - 1

    following = factor(draw.rho * x[:, None] + draw.innovation * x) @ density
    realised = (density * factor(x) * following).sum() / (density * factor(x) ** 2).sum()
    assert realised == pytest.approx(lag1, abs=1.5e-3)


@LASTING
def test_the_process_goes_on_where_one_block_ends_and_the_next_begins(draw: Distribution) -> None:
    """The first factor of a block is what the block before would have drawn next."""
    key = noise.keys(0, [0])[0]
    beyond, block = draw.factors(key, 0, BLOCK + 1), draw.factors(key, BLOCK, 1)
    assert block[0] == pytest.approx(beyond[BLOCK], rel=1e-7)


@pytest.mark.parametrize("kind", ["lognormal", "shifted_exponential"])
@pytest.mark.parametrize("level", [0.001, 0.01, 0.5, 0.99, 0.999])
def test_autocorrelation_leaves_the_quantiles_as_they_are(kind: str, level: float) -> None:
    one, other = sample(getattr(noise, kind)(0.5)), sample(getattr(noise, kind)(0.5, 0.6))
    assert np.quantile(other, level) == pytest.approx(np.quantile(one, level), rel=0.03)


@pytest.mark.parametrize("cv", [1e-9, 1e-6, 1e-5, 1e-4])
def test_little_noise_lasts_as_long_as_much(cv: float) -> None:
    assert noise.lognormal(cv, lag1=0.5).rho == pytest.approx(0.5, abs=1e-3)


def test_equal_quantiles_are_worked_out_once() -> None:
    assert noise.quantiles([0.9, 1.1], lag1=0.5) is noise.quantiles((0.9, 1.1), lag1=0.5)


def test_noise_without_spread_is_none_whatever_its_autocorrelation() -> None:
    flat = noise.quantiles([1.0, 1.0], lag1=0.5)
    assert flat.factors(noise.keys(0, [0])[0], 0, 3).tolist() == [1.0, 1.0, 1.0]


def test_hardly_any_autocorrelation_is_none() -> None:
    almost, independent = noise.lognormal(0.3, 1e-20), noise.lognormal(0.3)
    assert almost.quantiles.tolist() == independent.quantiles.tolist()


def test_an_autocorrelation_that_the_shape_does_not_allow_is_refused() -> None:
    message = r"noise of this shape cannot have lag1 -0\.95; give one between -0\.\d+ and 0\.9"
    with pytest.raises(InputError, match=message):
        noise.shifted_exponential(1.0, lag1=-0.95)


@pytest.mark.parametrize("table", ["_normal", "_exponential"])
def test_no_quantile_lies_where_another_logarithm_would_round_it_otherwise(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`log` may be off by a few units in the last place; half of one grid step is 100 away."""
    monkeypatch.setattr(noise, "_rounded", lambda rows: np.array(rows) * 2.0**30)
    exact = getattr(noise, table).__wrapped__()
    from_half = np.abs(exact - np.floor(exact) - 0.5)
    assert (from_half > 100 * np.spacing(np.abs(exact))).all()


def test_the_outermost_cells_are_divided_again() -> None:
    """One draw in 4096**2 falls into the last cell, whose quantiles are those of its own level."""
    top = noise.lognormal(0.3).quantiles[2]
    sigma = math.sqrt(math.log1p(0.3**2))
    levels = np.array([1.0, 100.0, 4000.0, CELLS - 1.0])
    expected = np.exp(-sigma * stats.norm.ppf((CELLS - levels) / CELLS**2) - sigma**2 / 2)
    assert top[levels.astype(int)] == pytest.approx(expected, rel=2e-5)
    assert top[-1] == pytest.approx(math.exp(-sigma * stats.norm.ppf(END) - sigma**2 / 2), rel=2e-5)


def test_the_offset_of_a_seed_in_the_trace_is_a_share_of_its_own() -> None:
    offsets = [noise.offset(seed) for seed in range(1000)]
    assert len(set(offsets)) == 1000
    assert all(0 <= offset < 1 for offset in offsets)
    assert stats.kstest(offsets, "uniform").pvalue > 0.01
