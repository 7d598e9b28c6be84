"""Steps of ranks that wait for each other in several groups: who waited for whom, on one clock.

A rank's seconds follow one another on its own clock.  The members of a group leave a collective
together, so that in each step every rank's clock is moved by what brings these ends closest
together, in least squares.  No clocks of hosts are compared.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.records.record import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd


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


def offsets(ends: Floats, members: Ints) -> Floats:
    """By how much each rank's clock is moved in each step, shape (steps, ranks).

    ends: of each part on a rank's own clock, shape (steps, ranks, parts).
    members: number of the group in which a part waits, -1 of computing, shape (ranks, parts).

    >>> ends = np.array([[[5.0], [3.0], [7.0], [6.0]]])
    >>> offsets(ends, np.array([[0], [0], [1], [1]])).round(6).tolist()
    [[-1.0, 1.0, -0.5, 0.5]]
    """
    ranks = len(members)
    apart, total = np.zeros((len(ends), ranks)), np.zeros((ranks, ranks))
    for groups in np.unique(members[:, (members >= 0).all(axis=0)], axis=1).T:
        same = groups[:, None] == groups
        away = np.eye(ranks) - same / same.sum(axis=1)  # from the mean of the group
        waits = (members == groups[:, None]).all(axis=0)
        total += waits.sum() * away
        apart += ends[:, :, waits].sum(axis=2) @ away
    return np.asarray(-apart @ np.linalg.pinv(total, hermitian=True))
