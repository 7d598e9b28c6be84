"""The gradient noise scale from squared gradient norms of a small and a large batch.

McCandlish, Kaplan, Amodei et al., "An empirical model of large-batch training" (2018), appendix
A.1: with b < B samples in the two batches, E |g_b|^2 = |G|^2 + tr(Sigma)/b, hence

    |G|^2     = (B |g_B|^2 - b |g_b|^2) / (B - b)
    tr(Sigma) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)

without bias.  Each is averaged over pairs, and the noise scale is the ratio of the averages: a mean
of ratios would be biased, since |G|^2 of a single pair is often near 0 or below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simstrag.calibration.fits.visit_statistics import round_digits
from simstrag.calibration.samples import Samples
from simstrag.profile.measurements import NoiseScaleAt, SkippedCell
from simstrag.profile.quantity import Quantity


class NoiseScaleEstimate(NamedTuple):
    """A noise scale in samples with its 95 % interval; high is None for an open interval."""

    value: float
    low: float
    high: float | None


def estimate_noise_scale(
    small: Sequence[float], large: Sequence[float], small_batch: int, large_batch: int
) -> NoiseScaleEstimate | None:
    """The noise scale from pairs of squared norms; the interval by bootstrap over pairs, seed 0.

    None where the average of |G|^2 or of tr(Sigma) is not above 0: the pairs are too few.  high is
    None where too many resamples have no |G|^2 above 0.

    >>> estimate_noise_scale([5.0, 5.0], [2.0, 2.0], 1, 4)   # |G|^2 = 1, tr(Sigma) = 4
    NoiseScaleEstimate(value=4.0, low=4.0, high=4.0)
    """
    b, big = small_batch, large_batch
    s, g = np.asarray(small, np.float64), np.asarray(large, np.float64)
    signal = (big * g - b * s) / (big - b)
    noise = (s - g) / (1 / b - 1 / big)
    if signal.mean() <= 0 or noise.mean() <= 0:
        return None
    drawn = np.random.default_rng(0).integers(len(s), size=(1000, len(s)))
    signals, noises = signal[drawn].mean(axis=1), np.maximum(0.0, noise[drawn].mean(axis=1))
    scales = np.where(signals > 0, noises / np.where(signals > 0, signals, 1.0), np.inf)
    low, high = np.quantile(scales, [0.025, 0.975], method="nearest")
    return NoiseScaleEstimate(
        float(noise.mean() / signal.mean()), float(low), float(high) if high < np.inf else None
    )


def noise_scales(samples: Samples) -> tuple[tuple[NoiseScaleAt, ...], tuple[SkippedCell, ...]]:
    """The noise scale at each visit, by batch and trained samples; and the visits without one."""
    visits = [v for v in samples.visits if v.cell.part == "gradient" and not v.skipped]
    scales, without = [], []
    for visit in sorted(visits, key=lambda v: (v.facts["small_batch"], v.facts["trained"])):
        b, big, trained = (
            int(visit.facts[name]) for name in ("small_batch", "large_batch", "trained")
        )
        scale = estimate_noise_scale(visit.samples["small"], visit.samples["large"], b, big)
        pairs = len(visit.samples["small"])
        note = f"{pairs} pairs of gradients of {b} and {big} samples"
        if scale is None:
            cell = f"{visit.cell}, noise scale after {trained} samples"
            reason = "leave no signal above the noise: more pairs or a larger batch would tell"
            without.append(SkippedCell(cell=cell, reason=f"{note} {reason}"))
            continue
        note += "; bootstrap over pairs"
        high = None if scale.high is None else round_digits(scale.high)
        if high is None:
            note += "; the upper end is unknown"
        quantity = Quantity(
            value=round_digits(scale.value), kind="measured", low=round_digits(scale.low),
            high=high, n=pairs, note=note,
        )  # fmt: skip
        scales.append(NoiseScaleAt(trained=trained, batch=b, scale=quantity))
    return tuple(scales), tuple(without)
