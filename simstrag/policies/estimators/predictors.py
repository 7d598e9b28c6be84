"""How long will each rank's next step take: pure functions from windows to seconds.

STAR counts as a step's time what the rank itself needs for it, computing plus push plus pull, and
leaves out whatever it waits for others.  A rank can be slow in either, so the two are predicted one
by one and added.  Nothing is normalised: steps in reduced precision or with another share of the
batch count as they were, which does not arise under policies that change neither.

Source: the definition is that of the code released with Zhang & Shen, "Straggler Tolerant and
Resilient DL Training on Homogeneous GPUs" (STAR), 2025, arXiv:2512.09685; both predictors are this
project's.  The released one, an LSTM fed with the load of the ranks' servers, is shipped without
usable weights.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["PREDICTORS", "Predictor", "last", "median"]

Floats = npt.NDArray[np.float64]


def last(local_times: Floats, communication: Floats) -> Floats:
    """The next step takes as long as the last one.

    local_times, communication: shape (N, W), seconds, newest last, NaN where there is none.
    Returns shape (N,), seconds; NaN for a rank without any local time.  A rank without any
    communication time is taken to need none.

    >>> last(np.array([[1.0, 2.0], [np.nan, np.nan]]), np.array([[0.5, 0.25], [0.5, 0.5]]))
    array([2.25,  nan])
    """
    return _newest(local_times) + np.nan_to_num(_newest(communication))


def median(local_times: Floats, communication: Floats) -> Floats:
    """The next step takes as long as the median of the known ones, computing and communication.

    One slow step in a window changes nothing; a lasting slowdown shows when it has filled half of
    what is known.  Arrays, NaN and result are those of `last`.

    >>> median(np.array([[np.nan, 1.0, 9.0, 2.0]]), np.full((1, 4), np.nan))
    array([2.])
    """
    return _middle(local_times) + np.nan_to_num(_middle(communication))


def _newest(window: Floats) -> Floats:
    known = ~np.isnan(window)
    newest = window.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
    return np.take_along_axis(window, newest[:, np.newaxis], axis=1)[:, 0]


def _middle(window: Floats) -> Floats:
    """Like `np.nanmedian`, which warns of rows without any number."""
    ordered = np.sort(window, axis=1)  # NaN is sorted to the end
    width = ordered.shape[1]
    if not np.isnan(ordered[:, -1]).any():
        return np.asarray((ordered[:, (width - 1) // 2] + ordered[:, width // 2]) / 2)
    count = np.count_nonzero(~np.isnan(window), axis=1)
    pair = np.stack([np.maximum(count - 1, 0) // 2, count // 2], axis=1)
    middle: Floats = np.take_along_axis(ordered, pair, axis=1).mean(axis=1)
    return middle


class Predictor(enum.Enum):
    """The predictors by name, as a parameter of a policy."""

    LAST = "last"
    MEDIAN = "median"


PREDICTORS: dict[str, Callable[[Floats, Floats], Floats]] = {"last": last, "median": median}
"""Every predictor by the value of its `Predictor`.

A later one, such as an LSTM, is one more function of the two windows and one more entry here and
in `Predictor`; the policies need not know.
"""
