"""The gradient noise scale from squared gradient norms of a small and a large batch.

McCandlish, Kaplan, Amodei et al., "An empirical model of large-batch training" (2018), appendix
A.1: with b < B samples in the two batches, E |g_b|^2 = |G|^2 + tr(Sigma)/b, hence

    |G|^2     = (B |g_B|^2 - b |g_b|^2) / (B - b)
    tr(Sigma) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)

without bias.  Each is averaged over pairs, and the noise scale is the ratio of the averages: a mean
of ratios would be biased, since |G|^2 of a single pair is often near 0 or below.

A training on real ranks sums k gradients g_i of n_i samples, n in all.  The mean of the |g_i|^2,
weighed by n_i, has the expectation |G|^2 + tr(Sigma) k/n, so it counts as of a batch of n/k.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Floats

SMOOTHING = 0.999
"""Factor of all older pairs for each round, the step of AdaptDL's `GradientNoiseScale`."""
OCTAVE, SPARSEST = 8, 32
"""Measured rounds of those numbered r to 2r, and rounds from one to the next at most.

At 32 it took 0.2 % of a step by all-reduce, and 1.7 % of the time in which a server applies single
gradients (3 million parameters, CPU).
"""
LEAST = 16
"""Pairs without which there is no estimate: |G|^2 of a few is mostly chance."""
FORGOTTEN = 10_000
"""Age in rounds from which a pair counts for nothing: it weighs 0.00005 of a new one."""


class NormPair(NamedTuple):
    """Squared gradient norms of a small and a large batch, and the samples of the batches."""

    small: float
    large: float
    small_batch: float
    large_batch: float

    @property
    def signal(self) -> float:
        """An estimate of |G|^2 without bias."""
        b, big = self.small_batch, self.large_batch
        return (big * self.large - b * self.small) / (big - b)

    @property
    def noise(self) -> float:
        """An estimate of tr(Sigma) without bias."""
        return (self.small - self.large) / (1 / self.small_batch - 1 / self.large_batch)


class NoiseScaleEstimate(NamedTuple):
    """A noise scale in samples with its 95 % interval; high is None for an open interval."""

    value: float
    low: float
    high: float | None


class NoiseAverages(NamedTuple):
    """Smoothed sums of |G|^2 and tr(Sigma) over a training; they need no correction in a ratio.

    A round is one batch of every rank.  A pair weighs as many rounds as lie between it and the one
    before, at most `SPARSEST`, and `SMOOTHING` less with every round since.

    pairs: how many there were.
    samples: applied samples when the last one came.
    """

    signal: float = 0.0
    noise: float = 0.0
    pairs: int = 0
    samples: int = 0

    def with_pair(self, pair: NormPair, samples: int, round_samples: int) -> NoiseAverages:
        """The averages with one more pair, after so many applied samples."""
        gap = (samples - self.samples) / round_samples
        kept, own = SMOOTHING**gap, _weight(gap)
        signal, noise = kept * self.signal + own * pair.signal, kept * self.noise + own * pair.noise
        return NoiseAverages(signal, noise, self.pairs + 1, samples)

    @property
    def scale(self) -> float | None:
        """The noise scale in samples; None while it is unknown.

        >>> pair = NormPair(5.0, 2.0, 1, 4)  # |G|^2 = 1, tr(Sigma) = 4
        >>> NoiseAverages().with_pair(pair, 4, 4).scale is None
        True
        >>> round(NoiseAverages(pairs=LEAST).with_pair(pair, 4, 4).scale, 9)
        4.0
        """
        known = self.pairs >= LEAST and self.signal > 0 and self.noise > 0
        return self.noise / self.signal if known else None


def is_measured(number: int) -> bool:
    """Whether gradients of a round are measured, by its number from 0 on.

    >>> [number for number in range(48) if number > 12 and is_measured(number)]
    [13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44]
    """
    every = max(1, (1 << number.bit_length() - 1) // OCTAVE) if number else 1
    return number % min(every, SPARSEST) == 0


def pair_of(
    parts: Iterable[tuple[int, float]], squared_sum: float, weight: float
) -> NormPair | None:
    """The pair of a sum of gradients, each of them weighed by its samples.

    parts: samples and squared norm of each gradient.
    squared_sum: the squared norm of the sum.
    weight: the sum of the weights.

    None for a single gradient, and where a norm is unknown or not finite.

    >>> pair_of([(2, 3.0), (2, 5.0)], squared_sum=0.75, weight=0.5)
    NormPair(small=4.0, large=3.0, small_batch=2.0, large_batch=4)
    """
    known = [(samples, norm) for samples, norm in parts if samples]
    n = sum(samples for samples, _ in known)
    if len(known) < 2 or not n or not weight:
        return None
    small = sum(samples / n * norm for samples, norm in known)
    large = squared_sum / weight**2
    if not math.isfinite(small + large):
        return None
    return NormPair(small, large, n / len(known), n)


def estimate_noise_scale(
    pairs: Sequence[NormPair], weights: Floats | None = None
) -> NoiseScaleEstimate | None:
    """The noise scale from pairs; the interval by bootstrap over pairs, seed 0.

    weights: of pairs; equal by default.

    None where the average of |G|^2 or of tr(Sigma) is not above 0: the pairs are too few.  high is
    None where too many resamples have no |G|^2 above 0.

    >>> estimate_noise_scale([NormPair(5.0, 2.0, 1, 4)] * 2)   # |G|^2 = 1, tr(Sigma) = 4
    NoiseScaleEstimate(value=4.0, low=4.0, high=4.0)
    """
    signal = np.array([pair.signal for pair in pairs])
    noise = np.array([pair.noise for pair in pairs])
    w = np.ones(len(pairs)) if weights is None else weights
    means = (signal * w).sum() / w.sum(), (noise * w).sum() / w.sum()
    if min(means) <= 0:
        return None
    drawn = np.random.default_rng(0).integers(len(w), size=(1000, len(w)))
    total = w[drawn].sum(axis=1)
    signals = (signal * w)[drawn].sum(axis=1) / total
    noises = np.maximum(0.0, (noise * w)[drawn].sum(axis=1) / total)
    scales = np.where(signals > 0, noises / np.where(signals > 0, signals, 1.0), np.inf)
    low, high = np.quantile(scales, [0.025, 0.975], method="nearest")
    return NoiseScaleEstimate(
        float(means[1] / means[0]), float(low), float(high) if high < np.inf else None
    )


def estimate_at_end(
    pairs: Sequence[NormPair], samples: Sequence[int], round_samples: int
) -> NoiseScaleEstimate | None:
    """The noise scale at the end of a training, by the weights of `NoiseAverages`.

    samples: applied samples when each pair came.
    """
    if len(pairs) < LEAST:
        return None
    rounds = np.array(samples) / round_samples
    weights = np.array([_weight(gap) for gap in np.diff(rounds, prepend=0.0)])
    ages = rounds[-1] - rounds
    weights *= SMOOTHING**ages
    first = int(np.argmax(ages < FORGOTTEN))
    return estimate_noise_scale(pairs[first:], weights[first:])


def _weight(gap: float) -> float:
    """The weight of a new pair, so many rounds after the one before."""
    return 1 - float(SMOOTHING ** min(gap, SPARSEST))
