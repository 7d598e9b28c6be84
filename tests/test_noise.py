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
from simstrag.timing.noise import Draw, Noise

DRAWS = {
    "lognormal": noise.lognormal(0.3),
    "shifted_exponential": noise.shifted_exponential(0.3),
    "quantiles": noise.quantiles([0.8, 0.9, 1.0, 1.1, 1.2]),
}
MANY = 200_000
KINDS = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


def sample(draw: Draw) -> np.ndarray:
    return draw([noise.stream(seed=7, rank=0)], MANY)[0]


@KINDS
def test_the_mean_is_one_within_four_standard_errors(draw: Draw) -> None:
    factors = sample(draw)
    assert abs(factors.mean() - 1) < 4 * factors.std() / math.sqrt(MANY)


@pytest.mark.parametrize("cv", [0.01, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["lognormal", "shifted_exponential"])
def test_the_coefficient_of_variation_is_the_declared_one(kind: str, cv: float) -> None:
    factors = sample(getattr(noise, kind)(cv))
    assert factors.std() / factors.mean() == pytest.approx(cv, rel=0.02)


def test_lognormal_noise_is_lognormal() -> None:
    sigma = math.sqrt(math.log1p(0.3**2))
    shape = stats.lognorm(sigma, scale=math.exp(-(sigma**2) / 2))
    assert stats.kstest(sample(noise.lognormal(0.3)), shape.cdf).pvalue > 0.01


def test_shifted_exponential_noise_is_a_constant_part_and_an_exponential_one() -> None:
    shape = stats.expon(loc=0.7, scale=0.3)
    assert stats.kstest(sample(noise.shifted_exponential(0.3)), shape.cdf).pvalue > 0.01


def test_empirical_noise_has_the_declared_quantiles() -> None:
    table = [0.7, 0.8, 0.95, 1.05, 1.5]
    drawn = sample(noise.quantiles(table))
    for level, quantile in zip(np.linspace(0, 1, 5), table, strict=True):
        assert np.quantile(drawn, level) == pytest.approx(quantile, abs=0.005)


def test_empirical_noise_is_linear_between_its_quantiles() -> None:
    drawn = sample(noise.quantiles([1.0, 2.0, 4.0]))
    assert np.quantile(drawn, [0.25, 0.75]) == pytest.approx([1.5, 3.0], abs=0.02)


def test_shifted_exponential_noise_cannot_vary_more_than_its_mean() -> None:
    with pytest.raises(InputError, match=r"cv of shifted_exponential noise must be at most 1, not"):
        noise.shifted_exponential(1.5)


@KINDS
@given(blocks=st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_draw_k_is_the_same_however_the_stream_is_cut_into_blocks(
    draw: Draw, blocks: list[int]
) -> None:
    whole = draw([noise.stream(3, 5)], sum(blocks))[0]
    stream = noise.stream(3, 5)
    assert np.concatenate([draw([stream], n)[0] for n in blocks]).tolist() == whole.tolist()


@KINDS
@given(asked=st.lists(st.integers(0, 3000), min_size=1, max_size=8))
def test_factor_k_is_the_same_in_whatever_order_it_is_asked_for(
    draw: Draw, asked: list[int]
) -> None:
    in_order = draw([noise.stream(3, 5)], 3001)[0]
    factors = Noise(3, draw)
    assert [factors.factor(5, k) for k in asked] == [in_order[k] for k in asked]


@KINDS
def test_other_ranks_do_not_disturb_the_stream_of_a_rank(draw: Draw) -> None:
    alone, among = Noise(0, draw), Noise(0, draw)
    for rank in (4, 1, 2):
        among.factor(rank, 2000)
    assert alone.factor(3, 10) == among.factor(3, 10)


@KINDS
def test_ranks_and_seeds_have_different_luck(draw: Draw) -> None:
    noises = [Noise(seed, draw) for seed in range(5)]
    drawn = {each.factor(rank, k) for each in noises for rank in range(5) for k in (0, 1)}
    assert len(drawn) == 50


@KINDS
def test_the_streams_of_neighbouring_ranks_and_seeds_are_uncorrelated(draw: Draw) -> None:
    keys = ((0, 0), (0, 1), (1, 0), (1, 1))
    drawn = draw([noise.stream(seed, rank) for seed, rank in keys], MANY // 10)
    correlations = np.corrcoef(drawn)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 4 / math.sqrt(MANY // 10)


def test_without_a_distribution_there_is_no_noise() -> None:
    assert Noise(0, None).factor(3, 10**9) == 1.0


def test_another_process_draws_the_same_numbers() -> None:
    program = (
        "from simstrag.timing.noise import Noise, lognormal, shifted_exponential, quantiles\n"
        "draws = lognormal(0.3), shifted_exponential(0.3), quantiles([0.8, 0.9, 1.0, 1.1, 1.2])\n"
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


def test_the_numbers_are_those_of_philox_keyed_by_seed_and_rank() -> None:
    """Rule 4: any implementation must give these; a change of them changes every published run."""
    key = np.array([11, 2], dtype=np.uint64)
    normal = np.random.Generator(np.random.Philox(key=key)).standard_normal(3)
    variance = math.log1p(0.3**2)
    expected = [math.exp(math.sqrt(variance) * z - variance / 2) for z in normal]
    factors = [Noise(11, noise.lognormal(0.3)).factor(2, k) for k in range(3)]
    assert factors == pytest.approx(expected, rel=1e-15)
    assert factors == pytest.approx([0.6602303568113993, 0.5486151483189823, 1.123209643666159])


def test_the_offset_of_a_seed_in_the_trace_is_a_share_of_its_own() -> None:
    offsets = [noise.offset(seed) for seed in range(1000)]
    assert len(set(offsets)) == 1000
    assert all(0 <= offset < 1 for offset in offsets)
    assert stats.kstest(offsets, "uniform").pvalue > 0.01
