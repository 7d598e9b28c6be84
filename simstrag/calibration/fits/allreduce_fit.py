"""Fits the simulator's formulas to all-reduce times, and measures their errors at left-out times.

Every formula of `simstrag.timing.constants.AllReduce` is linear in four constants: alpha (seconds
per hop) and 1/bandwidth (seconds per byte), each between nodes and inside one.  Their columns come
from the simulator's own code, so that the fit has the simulator's formula.  Sizes span six decades,
so relative errors count: least squares on the logarithm, in which a single wild time weighs little.

Times alone cannot separate two costs: summing up costs seconds per byte as sending does, and is in
1/bandwidth; a cost per call looks like hops at one number of ranks, and is in alpha.  The simulator
has no constant for either.

Intervals.  If each time has an error of its own, the constants are refitted to a thousand draws
within these errors (by the first derivative), and the interval is multiplied by Birge's ratio,
rms(residuals) / rms(errors), if that exceeds 1.  For single times the interval follows from the
residuals, by Student's t; its degrees of freedom are the number of times less the number of
constants.  At 0 nothing checks the formula, and there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simstrag.arrays import Floats
from simstrag.calibration.fits.visit_statistics import (
    CellEstimate,
    draw_values,
    fitted_quantity,
    round_digits,
    student_quantile,
)
from simstrag.profile.measurements import BackendName, CollectiveFit, Residual
from simstrag.timing.constants import AllReduce

Algorithm = Literal["ring", "tree", "halving_doubling", "hierarchical"]

ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "halving_doubling", "hierarchical")

WILD = 0.1
"""Relative error above which a single time weighs less than its square."""


@dataclass(frozen=True, slots=True)
class AllReducePoint:
    """One measured all-reduce: members on each node, bytes, median seconds."""

    ranks_per_node: tuple[int, ...]
    bytes: int
    seconds: float

    @property
    def ranks(self) -> int:
        """Members on all nodes."""
        return sum(self.ranks_per_node)


TimePredictor = Callable[[AllReducePoint], float]
"""Predicts seconds from a point's placement and bytes."""


@dataclass(frozen=True, slots=True)
class AllReduceFit:
    """The constants of one algorithm.

    intra_alpha, intra_bandwidth: None if the points have only one kind of link.
    low, high: 95 % intervals by name; a constant at 0 has none, and a bandwidth has no upper end if
        its inverse may be 0.
    freedom: number of times beyond the constants; at 0 there is no interval.
    """

    algorithm: Algorithm
    alpha: float
    bandwidth: float
    intra_alpha: float | None
    intra_bandwidth: float | None
    low: dict[str, float]
    high: dict[str, float]
    freedom: int

    def law(self, size: float) -> AllReduce:
        """The simulator's all-reduce of a number of bytes."""
        return AllReduce(
            self.alpha, self.bandwidth, size, 0.0, self.algorithm, self.intra_alpha,
            self.intra_bandwidth,
        )  # fmt: skip

    def seconds(self, point: AllReducePoint) -> float:
        """The simulator's time at a point."""
        return self.law(point.bytes).seconds(point.ranks_per_node)

    def residuals(self, points: Sequence[AllReducePoint]) -> list[float]:
        """(fitted - measured) / measured, of each point."""
        return [self.seconds(point) / point.seconds - 1 for point in points]


def fit(
    points: Sequence[AllReducePoint],
    algorithm: Algorithm = "ring",
    hops: bool = True,
    estimates: Sequence[CellEstimate] = (),
) -> AllReduceFit:
    """Fit the constants of one algorithm to all points.

    Links inside a node get constants of their own if the points determine them.

    hops: whether a hop costs anything; times of a single size do not determine it.
    estimates: estimates of the seconds of each point, whose errors give the intervals.

    Raises `ValueError` for fewer points than constants, and if larger sizes took no longer.

    >>> sizes = (1024, 1 << 20, 1 << 24)
    >>> ring = fit([AllReducePoint((1, 1), size, 2e-4 + size / 1e9) for size in sizes])
    >>> round(ring.alpha, 7), round(ring.bandwidth / 1e9, 3)
    (0.0001, 1.0)
    """
    columns = _columns(points, algorithm)
    names = [n for n, column in columns.items() if column.any() and (hops or "alpha" not in n)]
    if len(points) < len(names):
        raise ValueError(f"{len(points)} times do not tell {len(names)} constants")
    matrix = np.stack([columns[name] for name in names], axis=1)
    values, ends, freedom = _solve(matrix, np.array([p.seconds for p in points]), estimates)
    value = dict(zip(names, values.tolist(), strict=True))
    slow = [name for name in names if "bandwidth" in name and value[name] <= 0]
    if slow:
        raise ValueError(f"no {slow[0]} can be fitted: larger sizes took no longer")
    low, high = {}, {}
    for name, (least, most) in zip(names, ends.tolist(), strict=True):
        if not math.isfinite(most):
            continue
        if "bandwidth" in name:
            low[name] = 1 / most
            if least > 0:
                high[name] = 1 / least
        else:
            low[name], high[name] = max(0.0, least), most
    bandwidths = {name: 1 / value[name] for name in names if "bandwidth" in name}
    has_inner = "intra_bandwidth" in value
    return AllReduceFit(
        algorithm,
        value.get("alpha", 0.0),
        bandwidths.get("bandwidth", math.inf),
        value.get("intra_alpha", 0.0 if has_inner and not hops else None),
        bandwidths.get("intra_bandwidth"),
        low,
        high,
        freedom,
    )


def record(
    fit: AllReduceFit,
    points: Sequence[AllReducePoint],
    backend: BackendName,
    note: str,
    interval_note: str,
    no_interval_note: str,
) -> CollectiveFit:
    """A fit to points in the form of a profile; its constants are quantities."""
    constants = {
        name: fitted_quantity(
            value,
            interval_note if name in fit.low else no_interval_note,
            (fit.low.get(name), fit.high.get(name)),
            len(points),
        )
        for name in ("alpha", "bandwidth", "intra_alpha", "intra_bandwidth")
        if (value := getattr(fit, name)) is not None
    }
    return CollectiveFit(
        backend=backend,
        algorithm=fit.algorithm,
        ranks=tuple(sorted({point.ranks for point in points})),
        smallest=min(point.bytes for point in points),
        largest=max(point.bytes for point in points),
        **constants,
        residuals=tuple(
            Residual(ranks=point.ranks, bytes=point.bytes, error=round_digits(error))
            for point, error in zip(points, fit.residuals(points), strict=True)
            if fit.freedom
        ),
        note=note,
    )


def points_around(
    points: Sequence[AllReducePoint], size: float, factor: float = 4.0
) -> list[AllReducePoint]:
    """The points whose sizes lie within a factor of `size`, and at least the three nearest sizes.

    A formula that fails over six decades holds around one size, and a simulation needs only the
    size of its gradient.
    """
    sizes = sorted({point.bytes for point in points}, key=lambda s: abs(math.log(s / size)))
    near = {s for k, s in enumerate(sizes) if k < 3 or 1 / factor <= s / size <= factor}
    return [point for point in points if point.bytes in near]


def interpolate(sizes: Sequence[int], seconds: Sequence[float], size: float) -> float:
    """Seconds at a size, on straight lines between (log bytes, log seconds).

    Beyond the sizes the outer lines are extrapolated.

    sizes: increasing, at least two.

    >>> round(interpolate([1000, 100_000], [1.0, 10.0], 10_000), 6)
    3.162278
    """
    x, y = np.log(sizes), np.log(seconds)
    k = int(np.clip(np.searchsorted(x, math.log(size)) - 1, 0, len(x) - 2))
    slope = (y[k + 1] - y[k]) / (x[k + 1] - x[k])
    return float(np.exp(y[k] + slope * (math.log(size) - x[k])))


def left_out_errors(
    points: Sequence[AllReducePoint],
    fitter: Callable[[Sequence[AllReducePoint]], TimePredictor],
    key: Callable[[AllReducePoint], object],
) -> list[tuple[AllReducePoint, float]]:
    """Relative error at every point that can be predicted from the points of other keys.

    key: equal for points left out together, as `lambda p: p.bytes` or `lambda p: p.ranks_per_node`.
    """
    errors = []
    for left_out in dict.fromkeys(map(key, points)):
        try:
            predict = fitter([point for point in points if key(point) != left_out])
        except ValueError:
            continue
        errors += [
            (point, seconds / point.seconds - 1)
            for point in points
            if key(point) == left_out and math.isfinite(seconds := predict(point))
        ]
    return errors


def _columns(points: Sequence[AllReducePoint], algorithm: Algorithm) -> dict[str, Floats]:
    """Seconds of every point per unit of each constant; of a bandwidth per second per byte."""
    single = {len(p.ranks_per_node) == 1 for p in points}
    nested = algorithm == "hierarchical" and any(max(p.ranks_per_node) > 1 for p in points)
    two_links = len(single) == 2 or (nested and single == {False})
    none = (0.0, math.inf)
    units = {"alpha": (1.0, math.inf), "bandwidth": (0.0, 1.0)}

    def column(outer: tuple[float, float], *inner: float) -> Floats:
        laws = (AllReduce(*outer, p.bytes, 0.0, algorithm, *inner) for p in points)
        return np.array(
            [law.seconds(p.ranks_per_node) for law, p in zip(laws, points, strict=True)]
        )

    if not two_links:
        return {name: column(unit) for name, unit in units.items()}
    return {
        **{name: column(unit, *none) for name, unit in units.items()},
        **{f"intra_{name}": column(none, *unit) for name, unit in units.items()},
    }


def _solve(
    matrix: Floats, seconds: Floats, estimates: Sequence[CellEstimate]
) -> tuple[Floats, Floats, int]:
    """Constants >= 0 by least squares on logarithms, in which wild times weigh less.

    Returns the constants, their 95 % intervals in rows of two (NaN without one, and for a constant
    at 0), and the number of times beyond the constants above 0.
    """
    from scipy.optimize import least_squares, nnls

    relative = matrix / seconds[:, None]
    scale = relative.max(axis=0)
    start, _ = nnls(relative / scale, np.ones(len(seconds)))
    free = start > 1e-9 * start.max()
    used = (relative / scale)[:, free]

    def residuals(z: Floats) -> Floats:
        logs: Floats = np.log(np.maximum(used @ z, 1e-12))
        return logs

    result = least_squares(
        residuals, start[free], bounds=(0.0, np.inf), loss="soft_l1", f_scale=WILD,
        xtol=1e-14, ftol=1e-14, gtol=1e-14,
    )  # fmt: skip
    values, response = np.zeros(len(start)), np.zeros(matrix.T.shape)
    values[free] = result.x
    response[free] = np.linalg.pinv(result.jac)  # change of a constant per change of a log time
    values, response = values / scale, response / scale[:, None]
    ends, freedom = np.full((len(values), 2), math.nan), len(seconds) - int(free.sum())
    if not freedom:
        return values, ends, freedom
    squares = 2 * float(result.cost) / freedom
    errors = np.array([e.error for e in estimates])
    if len(errors) and np.all(np.isfinite(errors)) and errors.any():
        medians = np.array([e.value for e in estimates])
        shifts = np.log(draw_values(estimates) / medians) @ response.T
        wider = max(1.0, math.sqrt(squares / float(np.mean(errors**2))))
        reach = wider * np.quantile(shifts, [0.025, 0.975], axis=0).T
    else:
        error = np.sqrt(squares * (response**2).sum(axis=1))
        reach = student_quantile(freedom) * np.stack([-error, error], axis=1)
    moved = response.any(axis=1)
    ends[moved] = (values[:, None] + reach)[moved]
    return values, ends, freedom
