"""Step-time noise: a factor of mean 1 that depends on (seed, rank, step) and nothing else.

Every policy of a comparison faces the same factors, in whatever order steps happen (rule 4 of
docs/semantics.md).  A counter-based generator, SplitMix64, turns (seed, rank, k) into 64 bits, and
a table of quantiles turns these into a factor; `engine/native/noise.c` does the same in C.

Equal bytes on every machine: `exp` and `log` differ between processors and C libraries in the last
bit.  Quantiles that need `log` are therefore rounded to multiples of 2^-30.  All else uses sums,
products, quotients and square roots, which IEEE 754 rounds exactly, sums that `math.fsum` rounds
once, and decimal logarithms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Floats
from simstrag.errors import InputError

Words = npt.NDArray[np.uint64]

WEYL = 0x9E3779B97F4A7C15
BLOCK = 1024
"""Steps after which the autoregressive process is started anew."""
FORGOTTEN = 2.0**-30
"""Influence of a draw that is left out at the start of a block."""
OFFSET_STREAM, PACE_STREAM = 2**64 - 2, 2**64 - 3  # no rank has these numbers

CELLS = 4096
"""Cells of equal probability; the first and the last are divided again into as many."""
END = 2.0**-27
"""Probability beyond the ends of a table whose distribution has no ends."""
REACH, PER_UNIT = 6, 512
"""The marginal table covers normal numbers from -REACH to REACH with so many cells per unit."""
MOST_RHO = 0.99
FEW_TERMS, MANY_TERMS = 39, 499
"""Terms of the series of an autocorrelation; many where few may miss more than `MISSED` of it."""
MISSED = 1e-3
LN2, TERMS_OF_EXP = 0.6931471805599453, 16


def nth(state: Words, n: Words) -> Words:
    """Output `n` of the generator SplitMix64 with this state.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

    >>> hex(nth(np.array([1234567], np.uint64), np.array([0], np.uint64))[0])
    '0x599ed017fb08fc85'
    """
    z: Words = state + (n + np.uint64(1)) * np.uint64(WEYL)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def keys(seed: int, ranks: Sequence[int]) -> Words:
    """The state of the generator of each rank."""
    of_seed = nth(np.zeros(1, np.uint64), np.array([seed], np.uint64))
    return nth(of_seed, np.array(ranks, np.uint64))


def stream(seed: int, number: int) -> np.random.Generator:
    """Random numbers for what is drawn before a run: loads and traces."""
    key = np.array([seed, number], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def offset(seed: int) -> float:
    """The share of the trace at which a seed begins under `trace_per_seed: shift`."""
    return float(keys(seed, [OFFSET_STREAM])[0] >> np.uint64(11)) * 2.0**-53


def pace_of(seed: int, cv: float) -> float:
    """The pace of a whole run, drawn once a seed: lognormal with mean 1 (rule 4a).

    >>> pace_of(1, 0.0), pace_of(1, 0.1) == pace_of(1, 0.1)
    (1.0, True)
    """
    return Noise(seed, lognormal(cv)).factor(PACE_STREAM, 0)


def constant(factor: float) -> Distribution:
    """The same factor for every step."""
    return Distribution(np.full((3, CELLS + 1), factor), np.empty(0))


def share_seen(seeds: Iterable[int], length: float) -> float:
    """The share of a trace that runs see under `trace_per_seed: shift`.

    length: of a run, as a share of the trace.

    >>> share_seen([0], 0.25), share_seen([0, 1], 1.5)
    (0.25, 1.0)
    """
    begins = sorted({offset(seed) for seed in seeds})
    gaps = np.diff(begins, append=begins[0] + 1)
    return float(np.minimum(gaps, length).sum())


@dataclass(frozen=True, eq=False, slots=True)
class Distribution:
    """Factors of mean 1: a table of quantiles, and the autocorrelation of successive steps.

    quantiles: of the factor; with autocorrelation, of a standard normal number.
    Rows: cells of equal probability, those of the lowest cell, those of the highest cell.
    marginal: the factor at normal numbers from -`REACH` to `REACH`; empty without autocorrelation.
    lag1: autocorrelation of the factors of successive steps.
    rho: coefficient of the autoregressive process of the normal numbers, which gives `lag1`.
    """

    quantiles: Floats
    marginal: Floats
    lag1: float = 0.0
    rho: float = 0.0

    @property
    def innovation(self) -> float:
        """The weight of a new draw in the process, which has variance 1."""
        return math.sqrt(1 - self.rho * self.rho)

    @property
    def warmup(self) -> int:
        """Number of draws before a block at which its process starts."""
        draws, influence = 0, 1.0
        while self.rho and influence > FORGOTTEN:
            draws, influence = draws + 1, influence * abs(self.rho)
        return draws

    def at_pace(self, pace: float) -> Distribution:
        """The distribution of the factors times the pace of a run."""
        scaled = "marginal" if self.rho else "quantiles"
        return replace(self, **{scaled: getattr(self, scaled) * pace})

    def factors(self, key: int, first: int, n: int) -> Floats:
        """The factors of steps `first` to `first + n - 1`, where `first` begins a block."""
        before = self.warmup
        numbers = np.arange(first - before, first + n).astype(np.uint64)
        drawn = look_up(self.quantiles, nth(np.array([key], np.uint64), numbers))
        if not self.rho:
            return drawn
        rho, innovation, z = self.rho, self.innovation, drawn.tolist()
        process = [z[0]]
        for e in z[1:]:
            process.append(rho * process[-1] + innovation * e)
        return _marginal(self.marginal, np.array(process[before:]))


class Noise:
    """The factors of all ranks under one seed.

    >>> Noise(seed=1, distribution=lognormal(0.05)).factor(rank=0, k=3)
    1.0205726864142657
    """

    def __init__(self, seed: int, distribution: Distribution | None) -> None:
        self.seed = seed
        self.distribution = distribution
        self._blocks: dict[int, tuple[int, list[float]]] = {}

    def factor(self, rank: int, k: int) -> float:
        """The factor of the k-th step (from 0) that `rank` starts."""
        if self.distribution is None:
            return 1.0
        number, place = divmod(k, BLOCK)
        known, factors = self._blocks.get(rank, (-1, []))
        if known != number:
            key = keys(self.seed, [rank])[0]
            factors = self.distribution.factors(key, number * BLOCK, BLOCK).tolist()
            self._blocks[rank] = number, factors
        return factors[place]


@functools.lru_cache(maxsize=64)
def lognormal(cv: float, lag1: float = 0.0) -> Distribution:
    """Lognormal with coefficient of variation `cv`; lag1: autocorrelation of successive steps.

    The table ends at `END`.  Up to a cv of 5 the factors have it within 0.2 %, beyond it they have
    less, because the tail is cut: 9.8 for a cv of 10.
    """
    exact = Context(prec=25)
    variance = exact.ln(exact.add(1, exact.power(Decimal(cv), 2)))
    return _make_distribution(_exp(float(exact.sqrt(variance)) * _normal()), lag1)


@functools.lru_cache(maxsize=64)
def shifted_exponential(cv: float, lag1: float = 0.0) -> Distribution:
    """``(1-cv) + cv*Exp(1)``: a constant part and an exponential tail."""
    if cv > 1:
        raise InputError(f"cv of shifted_exponential noise must be at most 1, not {cv}")
    return _make_distribution((1 - cv) + cv * _exponential(), lag1)


def quantiles(values: Sequence[float], lag1: float = 0.0) -> Distribution:
    """Empirical quantiles at evenly spaced levels 0..1, linear in between, over their mean."""
    return _interpolate(tuple(values), lag1)


@functools.lru_cache(maxsize=64)
def _interpolate(values: tuple[float, ...], lag1: float) -> Distribution:
    place = BELOW * (len(values) - 1)
    index = np.minimum(place.astype(np.int64), len(values) - 2)
    known = np.asarray(values, np.float64)
    low, high = known[index], known[index + 1]
    return _make_distribution(low + (place - index) * (high - low), lag1)


# -- tables: three rows of CELLS + 1 quantiles, of all cells, the lowest and the highest -----------

BELOW = np.arange(CELLS + 1) / CELLS
BELOW = np.stack([BELOW, BELOW / CELLS, 1 - BELOW[::-1] / CELLS])
"""The probability below each node of a table."""
WEIGHTS = np.full((3, CELLS), 1 / CELLS)
WEIGHTS[1:] /= CELLS
WEIGHTS[0, [0, -1]] = 0
"""The probability of each cell; that of a divided cell is with its parts."""


def _make_distribution(table: Floats, lag1: float) -> Distribution:
    """The distribution of the factors of a table over their mean."""
    between = (table[:, :-1] + table[:, 1:]) / 2
    table = table / _sum(WEIGHTS * between)
    if abs(lag1) < FORGOTTEN or _is_constant(table):
        return Distribution(table, np.empty(0))
    z = _normal()
    low, high = z[:, :-1], z[:, 1:]
    spread = _sum(WEIGHTS * (low * low + low * high + high * high)) / 3
    marginal, density = _tabulate(table)
    rho = _coefficient(marginal, density, lag1)
    return Distribution(z / math.sqrt(spread), np.append(marginal, marginal[-1]), lag1, rho)


def _is_constant(table: Floats) -> bool:
    return bool(table[0, 0] == table[0, -1])


def _tabulate(table: Floats) -> tuple[Floats, Floats]:
    """The factor at evenly spaced normal numbers, over its mean; their probabilities."""
    x = np.arange(-REACH * PER_UNIT, REACH * PER_UNIT + 1) / PER_UNIT
    density = _exp(-x * x / 2)
    density = density / _sum(density)
    nodes, factors = (
        np.concatenate([t[1], t[0, 2:-2], t[2]]) for t in (_normal(), table)
    )  # fmt: skip
    at = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2)
    into = np.clip((x - nodes[at]) / (nodes[at + 1] - nodes[at]), 0, 1)
    marginal = factors[at] + into * (factors[at + 1] - factors[at])
    return marginal / _sum(marginal * density), density


# -- autocorrelation -------------------------------------------------------------------------------


class HermiteSeries(NamedTuple):
    """The autocorrelation of factors as a function of that of the normal process below them.

    Factors f(x), f(y) of normal numbers with correlation r have covariance sum of c_n^2 r^n, where
    c_n is the mean of f - 1 times the n-th normalised Hermite polynomial (Mehler's formula).

    variance: of the factors.
    squares: of c_1, c_2, ...
    """

    variance: float
    squares: list[float]

    def correlation(self, rho: float) -> float:
        """The autocorrelation of the factors, by the terms that there are."""
        total, power = 0.0, 1.0
        for square in self.squares:
            power *= rho
            total += square * power
        return total / self.variance

    def left_out(self, rho: float) -> float:
        """The most that further terms can add to it."""
        rest = 1 - math.fsum(self.squares) / self.variance
        return rest * float(abs(rho) ** (len(self.squares) + 1))

    def solve(self, lag1: float) -> float:
        """The coefficient that gives an autocorrelation; the nearest end where none does."""
        low, high = -MOST_RHO, MOST_RHO
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.correlation(middle) < lag1 else (low, middle)
        return low


def lag1_range(independent: Distribution) -> tuple[float, float]:
    """The least and the greatest autocorrelation that independent factors can be given."""
    if _is_constant(independent.quantiles):
        return -1.0, 1.0
    marginal, density = _tabulate(independent.quantiles)
    series = _expand(marginal, density, FEW_TERMS)
    if series.left_out(MOST_RHO) > MISSED:
        series = _expand(marginal, density, MANY_TERMS)
    return series.correlation(-MOST_RHO), series.correlation(MOST_RHO)


def _coefficient(marginal: Floats, density: Floats, lag1: float) -> float:
    """That of the normal process whose factors have an autocorrelation."""
    series = _expand(marginal, density, FEW_TERMS)
    rho = series.solve(lag1)
    if series.left_out(rho) > MISSED:
        series = _expand(marginal, density, MANY_TERMS)
        rho = series.solve(lag1)
    low, high = series.correlation(-MOST_RHO), series.correlation(MOST_RHO)
    if not low <= lag1 <= high:
        raise InputError(
            f"noise of this shape cannot have lag1 {lag1!r}; give one between "
            f"{math.ceil(100 * low) / 100} and {math.floor(100 * high) / 100}"
        )
    return rho


def _expand(marginal: Floats, density: Floats, terms: int) -> HermiteSeries:
    x = np.arange(-REACH * PER_UNIT, REACH * PER_UNIT + 1) / PER_UNIT
    squares, before, polynomial = [], np.zeros_like(x), np.ones_like(x)
    for n in range(1, terms + 1):
        next_one = (x * polynomial - math.sqrt(n - 1) * before) / math.sqrt(n)
        before, polynomial = polynomial, next_one
        squares.append(_sum((marginal - 1) * polynomial * density) ** 2)
    return HermiteSeries(_sum((marginal - 1) ** 2 * density), squares)


@functools.cache
def _normal() -> Floats:
    """Standard normal quantiles."""
    inverse = NormalDist().inv_cdf
    half = [inverse(max(p, END)) for p in BELOW[1].tolist()]
    middle = [inverse(p) for p in BELOW[0, 1 : CELLS // 2].tolist()]
    middle = [half[0], *middle, 0.0, *(-z for z in reversed(middle)), -half[0]]
    return _rounded([middle, half, [-z for z in reversed(half)]])


@functools.cache
def _exponential() -> Floats:
    """Standard exponential quantiles."""
    above = [row[::-1] for row in (BELOW[0], BELOW[2], BELOW[1])]
    return _rounded([[-math.log(max(q, END)) for q in row.tolist()] for row in above])


def _rounded(table: Sequence[Sequence[float]]) -> Floats:
    """Multiples of 2^-30, equal on all machines because no value is near a half of one."""
    return np.rint(np.array(table) * 2.0**30) * 2.0**-30


def _sum(values: Floats) -> float:
    return math.fsum(values.ravel().tolist())


def _exp(x: Floats) -> Floats:
    """e**x by its power series, after powers of two are split off."""
    twos = np.floor(x / LN2 + 0.5)
    rest = x - twos * LN2
    series = np.ones_like(x)
    for n in range(TERMS_OF_EXP, 0, -1):
        series = 1 + series * rest / n
    power: Floats = np.ldexp(series, twos.astype(np.int64))
    return power


def look_up(table: Floats, words: Words) -> Floats:
    """The quantile at a random word: its first 12 bits are the cell, the others the place in it."""
    top = words >> np.uint64(52)
    row = (top == 0) + 2 * (top == CELLS - 1)
    words = np.where(row > 0, words << np.uint64(12), words)
    cell = (words >> np.uint64(52)).astype(np.int64)
    into = (words & np.uint64(2**52 - 1)).astype(np.float64) * 2.0**-52
    low, high = table[row, cell], table[row, cell + 1]
    quantile: Floats = low + into * (high - low)
    return quantile


def _marginal(table: Floats, x: Floats) -> Floats:
    """The factor at normal numbers."""
    place = np.clip((x + REACH) * PER_UNIT, 0, 2 * REACH * PER_UNIT)
    cell = place.astype(np.int64)
    low, high = table[cell], table[cell + 1]
    return low + (place - cell) * (high - low)
