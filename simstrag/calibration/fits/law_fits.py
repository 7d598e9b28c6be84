"""Laws of a step's time: seconds against the batch, slowdown against the level of a load.

The law is chosen by leave-one-out, never assumed: on 1,388 co-located pairs of a public set, fair
share predicted no better than a constant, and a hinge better than both.

Seconds against the batch b:

    proportional  per_sample b
    affine        fixed + per_sample b
    knee          fixed + per_sample max(b, knee): below the knee the device is not filled

Slowdown against the level: all laws of `simstrag.profile.responses`.  Each law has at most one
constant that is not linear; it is tried on a grid, and least squares solve for the other, so that
the fit has no local minima and a thousand refits are one product of matrices.  Two have no
constants: a load without effect, and the interpolation, which joins the levels and holds the last
value beyond them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Floats
from simstrag.calibration.fits.visit_statistics import CellEstimate, draw_values, fitted_quantity
from simstrag.profile.batch_laws import batch_seconds
from simstrag.profile.doubtful import ONCE
from simstrag.profile.measurements import CONSTANTS, BatchLaw, Law
from simstrag.profile.quantity import Quantity
from simstrag.profile.responses import apply_law, interpolate

Name = TypeVar("Name", bound=str)

FLOOR = 0.01
"""Least relative error of a cell in a fit: some differences between cells, such as another kernel
or a full cache, do not shrink with more visits."""

CLEARLY_WORSE = 1.25
"""Factor above the smallest cross-validation error up to which a simpler law is chosen."""

BATCH_LAWS: dict[BatchLaw, int] = {"proportional": 1, "affine": 2, "knee": 3}
"""Number of constants of each law of the batch, the simplest first."""

KNEE_GRID = 64
"""Knees tried between two batches."""

SHAPE_GRID = 400
"""Values tried of the constant of a law of the load that is not linear."""

STEEPEST = 4.0
"""Largest exponent of a power that is tried; the smallest is 1/16 of it."""


@dataclass(frozen=True, slots=True)
class LawFit(Generic[Name]):
    """The chosen law and its constants.

    constants: by name; for the batch: fixed, per_sample and knee (0 for none).
    intervals: 95 % intervals; None if a batch or level was visited only once.
    errors: root mean square relative error of each candidate at batches or levels left out in turn;
        empty if there are too few.
    """

    law: Name
    constants: dict[str, float]
    intervals: dict[str, tuple[float, float]] | None
    errors: dict[Name, float]

    def constant(self, name: str, n: int, what: str, each: str) -> Quantity:
        """A constant as a quantity of a profile.

        n: number of values behind it.
        what, each: words of its note.
        """
        interval = (None, None) if self.intervals is None else self.intervals[name]
        how = (
            f"no interval: some {each} {ONCE}" if self.intervals is None
            else f"interval: refits to draws within each {each}'s error"
        )  # fmt: skip
        note = f"{what}{self.law} law; {how}"
        return fitted_quantity(self.constants[name], note, interval, n)


def choose_law(errors: Mapping[Name, float], constants: Mapping[Name, int]) -> Name:
    """The law with the fewest constants among the laws that are not clearly worse than the best.

    Among laws with equally many constants, the one with the smallest error.

    errors: of each law, by cross-validation; errors below a quarter of `FLOOR` count as equal.
    constants: number of constants of each law.

    >>> errors = {"proportional": 0.5, "affine": 0.011, "knee": 0.010}
    >>> choose_law(errors, {"proportional": 1, "affine": 2, "knee": 3})
    'affine'
    """
    most = CLEARLY_WORSE * max(min(errors.values()), FLOOR / 4)
    near = [name for name, error in errors.items() if error <= most]
    return min(near, key=lambda name: (constants[name], errors[name]))


def tolerances(estimates: Sequence[CellEstimate]) -> Floats:
    """The error of each value in a fit: its standard error, and at least `FLOOR` of the value."""
    shares = [e.error if math.isfinite(e.error) else FLOOR for e in estimates]
    return np.array(
        [e.value * max(FLOOR, share) for e, share in zip(estimates, shares, strict=True)]
    )


def choose_batch_law(batches: Sequence[int], estimates: Sequence[CellEstimate]) -> LawFit[BatchLaw]:
    """Choose a law of the batch by leave-one-out, and fit it to all batches.

    Cross-validation needs one batch more than a law has constants.  Two batches make an affine law
    without a check, one batch a proportional law.  Raises `ValueError` for no batch.
    """
    if not batches:
        raise ValueError("no batch, no fit")
    n = len(batches)
    candidates = {law: needed for law, needed in BATCH_LAWS.items() if n > max(2, needed)}
    few: BatchLaw = "affine" if n == 2 else "proportional"

    def predict(law: BatchLaw, constants: Floats, b: Floats, t: Floats, at: float) -> float:
        return float(batch_seconds(constants, at))

    names = dict.fromkeys(BATCH_LAWS, ("fixed", "per_sample", "knee"))
    return _choose(batches, estimates, candidates, few, names, fit_batch_law, predict)


def _choose(
    x: Sequence[float],
    estimates: Sequence[CellEstimate],
    candidates: Mapping[Name, int],
    few: Name,
    names: Mapping[Name, Sequence[str]],
    fit: Callable[[Name, Floats, Floats, Floats], Floats],
    predict: Callable[[Name, Floats, Floats, Floats, float], float],
    least: float = -math.inf,
) -> LawFit[Name]:
    """Choose a law by its error at each value left out in turn, and fit it to all values.

    candidates: number of constants of each law that can be cross-validated; those whose error is
        not finite are dropped.
    few: the law if there is no candidate.
    names: names of the constants of each law.
    least: least drawn value.
    """
    at, y = np.array(x, np.float64), np.array([e.value for e in estimates])
    sigma = tolerances(estimates)
    errors: dict[Name, float] = {}
    for law in candidates:
        left_out = []
        for k in range(len(at)):
            rest = np.arange(len(at)) != k
            constants = fit(law, at[rest], y[None, rest], sigma[rest])[0]
            left_out.append(predict(law, constants, at[rest], y[rest], at[k]) / y[k] - 1)
        error = float(np.sqrt(np.mean(np.square(left_out))))
        if math.isfinite(error):
            errors[law] = error
    law = choose_law(errors, candidates) if errors else few
    constants = fit(law, at, y[None], sigma)[0].tolist()
    intervals = None
    if all(math.isfinite(e.error) for e in estimates):
        refits = fit(law, at, np.maximum(least, draw_values(estimates)), sigma)
        ends = np.quantile(refits, [0.025, 0.975], axis=0).T.tolist()
        intervals = {name: (low, high) for name, (low, high) in zip(names[law], ends, strict=True)}
    return LawFit(law, dict(zip(names[law], constants, strict=True)), intervals, errors)


def fit_batch_law(law: BatchLaw, b: Floats, times: Floats, sigma: Floats) -> Floats:
    """Constants >= 0 by weighted least squares: rows of (fixed, per_sample, knee).

    Knees are tried between the smallest and the second largest batch, so that at least two batches
    lie on the slope.

    times: a row per refit.
    """
    if law != "knee":
        return _fit_line(b, times, sigma, law == "affine")[0]
    ordered = np.sort(b)
    knees = np.concatenate(
        [
            np.linspace(low, high, KNEE_GRID, endpoint=False)
            for low, high in itertools.pairwise(ordered[:-1])
        ]
        + [ordered[-2:-1]]
    )
    best, least = np.zeros((len(times), 3)), np.full(len(times), np.inf)
    for knee in knees:
        constants, loss = _fit_line(np.maximum(b, knee), times, sigma, True)
        better = loss < least
        best[better], least[better] = constants[better] + [0.0, 0.0, knee], loss[better]
    return best


def _fit_line(x: Floats, times: Floats, sigma: Floats, intercept: bool) -> tuple[Floats, Floats]:
    """Rows of (fixed, per_sample, 0), none negative, and the loss of each row.

    intercept: whether fixed may differ from 0.
    """
    w = 1 / sigma**2
    line = np.stack([np.zeros(len(times)), times @ (w * x) / (w @ x**2)], axis=1)
    if intercept:
        centre, level = w @ x / w.sum(), times @ w / w.sum()
        slope = times @ (w * (x - centre)) / (w @ (x - centre) ** 2)
        both = np.stack([level - slope * centre, slope], axis=1)
        flat = np.stack([level, np.zeros(len(times))], axis=1)
        line = np.where(both[:, :1] < 0, line, np.where(slope[:, None] < 0, flat, both))
    loss = (((line[:, :1] + line[:, 1:] * x - times) / sigma) ** 2).sum(axis=1)
    return np.column_stack([line, np.zeros(len(times))]), loss


def choose_load_law(
    levels: Sequence[float], estimates: Sequence[CellEstimate], shared: bool = False
) -> LawFit[Law]:
    """Choose a law of the load by leave-one-out, and fit it to all levels.

    Cross-validation needs one level more than a law has constants; one level makes a constant.
    Raises `ValueError` for no level.

    estimates: slowdown at each level.
    shared: whether processes take the device in turns, so that time slices are a candidate.  Up to
        level 1 they are the line; above it nothing but a level beyond can tell the two apart, and
        of equal errors time slices are taken.
    """
    if not levels:
        raise ValueError("no level, no law")
    sizes = {law: len(names) for law, names in CONSTANTS.items() if shared or law != "time_slices"}
    candidates = {law: size for law, size in sizes.items() if len(levels) > max(1, size)}
    if "interpolated" in candidates:
        candidates["interpolated"] = len(levels)
    few: Law = "time_slices" if shared else "constant"
    return _choose(
        levels, estimates, candidates, few, CONSTANTS, fit_load_law,
        predict_slowdown, least=1.0,
    )  # fmt: skip


def fit_load_law(law: Law, u: Floats, slowdowns: Floats, sigma: Floats) -> Floats:
    """Constants in the order of `CONSTANTS` by weighted least squares, with no negative slope.

    u: levels.
    slowdowns: a row per refit.
    """
    w, n = 1 / sigma**2, len(slowdowns)
    if not CONSTANTS[law]:
        return np.zeros((n, 0))
    if law == "constant":
        return _column(np.maximum(1.0, slowdowns @ w / w.sum()))
    if law == "time_slices":
        return _column(_fit_slopes(np.minimum(u, 1.0), slowdowns, w)[0])
    if law == "linear":
        return _column(_fit_slopes(u, slowdowns, w)[0])
    if law == "fair_share":
        demands = np.linspace(0.0, 1.0, SHAPE_GRID + 1)
        return _column(demands[_nearest(np.maximum(1.0, demands[:, None] + u), slowdowns, w)])
    if law == "reciprocal":
        shares = np.linspace(0.0, 1 / u.max(), SHAPE_GRID, endpoint=False)
        return _column(shares[_nearest(1 / (1 - shares[:, None] * u), slowdowns, w)])
    if law == "power":
        shapes = np.geomspace(STEEPEST / 16, STEEPEST, SHAPE_GRID)
        bases = u ** shapes[:, None]
    else:
        shapes = np.linspace(0.0, u.max(), SHAPE_GRID, endpoint=False)
        bases = np.maximum(0.0, u - shapes[:, None])
    fits = [_fit_slopes(basis, slowdowns, w) for basis in bases]
    best = np.argmin([loss for _, loss in fits], axis=0)
    slopes = np.stack([slope for slope, _ in fits])[best, np.arange(n)]
    return np.stack([slopes, shapes[best]], axis=1)


def predict_slowdown(law: Law, constants: Floats, u: Floats, s: Floats, at: float) -> float:
    """The slowdown at a level by a law fitted to levels `u` with slowdowns `s`.

    Infinite if a reciprocal has no value.
    """
    if law == "interpolated":
        return float(interpolate(u, s, at))
    named = dict(zip(CONSTANTS[law], map(float, constants), strict=True))
    if law == "reciprocal" and named["share"] * at >= 1:
        return math.inf
    return float(apply_law(law, named, at))


def _column(values: Floats) -> Floats:
    return values.reshape(-1, 1)


def _fit_slopes(basis: Floats, slowdowns: Floats, w: Floats) -> tuple[Floats, Floats]:
    """Slope >= 0 of 1 + slope * basis and its loss, for each row."""
    slope = np.maximum(0.0, (slowdowns - 1) @ (w * basis) / (w @ basis**2))
    return slope, (w * (1 + slope[:, None] * basis - slowdowns) ** 2).sum(axis=1)


def _nearest(curves: Floats, slowdowns: Floats, w: Floats) -> npt.NDArray[np.intp]:
    """The index of the curve that is nearest to each row of slowdowns."""
    loss = (w * curves**2).sum(axis=1)[:, None] - 2 * (w * curves) @ slowdowns.T
    nearest: npt.NDArray[np.intp] = np.argmin(loss, axis=0)
    return nearest
