"""Seconds of a step against its batch: three laws, told apart by batches left out in turn.

    proportional  per_sample b
    affine        fixed + per_sample b
    knee          fixed + per_sample max(b, knee): below the knee the device is not filled

How much a batch counts, and which law is taken, is said in `simstrag.calibration.fits.choice`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simstrag.calibration.fits.choice import simplest, tolerances
from simstrag.calibration.fits.medians import Estimate, draws
from simstrag.profile.batch_laws import of_constants
from simstrag.profile.measurements import BatchLaw

__all__ = ["LAWS", "Fit", "choose", "fit"]

Floats = npt.NDArray[np.float64]

LAWS: dict[BatchLaw, int] = {"proportional": 1, "affine": 2, "knee": 3}
"""The laws, the simplest first, and how many constants each has."""
GRID = 64
"""Places between two batches where a knee is tried."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants (fixed, per_sample, knee) of the law chosen, and their 95 % intervals.

    knee: 0 for none.  intervals: shape (3, 2), or None where a batch was visited only once.
    errors: of each law that could be, the root mean square relative error at batches left out.
    """

    law: BatchLaw
    fixed: float
    per_sample: float
    knee: float
    intervals: Floats | None
    errors: dict[BatchLaw, float]


def choose(batches: Sequence[int], estimates: Sequence[Estimate]) -> Fit:
    """The best law for these batches by leave-one-out, fitted to all of them.

    A law needs one batch more than it has constants to be cross-validated.  Two batches make an
    affine law that nothing checks, one a proportional one.  Raises `ValueError` for no batch.
    """
    if not batches:
        raise ValueError("no batch, no fit")
    b, t = np.array(batches, np.float64), np.array([e.value for e in estimates])
    sigma = tolerances(estimates)
    errors: dict[BatchLaw, float] = {}
    if len(b) > 2:
        tried = (law for law, needed in LAWS.items() if len(b) > needed)
        errors = {law: _left_out(law, b, t, sigma) for law in tried}
    law: BatchLaw = "affine" if len(b) == 2 else "proportional"
    law = simplest(errors, LAWS) if errors else law
    constants = fit(law, b, t[None], sigma)[0]
    intervals = None
    if all(math.isfinite(e.error) for e in estimates):
        refits = fit(law, b, draws(estimates), sigma)
        intervals = np.quantile(refits, [0.025, 0.975], axis=0).T
    fixed, per_sample, knee = map(float, constants)
    return Fit(law, fixed, per_sample, knee, intervals, errors)


def fit(law: BatchLaw, b: Floats, times: Floats, sigma: Floats) -> Floats:
    """Constants by weighted least squares, none negative; times: a row per refit.

    Returns rows of (fixed, per_sample, knee).  Of a knee the place is tried on a grid between the
    smallest and the largest batch but one, so that two batches at least lie on the slope.
    """
    if law != "knee":
        return _linear(b, times, sigma, law == "affine")[0]
    ordered = np.sort(b)
    places = np.concatenate(
        [
            np.linspace(low, high, GRID, endpoint=False)
            for low, high in itertools.pairwise(ordered[:-1])
        ]
        + [ordered[-2:-1]]
    )
    best, least = np.zeros((len(times), 3)), np.full(len(times), np.inf)
    for place in places:
        found, loss = _linear(np.maximum(b, place), times, sigma, True)
        better = loss < least
        best[better], least[better] = found[better] + [0.0, 0.0, place], loss[better]
    return best


def _linear(x: Floats, times: Floats, sigma: Floats, free: bool) -> tuple[Floats, Floats]:
    """(fixed, per_sample, 0) and the loss of each row; free: whether fixed may differ from 0.

    Where the best is negative in one, it lies where that one is 0.
    """
    w = 1 / sigma**2
    through = np.stack([np.zeros(len(times)), times @ (w * x) / (w @ x**2)], axis=1)
    if free:
        centre, level = w @ x / w.sum(), times @ w / w.sum()
        slope = times @ (w * (x - centre)) / (w @ (x - centre) ** 2)
        both = np.stack([level - slope * centre, slope], axis=1)
        flat = np.stack([level, np.zeros(len(times))], axis=1)
        through = np.where(both[:, :1] < 0, through, np.where(slope[:, None] < 0, flat, both))
    loss = (((through[:, :1] + through[:, 1:] * x - times) / sigma) ** 2).sum(axis=1)
    return np.column_stack([through, np.zeros(len(times))]), loss


def _left_out(law: BatchLaw, b: Floats, t: Floats, sigma: Floats) -> float:
    """Root mean square of the relative errors at each batch, fitted to all others."""
    found = []
    for k in range(len(b)):
        rest = np.arange(len(b)) != k
        constants = fit(law, b[rest], t[None, rest], sigma[rest])[0]
        found.append(float(of_constants(constants, b[k])) / t[k] - 1)
    return float(np.sqrt(np.mean(np.square(found))))
