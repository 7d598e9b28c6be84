"""Which law a slowdown follows: candidates fitted to levels, told apart by levels left out in turn.

A law of contention must be fitted, not assumed: on 1,388 co-located pairs of a public set, fair
share was no better than a constant, and a hinge better than both.  So every law of
`simstrag.profile.responses` is tried.  Each has at most one constant that is not linear; that one
is tried
on a grid, the other is then the solution of least squares, so that the fit has no local minima and
refits of a thousand draws are one product of matrices.  Two have no constants: that a load does
nothing, and the interpolation, which joins the levels and beyond them holds the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simstrag.calibration.fits.choice import simplest, tolerances
from simstrag.calibration.fits.medians import Estimate, draws
from simstrag.profile.measurements import CONSTANTS, Law
from simstrag.profile.responses import joined, of_law

__all__ = ["LawFit", "choose", "fit", "predicted"]

Floats = npt.NDArray[np.float64]

GRID = 400
STEEPEST = 4.0
"""The largest exponent of a power that is tried; the smallest is 1/16 of it."""


@dataclass(frozen=True, slots=True)
class LawFit:
    """The law chosen, its constants, their 95 % intervals, and the error of every candidate.

    intervals: by name; None where a level was visited only once.
    errors: root mean square relative error at levels left out in turn; empty for fewer than two.
    """

    law: Law
    constants: dict[str, float]
    intervals: dict[str, tuple[float, float]] | None
    errors: dict[Law, float]


def choose(levels: Sequence[float], estimates: Sequence[Estimate]) -> LawFit:
    """The best law for these levels by leave-one-out, fitted to all of them.

    A law needs one level more than it has constants to be cross-validated; of one level a constant
    is told.  Raises `ValueError` for no level.
    """
    if not levels:
        raise ValueError("no level, no law")
    u, s = np.array(levels, np.float64), np.array([e.value for e in estimates])
    sigma = tolerances(estimates)
    tried = {
        law: _left_out(law, u, s, sigma)
        for law, names in CONSTANTS.items()
        if len(u) > max(1, len(names))
    }
    errors: dict[Law, float] = {law: e for law, e in tried.items() if math.isfinite(e)}
    sizes: dict[Law, int] = {law: len(names) for law, names in CONSTANTS.items()}
    sizes["interpolated"] = len(u)
    law: Law = simplest(errors, sizes) if errors else "constant"
    constants = _named(law, fit(law, u, s[None], sigma)[0])
    intervals = None
    if all(math.isfinite(e.error) for e in estimates):
        refits = fit(law, u, np.maximum(1.0, draws(estimates)), sigma)
        ends = np.quantile(refits, [0.025, 0.975], axis=0).T.tolist()
        intervals = {
            name: (low, high) for name, (low, high) in zip(CONSTANTS[law], ends, strict=True)
        }
    return LawFit(law, constants, intervals, errors)


def fit(law: Law, u: Floats, slowdowns: Floats, sigma: Floats) -> Floats:
    """Constants in the order of `CONSTANTS` by weighted least squares; slowdowns: a row per refit.

    No slope is negative, so that no law falls with the level.
    """
    w, n = 1 / sigma**2, len(slowdowns)
    if not CONSTANTS[law]:
        return np.zeros((n, 0))
    if law == "constant":
        return _column(np.maximum(1.0, slowdowns @ w / w.sum()))
    if law == "linear":
        return _column(_slopes(u, slowdowns, w)[0])
    if law == "fair_share":
        demands = np.linspace(0.0, 1.0, GRID + 1)
        return _column(demands[_least(np.maximum(1.0, demands[:, None] + u), slowdowns, w)])
    if law == "reciprocal":
        shares = np.linspace(0.0, 1 / u.max(), GRID, endpoint=False)
        return _column(shares[_least(1 / (1 - shares[:, None] * u), slowdowns, w)])
    if law == "power":
        shapes = np.geomspace(STEEPEST / 16, STEEPEST, GRID)
        bases = u ** shapes[:, None]
    else:
        shapes = np.linspace(0.0, u.max(), GRID, endpoint=False)
        bases = np.maximum(0.0, u - shapes[:, None])
    tried = [_slopes(basis, slowdowns, w) for basis in bases]
    best = np.argmin([loss for _, loss in tried], axis=0)
    slopes = np.stack([slope for slope, _ in tried])[best, np.arange(n)]
    return np.stack([slopes, shapes[best]], axis=1)


def predicted(law: Law, constants: dict[str, float], u: Floats, s: Floats, at: float) -> float:
    """The slowdown at a level by a law fitted to levels `u` with slowdowns `s`.

    An interpolation holds its last value beyond the highest level.
    """
    if law != "interpolated":
        return float(of_law(law, constants, at))
    return float(joined(u, s, at))


def _column(values: Floats) -> Floats:
    return values.reshape(-1, 1)


def _slopes(basis: Floats, slowdowns: Floats, w: Floats) -> tuple[Floats, Floats]:
    """Slope >= 0 of 1 + slope * basis and its loss, for each row."""
    slope = np.maximum(0.0, (slowdowns - 1) @ (w * basis) / (w @ basis**2))
    return slope, (w * (1 + slope[:, None] * basis - slowdowns) ** 2).sum(axis=1)


def _least(tried: Floats, slowdowns: Floats, w: Floats) -> npt.NDArray[np.intp]:
    """Which row of what was tried is nearest to each row of slowdowns."""
    loss = (w * tried**2).sum(axis=1)[:, None] - 2 * (w * tried) @ slowdowns.T
    nearest: npt.NDArray[np.intp] = np.argmin(loss, axis=0)
    return nearest


def _left_out(law: Law, u: Floats, s: Floats, sigma: Floats) -> float:
    """Root mean square of the relative errors at each level, fitted to all others.

    A reciprocal without a slowdown at the level left out is infinitely wrong: no candidate.
    """
    found = []
    for k in range(len(u)):
        rest = np.arange(len(u)) != k
        constants = _named(law, fit(law, u[rest], s[None, rest], sigma[rest])[0])
        if law == "reciprocal" and constants["share"] * u[k] >= 1:
            return math.inf
        found.append(predicted(law, constants, u[rest], s[rest], u[k]) / s[k] - 1)
    return float(np.sqrt(np.mean(np.square(found))))


def _named(law: Law, constants: Floats) -> dict[str, float]:
    return dict(zip(CONSTANTS[law], map(float, constants), strict=True))
