"""How long what a trace says lasts, and how far its nodes go together."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from simstrag.trace.trace import Trace

__all__ = ["autocorrelation", "between", "lasting", "sampled"]

Floats = npt.NDArray[np.float64]


def sampled(
    trace: Trace,
    resource: str,
    kind: str,
    every: float,
    nodes: int | None = None,
    points: int | None = None,
) -> Floats:
    """Values of each node every so many seconds up to the end, shape (nodes, points).

    nodes, points: no more than the first of them.

    Durations are taken step by step instead, as many as every node has, and `every` means nothing.
    Nodes without rows of that resource and kind are left out.

    >>> trace = Trace.from_rows([(2, 0, "gpu", "slowdown", 3), (4, 0, "gpu", "slowdown", 1)])
    >>> sampled(trace, "gpu", "slowdown", every=1.0)
    array([[1., 1., 3., 3.]])
    """
    h, keys = trace.histories, trace.keys
    chosen = [k for k, (_, *of) in enumerate(keys) if of == [resource, kind]][:nodes]
    if kind == "duration":
        each = [h.value[h.starts[k] : h.starts[k + 1]] for k in chosen]
        steps = min(map(len, each), default=0)
        return np.array([values[:steps][:points] for values in each])
    pieces = h.pieces()
    count = math.floor(trace.end / every)
    at = (np.arange(count if points is None else min(count, points)) + 0.5) * every
    rows = [slice(pieces.starts[k], pieces.starts[k + 1]) for k in chosen]
    return np.array([
        pieces.values[row][np.searchsorted(pieces.times[row], at, side="right") - 1]
        for row in rows
    ]).reshape(len(rows), len(at))  # fmt: skip


def autocorrelation(values: Floats, lag: int) -> float:
    """Of series (rows) with themselves so many points later, pooled; NaN where none varies.

    Each row counts by its variance.

    >>> round(autocorrelation(np.array([[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]]), 1), 3)
    -0.833
    """
    apart = values - values.mean(axis=1, keepdims=True)
    total = float(np.sum(apart**2))
    if not total or lag >= values.shape[1]:
        return math.nan
    return float(np.sum(apart[:, lag:] * apart[:, : values.shape[1] - lag])) / total


def lasting(values: Floats) -> int:
    """Points after which the autocorrelation is below 1/e for the first time; 1 at least.

    >>> lasting(np.array([[0.0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]]))
    2
    """
    for lag in range(1, values.shape[1]):
        if not autocorrelation(values, lag) >= math.exp(-1):
            return lag
    return 1


def between(values: Floats) -> float:
    """The mean correlation of two of the rows; NaN where there are no two that vary.

    >>> round(between(np.array([[0.0, 1.0, 0.0], [0.0, 2.0, 0.0], [5.0, 5.0, 5.0]])), 9)
    1.0
    """
    varying = values[np.ptp(values, axis=1) > 0]
    if len(varying) < 2:
        return math.nan
    apart = varying - varying.mean(axis=1, keepdims=True)
    apart /= np.sqrt(np.sum(apart**2, axis=1, keepdims=True))
    n = len(apart)
    return float((np.sum(apart.sum(axis=0) ** 2) - n) / (n * (n - 1)))
