"""Fits the simulator's formulas to all-reduce times, and tells by left-out ones which predict best.

Every formula of `simstrag.timing.constants.AllReduce` is linear in four constants: alpha (seconds
per hop)
and 1/bandwidth (seconds per byte), each between nodes and inside one.  Their columns are taken from
the simulator's own code, so that what is fitted is what it computes.  Relative errors count, for
sizes span six decades: least squares on the logarithm, in which a single wild time weighs little.

What times alone cannot tell apart: summing up costs seconds per byte as sending does, and is in
1/bandwidth; a cost per call looks like hops at one count of ranks, and is in alpha.  The simulator
has no constant for either.

Intervals.  Where each time has an error of its own, the constants are what refits to draws within
these errors make of them (refits by the first derivative, since a thousand of them are asked for),
and as much wider as the formula is off by more than those errors explain: by the root of the mean
square of the residuals over that of the errors, where it is above 1 (Birge's ratio).  Single times
have the residuals alone, by Student's t with as many degrees of freedom as there are times beyond
the constants.  With none left nothing checks the formula, and there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from simstrag.calibration.fits.medians import Estimate, draws, student
from simstrag.timing.constants import AllReduce

__all__ = [
    "ALGORITHMS", "Algorithm", "Fit", "Point", "around", "between", "errors", "fit",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Algorithm = Literal["ring", "tree", "halving_doubling", "hierarchical"]

ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "halving_doubling", "hierarchical")

WILD = 0.1
"""Relative error from which on a single time weighs less than its square."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured all-reduce: members on each node, bytes, median seconds."""

    ranks_per_node: tuple[int, ...]
    bytes: int
    seconds: float

    @property
    def ranks(self) -> int:
        """Members in all."""
        return sum(self.ranks_per_node)


Predictor = Callable[[Point], float]
"""Seconds at a point's placement and bytes; its own seconds are not looked at."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of one algorithm. intra_*: None where one kind of link is all there is.

    low, high: 95 % intervals by name; a constant at 0 has none, and a bandwidth no upper end where
    its inverse may be 0.  freedom: times beyond the constants; at 0 no interval, no error is told.
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
        """The simulator's all-reduce of so many bytes."""
        return AllReduce(
            self.alpha, self.bandwidth, size, 0.0, self.algorithm, self.intra_alpha,
            self.intra_bandwidth,
        )  # fmt: skip

    def seconds(self, point: Point) -> float:
        """What the simulator takes at a point."""
        return self.law(point.bytes).seconds(point.ranks_per_node)

    def residuals(self, points: Sequence[Point]) -> list[float]:
        """(fitted - measured) / measured, of each point."""
        return [self.seconds(point) / point.seconds - 1 for point in points]


def fit(
    points: Sequence[Point],
    algorithm: Algorithm = "ring",
    hops: bool = True,
    estimates: Sequence[Estimate] = (),
) -> Fit:
    """The constants of one algorithm over all points.

    Links inside a node get constants of their own where points tell them apart from those between.
    hops: whether a hop costs anything; times of one size alone do not tell it from bandwidth.
    estimates: of each point, what its seconds are the value of, for intervals by their errors.
    Raises `ValueError` for fewer points than constants, and where no larger size took longer.

    >>> points = [Point((1, 1), size, 2e-4 + size / 1e9) for size in (1024, 1 << 20, 1 << 24)]
    >>> found = fit(points)
    >>> round(found.alpha, 7), round(found.bandwidth / 1e9, 3)
    (0.0001, 1.0)
    """
    columns = _columns(points, algorithm)
    names = [n for n, column in columns.items() if column.any() and (hops or "alpha" not in n)]
    if len(points) < len(names):
        raise ValueError(f"{len(points)} times do not tell {len(names)} constants")
    matrix = np.stack([columns[name] for name in names], axis=1)
    solved = _least(matrix, np.array([point.seconds for point in points]))
    value = dict(zip(names, solved.values.tolist(), strict=True))
    slow = [name for name in names if "bandwidth" in name and value[name] <= 0]
    if slow:
        raise ValueError(f"no {slow[0]} can be fitted: larger sizes took no longer")
    low, high = {}, {}
    for name, (least, most) in zip(names, _ends(solved, estimates).tolist(), strict=True):
        if not math.isfinite(most):
            continue
        if "bandwidth" in name:
            low[name] = 1 / most
            if least > 0:
                high[name] = 1 / least
        else:
            low[name], high[name] = max(0.0, least), most
    alpha, slope = value.get("alpha"), value.get("bandwidth")
    inner, inner_slope = value.get("intra_alpha"), value.get("intra_bandwidth")
    return Fit(
        algorithm,
        0.0 if alpha is None else alpha,
        math.inf if slope is None else 1 / slope,
        inner if hops or inner_slope is None else 0.0,
        None if inner_slope is None else 1 / inner_slope,
        low,
        high,
        solved.freedom,
    )


def around(points: Sequence[Point], size: float, factor: float = 4.0) -> list[Point]:
    """The points whose sizes lie within a factor of `size`; at least the three nearest sizes.

    A formula that is bent over six decades is straight around one gradient, and one gradient's
    size is all that a simulation asks for.
    """
    sizes = sorted({point.bytes for point in points}, key=lambda s: abs(math.log(s / size)))
    near = {s for k, s in enumerate(sizes) if k < 3 or 1 / factor <= s / size <= factor}
    return [point for point in points if point.bytes in near]


def between(sizes: Sequence[int], seconds: Sequence[float], size: float) -> float:
    """Seconds at a size, on straight lines between (log bytes, log seconds).

    The outer lines are prolonged.  Sizes increase; there are two at least.

    >>> round(between([1000, 100_000], [1.0, 10.0], 10_000), 6)
    3.162278
    """
    x, y = np.log(sizes), np.log(seconds)
    k = int(np.clip(np.searchsorted(x, math.log(size)) - 1, 0, len(x) - 2))
    slope = (y[k + 1] - y[k]) / (x[k + 1] - x[k])
    return float(np.exp(y[k] + slope * (math.log(size) - x[k])))


def errors(
    points: Sequence[Point],
    fitter: Callable[[Sequence[Point]], Predictor],
    key: Callable[[Point], object],
) -> list[tuple[Point, float]]:
    """Relative error at every point that can be predicted without those of the same key.

    key: what is left out together, in turn: `lambda p: p.bytes`, or `lambda p: p.ranks_per_node`.
    """
    found = []
    for left in dict.fromkeys(map(key, points)):
        try:
            predict = fitter([point for point in points if key(point) != left])
        except ValueError:
            continue
        found += [
            (point, seconds / point.seconds - 1)
            for point in points
            if key(point) == left and math.isfinite(seconds := predict(point))
        ]
    return found


def _columns(points: Sequence[Point], algorithm: Algorithm) -> dict[str, Floats]:
    """Seconds of every point per unit of each constant, the bandwidths' as seconds per byte."""
    single = {len(p.ranks_per_node) == 1 for p in points}
    nested = algorithm == "hierarchical" and any(max(p.ranks_per_node) > 1 for p in points)
    apart = len(single) == 2 or (nested and single == {False})
    none = (0.0, math.inf)

    def column(outer: tuple[float, float], inner: tuple[float, float] | None) -> Floats:
        inside = (None, None) if inner is None else inner
        return np.array(
            [
                AllReduce(*outer, p.bytes, 0.0, algorithm, *inside).seconds(p.ranks_per_node)
                for p in points
            ]
        )

    if not apart:
        return {"alpha": column((1.0, math.inf), None), "bandwidth": column((0.0, 1.0), None)}
    return {
        "alpha": column((1.0, math.inf), none),
        "bandwidth": column((0.0, 1.0), none),
        "intra_alpha": column(none, (1.0, math.inf)),
        "intra_bandwidth": column(none, (0.0, 1.0)),
    }


@dataclass(frozen=True, slots=True)
class _Solved:
    """Constants, and what an interval of them takes.

    response: of each constant to each time's logarithm, shape (constants, times); a constant at 0
    responds to nothing.  squares: sum over the residuals, of which wild ones count less.
    freedom: times beyond the constants that are not at 0.
    """

    values: Floats
    response: Floats
    squares: float
    freedom: int


def _ends(solved: _Solved, estimates: Sequence[Estimate]) -> Floats:
    """95 % interval of each constant, a row of two; not a number where nothing tells one."""
    ends = np.full((len(solved.values), 2), math.nan)
    free = solved.response.any(axis=1)
    if not solved.freedom:
        return ends
    squares = solved.squares / solved.freedom
    own = np.array([e.error for e in estimates]) if estimates else np.array([math.inf])
    if np.all(np.isfinite(own)) and own.any():
        values = np.array([e.value for e in estimates])
        moved = np.log(draws(estimates) / values) @ solved.response.T
        wider = max(1.0, math.sqrt(squares / float(np.mean(own**2))))
        reach = wider * np.quantile(moved, [0.025, 0.975], axis=0).T
    else:
        error = np.sqrt(squares * (solved.response**2).sum(axis=1))
        reach = student(solved.freedom) * np.stack([-error, error], axis=1)
    ends[free] = (solved.values[:, None] + reach)[free]
    return ends


def _least(matrix: Floats, seconds: Floats) -> _Solved:
    """Constants >= 0 by least squares of logarithms, in which wild times count less."""
    from scipy.optimize import least_squares, nnls

    relative = matrix / seconds[:, None]
    scale = relative.max(axis=0)
    start, _ = nnls(relative / scale, np.ones(len(seconds)))
    free = start > 1e-9 * start.max()
    used = (relative / scale)[:, free]

    def residuals(z: Floats) -> Floats:
        logs: Floats = np.log(np.maximum(used @ z, 1e-12))
        return logs

    solved = least_squares(
        residuals, start[free], bounds=(0.0, np.inf), loss="soft_l1", f_scale=WILD,
        xtol=1e-14, ftol=1e-14, gtol=1e-14,
    )  # fmt: skip
    values, response = np.zeros(len(start)), np.zeros(matrix.T.shape)
    values[free] = solved.x
    response[free] = np.linalg.pinv(solved.jac)
    return _Solved(
        values / scale,
        response / scale[:, None],
        2 * float(solved.cost),
        len(seconds) - int(free.sum()),
    )
