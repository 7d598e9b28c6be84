"""Steps of ranks that wait for each other in several groups: who waited for whom, on one clock.

A rank's seconds follow one another on its own clock.  The members of a group leave a collective
together, so that in each step every rank's clock is moved by what brings these ends closest
together.  No clocks of hosts are compared.

A rank that computes on before it awaits a collective leaves it later than the others.  Such ends
are far apart, so that the sum of distances counts, not of their squares: the others decide.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse.csgraph import connected_components

from simstrag.arrays import Ints, Reals

if TYPE_CHECKING:
    import pandas as pd

ROUNDS, SOME, NEAR = 20, 20, 1e-5
"""Rounds in which collectives count by one over the distance of their ends, the most steps, about,
that tell these distances, and the seconds below which ends are together."""


def aligned(frame: pd.DataFrame, ranks: int, parts: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The steps with the usual groups, and their fields of a `Record`: start and group.

    frame: rows in order of step, rank and part, each rank with as many parts.
    """
    labels = frame["group"].where(frame["group"] != "")  # of computing there is none
    codes = labels.factorize()[0].astype(np.int64).reshape(-1, ranks, parts)
    usual = Counter(each.tobytes() for each in codes).most_common(1)[0][0]
    kept = np.array([each.tobytes() == usual for each in codes])
    frame, members = frame[np.repeat(kept, ranks * parts)], codes[kept][0]
    seconds = frame["seconds"].to_numpy().reshape(-1, ranks, parts)
    ends = seconds.cumsum(axis=-1)
    start = ends - seconds + offsets(ends, members)[:, :, None]
    start -= start.min(axis=(1, 2), keepdims=True)
    return frame, {"start": start.ravel(), "group": codes[kept].ravel()}


def offsets(ends: Reals, members: Ints) -> Reals:
    """By how much each rank's clock is moved in each step, shape (steps, ranks).

    ends: of each part on a rank's own clock, shape (steps, ranks, parts).
    members: number of the group in which a part waits, -1 of computing, shape (ranks, parts).

    >>> ends = np.array([[[5.0], [3.0], [7.0], [6.0]]])
    >>> offsets(ends, np.array([[0], [0], [1], [1]])).round(6).tolist()
    [[-1.0, 1.0, -0.5, 0.5]]

    Of three collectives, rank 1 awaits one 9 s after its end:

    >>> ends = np.array([[[1.0, 2.0, 3.0], [1.5, 11.5, 3.5]]])
    >>> offsets(ends, np.zeros((2, 3), np.int64)).round(2).tolist()
    [[0.25, -0.25]]
    """
    waits = np.flatnonzero((members >= 0).all(axis=0))
    if not len(waits):
        return np.zeros(ends.shape[:2])
    groups, which = np.unique(members[:, waits], axis=1, return_inverse=True)
    own = groups.T[which.ravel()]
    aways = [_from_mean(np.eye(len(members)), each) for each in groups.T]
    times = ends.transpose(2, 0, 1)[waits]
    some = times[:, :: -(-len(ends) // SOME)]

    def move(times: Reals, weights: Reals) -> Reals:
        total = np.tensordot(np.bincount(which.ravel(), weights, len(aways)), aways, 1)
        pairs = zip(times, own, weights, strict=True)
        apart = sum(weight * _from_mean(each, k) for each, k, weight in pairs)
        return np.asarray(-np.linalg.solve(total + free, apart.T).T)

    _, connected = connected_components(sum(map(np.abs, aways)))
    free = np.eye(len(members)) - _from_mean(np.eye(len(members)), connected)
    weights = np.ones(len(waits))
    for _ in range(ROUNDS):
        left = some + move(some, weights)
        pairs = zip(left, own, strict=True)
        far = np.array([np.median(np.abs(_from_mean(*pair)).max(axis=1)) for pair in pairs])
        if far.max() <= NEAR:
            break
        weights = 1 / np.maximum(far, NEAR)
    return move(times, weights)


def _from_mean(times: Reals, groups: Ints) -> Reals:
    """Each rank's time from the mean of its group; ranks are the last axis."""
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order, first = np.argsort(place, kind="stable"), counts.cumsum() - counts
    sums = np.add.reduceat(times[..., order], first, axis=-1)
    return np.asarray(times - (sums / counts)[..., place])
