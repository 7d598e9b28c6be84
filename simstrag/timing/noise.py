"""Step-time noise: a factor of mean 1 that depends on (seed, rank, step) and nothing else.

Draw k of a rank is the k-th of a counter-based stream keyed by seed and rank: every policy of a
comparison faces the same draws, in whatever order steps happen (docs/semantics.md, rule 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError

Floats = npt.NDArray[np.float64]
Draw = Callable[[Sequence[np.random.Generator], int], Floats]
"""Draws the next n factors of each stream, a row per stream; any portions give equal factors.

The draws of this module can be pickled.
"""

BLOCK = 1024
OFFSET_STREAM = 2**64 - 1  # no rank has this number


def stream(seed: int, rank: int) -> np.random.Generator:
    """The random stream of one rank."""
    key = np.array([seed, rank], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def lognormal(cv: float) -> Draw:
    """Lognormal with mean 1 and coefficient of variation `cv`."""
    return partial(_lognormal, math.log1p(cv * cv))


def shifted_exponential(cv: float) -> Draw:
    """``(1-cv) + cv*Exp(1)``: a constant part and an exponential tail; mean 1."""
    if cv > 1:
        raise InputError(f"cv of shifted_exponential noise must be at most 1, not {cv}")
    return partial(_shifted_exponential, cv)


def quantiles(values: Sequence[float]) -> Draw:
    """Empirical quantiles at evenly spaced levels 0..1, linear in between."""
    return partial(_between, np.linspace(0.0, 1.0, len(values)), np.asarray(values, np.float64))


def _lognormal(variance: float, streams: Sequence[np.random.Generator], n: int) -> Floats:
    drawn = _drawn("standard_normal", streams, n)
    return np.exp(math.sqrt(variance) * drawn - variance / 2)


def _shifted_exponential(cv: float, streams: Sequence[np.random.Generator], n: int) -> Floats:
    return (1 - cv) + cv * _drawn("standard_exponential", streams, n)


def _between(
    levels: Floats, table: Floats, streams: Sequence[np.random.Generator], n: int
) -> Floats:
    return np.interp(_drawn("random", streams, n), levels, table)


def _drawn(method: str, streams: Sequence[np.random.Generator], n: int) -> Floats:
    drawn = np.empty((len(streams), n))
    for row, rng in zip(drawn, streams, strict=True):
        getattr(rng, method)(out=row)
    return drawn


class Noise:
    """The factors of all ranks under one seed.

    >>> Noise(seed=1, draw=lognormal(0.05)).factor(0, 3) == Noise(1, lognormal(0.05)).factor(0, 3)
    True
    """

    def __init__(self, seed: int, draw: Draw | None) -> None:
        self.seed = seed
        self._draw = draw
        self._factors: dict[int, tuple[np.random.Generator, list[float]]] = {}

    def factor(self, rank: int, k: int) -> float:
        """The factor of the k-th step (from 0) that `rank` starts."""
        if self._draw is None:
            return 1.0
        if rank not in self._factors:
            self._factors[rank] = stream(self.seed, rank), []
        own, factors = self._factors[rank]
        while k >= len(factors):
            factors.extend(self._draw([own], BLOCK)[0].tolist())
        return factors[k]


def offset(seed: int) -> float:
    """The share of the trace at which a seed begins under `trace_per_seed: shift`."""
    return float(stream(seed, OFFSET_STREAM).random())
