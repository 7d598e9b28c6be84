"""The lasting pace of a run: how much the mean step of one run differs from that of another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simstrag.calibration.cells import Part
from simstrag.calibration.fits.visit_statistics import lag1_autocorrelation, round_digits
from simstrag.calibration.samples import Samples
from simstrag.profile.quantity import Quantity

Visits = Sequence[Sequence[float]]
FEWEST = 5
"""Least visits to a cell; with five a standard deviation lies within 0.6 to 2.9 times the found."""
CLEAN: dict[Part, str] = {"step": "seconds", "contention": "clean"}
"""Series of steps without load, by the part of their cell: those of steps, and those just before a
load begins."""


def clean_steps(samples: Samples, precision: str, batch: int) -> list[Visits]:
    """The steps without load of each calm visit to a cell of this precision and batch, by cell."""
    return [
        [visit.samples[series] for visit in visits]
        for part, series in CLEAN.items()
        for cell, visits in samples.by_cell(part).items()
        if (cell.precision, cell.batch) == (precision, batch)
    ]


def lasting_pace(cells: Sequence[Visits]) -> Quantity | None:
    """The relative standard deviation of the pace that lasts through a run; None from few visits.

    cells: the steps of each visit in seconds, by cell; all cells time the same steps.

    Visits differ by their pace and by the noise of their few steps.  The estimator is that of
    moments with equal weights (Cochran, "The combination of estimates from different experiments",
    Biometrics 10, 1954): of the variance of log mean steps the one that noise gives them is taken
    out, down to 0.

    Successive steps are correlated by their lag-1 autocorrelation r, falling as r^k, so the mean
    of n steps has the variance s² f / n, with f = 1 + 2 sum of (1 - k/n) r^k; and the steps of one
    visit scatter less around their own mean, by (n - f) / (n - 1).  In n steps r is found too small
    by (1 + 3 r) / n (Kendall, "Note on bias in the estimation of autocorrelation", Biometrika 41,
    1954), which is added.

    The 95 % interval is that of a variance of as many visits as one cell had, because visits to
    different cells in the same round share a pace.
    """
    visits = [v for cell in cells for v in cell if len(v) > 1]
    rounds = max((len(cell) for cell in cells), default=0)
    if rounds < FEWEST or len(visits) < FEWEST:
        return None
    r = lag1_autocorrelation(visits)
    means = np.log([np.mean(v) for v in visits])
    between = float(means.var(ddof=1))
    noise = float(np.mean([_variance_of_mean(v, _unbiased(r or 0.0, len(v))) for v in visits]))
    low, high = (_root(each - noise) for each in _interval(between, rounds - 1))
    both = "of which noise explains" if noise < between else "and noise alone would by"
    known = "" if r is not None else (
        " as if successive steps were independent, since no visit is long enough to tell; at most"
        " this"
    )  # fmt: skip
    return Quantity(
        value=round_digits(_root(between - noise)), kind="measured", low=round_digits(low),
        high=round_digits(high), n=len(visits),
        note=f"visits differ by {math.sqrt(between):.2%} (standard deviation), {both} "
        f"{math.sqrt(noise):.2%}{known}. Changes that outlast a visit and not a run are "
        f"in it; interval by {rounds} rounds",
    )  # fmt: skip


def _unbiased(r: float, n: int) -> float:
    return min(max(r + (1 + 3 * r) / n, 0.0), 0.95) if r else 0.0


def _variance_of_mean(steps: Sequence[float], r: float) -> float:
    """Relative variance of the mean of correlated steps."""
    n = len(steps)
    k = np.arange(1, n)
    f = 1 + 2 * float(((1 - k / n) * r**k).sum())
    own = float(np.var(steps, ddof=1) / np.mean(steps) ** 2)
    return own * (n - 1) / (n - f) * f / n


def _interval(variance: float, freedom: int) -> tuple[float, float]:
    """The 95 % interval of a variance of normal values."""
    from scipy.stats import chi2  # here, because it takes a while to load

    least, most = (float(chi2.ppf(at, freedom)) for at in (0.975, 0.025))
    return freedom * variance / least, freedom * variance / most


def _root(variance: float) -> float:
    return math.sqrt(max(0.0, variance))
