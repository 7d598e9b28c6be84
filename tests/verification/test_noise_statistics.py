"""The noise of rule 4 against theory: uniform words, independent streams, tails, autocorrelation.

Seeds are the first ones, taken before anything was looked at.  `LUCK` bounds the p-value of every
test: about 50 are computed here, so that sound noise would fail one with a chance of half a per
cent, and only once, because the numbers are always the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from simstrag.arrays import Floats
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.timing import noise
from simstrag.timing.noise import BLOCK, CELLS, WEYL, Distribution, Words

LUCK = 1e-4
MANY = 2**22
RANKS = 65_536

ALONG = {"seeds": (1, 0, 0), "ranks": (0, 1, 0), "steps": (0, 0, 1), "all": (1, 1, 1)}
"""Directions, as steps in (seed, rank, k)."""
DIRECTIONS = pytest.mark.parametrize("along", ALONG.values(), ids=ALONG)

LAWS = {
    "lognormal": noise.lognormal,
    "shifted_exponential": noise.shifted_exponential,
}
KINDS = pytest.mark.parametrize("kind", LAWS)


def words(along: tuple[int, ...], start: tuple[int, int, int] = (0, 0, 0), n: int = MANY) -> Words:
    """`n` words, from (seed, rank, k) on in one direction."""
    place = np.arange(n, dtype=np.uint64)
    seed, rank, k = (
        np.uint64(at) + np.uint64(step) * place for at, step in zip(start, along, strict=True)
    )
    of_seed = noise.nth(np.zeros(1, np.uint64), seed)
    return noise.nth(noise.nth(of_seed, rank), k)


def law(kind: str, cv: float) -> Any:
    """The distribution that a kind of noise is declared to have."""
    if kind == "shifted_exponential":
        return stats.expon(loc=1 - cv, scale=cv)
    variance = math.log1p(cv * cv)
    return stats.lognorm(math.sqrt(variance), scale=math.exp(-variance / 2))


# -- words ---------------------------------------------------------------------------------------


@DIRECTIONS
def test_every_cell_is_drawn_equally_often(along: tuple[int, ...]) -> None:
    cells = words(along) >> np.uint64(52)
    assert stats.chisquare(np.bincount(cells.astype(np.int64), minlength=CELLS)).pvalue > LUCK


def test_every_part_of_the_outermost_cells_is_drawn_equally_often() -> None:
    """Of 2**26 words some 16,000 fall into a divided cell: 64 in each of 256 neighbourhoods."""
    lowest, highest = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for rank in range(16):
        drawn = words(ALONG["steps"], (0, rank, 0))
        cells, parts = drawn >> np.uint64(52), drawn << np.uint64(12) >> np.uint64(56)
        lowest += np.bincount(parts[cells == 0].astype(np.int64), minlength=256)
        highest += np.bincount(parts[cells == CELLS - 1].astype(np.int64), minlength=256)
    assert stats.chisquare(lowest).pvalue > LUCK
    assert stats.chisquare(highest).pvalue > LUCK


@DIRECTIONS
def test_every_bit_is_set_half_the_time(along: tuple[int, ...]) -> None:
    drawn = words(along)
    ones = np.array([int((drawn >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)])
    deviates = (ones - MANY / 2) / math.sqrt(MANY / 4)
    assert stats.chi2(64).sf((deviates**2).sum()) > LUCK


@DIRECTIONS
@pytest.mark.parametrize("apart", [1, 2])
def test_neighbours_are_independent(along: tuple[int, ...], apart: int) -> None:
    """Words of successive seeds, ranks and steps: their 64 by 64 table, and their correlation.

    Each word is in one pair of the table, for the statistic to have its law.
    """
    drawn = words(along)
    top = (drawn >> np.uint64(58)).astype(np.int64).reshape(-1, 2, apart)
    table = np.bincount((top[:, 0] * 64 + top[:, 1]).ravel(), minlength=4096)
    assert stats.chisquare(table).pvalue > LUCK
    levels = drawn.astype(np.float64)
    r = np.corrcoef(levels[apart:], levels[:-apart])[0, 1]
    assert 2 * stats.norm.sf(abs(r) * math.sqrt(MANY)) > LUCK


def test_a_step_is_independent_of_its_neighbours_in_all_three_directions_at_once() -> None:
    """The words of a step and of its three neighbours at once, by 16 levels of each.

    Every other rank begins a tuple, so that no word is in two.
    """
    corners = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    drawn = [words(ALONG["ranks"], corner)[::2] for corner in corners]
    top = [(each >> np.uint64(60)).astype(np.int64) for each in drawn]
    cells = ((top[0] * 16 + top[1]) * 16 + top[2]) * 16 + top[3]
    assert stats.chisquare(np.bincount(cells, minlength=16**4)).pvalue > LUCK


def test_streams_of_ranks_overlap_no_more_than_by_chance() -> None:
    """SplitMix64 walks one cycle: how near two of 65,536 starts on it are is exponential."""
    whole = 2.0**64
    steps_per_unit = np.uint64(pow(WEYL, -1, 2**64))
    shares = []
    for seed in range(100):
        starts = np.sort(noise.keys(seed, range(RANKS)) * steps_per_unit)
        nearest = float(np.min(np.diff(starts)))
        shares.append(math.exp(-nearest * RANKS * RANKS / whole))
    assert stats.kstest(shares, "uniform").pvalue > LUCK


# -- factors -------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("cv", [0.05, 0.5])
def test_factors_have_their_distribution(kind: str, cv: float) -> None:
    """The distance of two million draws, against which a table of 64 cells would be found out."""
    factors = noise.look_up(LAWS[kind](cv).quantiles, words(ALONG["ranks"], n=MANY // 2))
    assert stats.kstest(factors, law(kind, cv).cdf).pvalue > LUCK


@KINDS
@pytest.mark.parametrize("lag1", [0.0, 0.56])
def test_the_slowest_of_65536_ranks_is_as_slow_as_its_law_says(kind: str, lag1: float) -> None:
    """Each step of `bsp` takes the largest factor: P(largest <= x) = F(x)**65536.

    Of lasting noise every eighth step counts: steps that far apart are all but independent.
    """
    step = {"compute": 1.0, "cv": 0.3, "noise": kind}
    scenario = Scenario.of(
        {"workers": RANKS, "updates": 512, "step": step, "noise": {"lag1": lag1}}
    )
    times = simulate(scenario, "bsp", record_updates=True).updates["time"]
    largest = np.diff(times, prepend=0.0)[:: 8 if lag1 else 1]
    levels = np.exp(RANKS * np.log1p(-law(kind, 0.3).sf(largest)))
    assert stats.kstest(levels, "uniform").pvalue > LUCK


@KINDS
def test_the_quickest_of_65536_ranks_is_as_quick_as_its_law_says(kind: str) -> None:
    """The least of so many shifted exponentials is a few millionths above the constant part.

    The mean of a table is a few millionths above 1 before it is divided out, which moves the
    constant part by as much: the law begins where the table does, at 1 - cv within 1e-5.
    """
    table, keys = LAWS[kind](0.3).quantiles, noise.keys(0, range(RANKS))
    steps = np.arange(256, dtype=np.uint64).reshape(-1, 1)
    least = np.array([noise.look_up(table, noise.nth(keys, k)).min() for k in steps])
    if kind == "shifted_exponential":
        assert table.min() == pytest.approx(0.7, rel=1e-5)
        least += 0.7 - table.min()
    levels = 1 - np.exp(RANKS * np.log1p(-law(kind, 0.3).cdf(least)))
    assert stats.kstest(levels, "uniform").pvalue > LUCK


# -- lasting noise -------------------------------------------------------------------------------

LASTING = {
    "lognormal": noise.lognormal(0.3, 0.56),
    "wide lognormal": noise.lognormal(1.0, 0.9),
    "alternating lognormal": noise.lognormal(0.3, -0.4),
    "shifted_exponential": noise.shifted_exponential(0.9, 0.5),
    "quantiles": noise.quantiles([0.7, 0.8, 0.95, 1.05, 1.5], 0.56),
    "two levels": noise.quantiles([1.0] * 95 + [9.0] * 5, 0.8),
}


@pytest.fixture(scope="module", params=LASTING.values(), ids=LASTING)
def lasting(request: pytest.FixtureRequest) -> tuple[Distribution, Floats]:
    """Factors of 128 ranks and 8192 steps under seed 0, and their distribution."""
    made: Distribution = request.param
    rows = [
        np.concatenate([made.factors(int(key), at, BLOCK) for at in range(0, 8 * BLOCK, BLOCK)])
        for key in noise.keys(0, range(128))
    ]
    return made, np.array(rows)


def test_successive_factors_have_the_stated_autocorrelation(
    lasting: tuple[Distribution, Floats],
) -> None:
    """Each rank estimates it, about the mean 1 and over the variance of all: Student's t."""
    made, factors = lasting
    distances = factors - 1
    estimates = (distances[:, 1:] * distances[:, :-1]).mean(axis=1) / (distances**2).mean()
    assert stats.ttest_1samp(estimates, made.lag1).pvalue > LUCK


def test_the_first_step_of_a_block_follows_the_last_of_the_block_before(
    lasting: tuple[Distribution, Floats],
) -> None:
    made, factors = lasting
    distances = factors - 1
    last, first = distances[:, BLOCK - 1 : -1 : BLOCK], distances[:, BLOCK::BLOCK]
    estimates = (last * first).mean(axis=1) / (distances**2).mean()
    assert stats.ttest_1samp(estimates, made.lag1).pvalue > LUCK


def test_lasting_factors_have_mean_1(lasting: tuple[Distribution, Floats]) -> None:
    assert stats.ttest_1samp(lasting[1].mean(axis=1), 1.0).pvalue > LUCK


def test_ranks_do_not_share_lasting_noise(lasting: tuple[Distribution, Floats]) -> None:
    """The mean over n ranks has a variance of 1/n of that of a rank, at every step."""
    made, factors = lasting
    apart = math.ceil(math.log(1e-4) / math.log(abs(made.rho)))
    steps = factors[:, ::apart]
    means = steps.mean(axis=0)
    expected = np.var(factors - 1) / len(factors)
    ratio = ((means - 1) ** 2).sum() / expected
    tail = stats.chi2(len(means))
    assert 2 * min(tail.sf(ratio), tail.cdf(ratio)) > LUCK
