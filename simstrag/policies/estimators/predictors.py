"""Predictors of the time of each rank's next step: pure functions from windows to seconds.

A step's time is computing plus push plus pull, without waiting for other ranks.  A rank may be slow
in computing or in communication, so the two are predicted separately and added.  Times are not
normalised for precision or batch share, because the policies that use them change neither.

Source: the definition is from the code released with Zhang & Shen, "Straggler Tolerant and
Resilient DL Training on Homogeneous GPUs" (STAR), 2025, arXiv:2512.09685.  Both predictors are this
project's: the released LSTM on the load of the ranks' servers comes without usable weights.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from simstrag.policies.estimators.columns import medians
from simstrag.view import WINDOW, View

Floats = npt.NDArray[np.float64]


def last(local_times: Floats, communication: Floats) -> Floats:
    """The time of the last step, as the prediction of the next; shape (N,), seconds.

    It is NaN for a rank without a local time. Without a communication time that part is 0.

    local_times, communication: shape (N, W), seconds, newest last, NaN where there is none.

    >>> last(np.array([[1.0, 2.0], [np.nan, np.nan]]), np.array([[0.5, 0.25], [0.5, 0.5]]))
    array([2.25,  nan])
    """
    return _sum(_newest(local_times), _newest(communication))


def median(local_times: Floats, communication: Floats) -> Floats:
    """The median of the known steps, computing plus communication; arguments as for `last`.

    One slow step in a window has no effect; a lasting slowdown has, from half of the window on.

    >>> median(np.array([[np.nan, 1.0, 9.0, 2.0]]), np.full((1, 4), np.nan))
    array([2.])
    """
    return _sum(medians(local_times.T, skip=True), medians(communication.T, skip=True))


def _sum(computing: Floats, communication: Floats) -> Floats:
    unknown = np.isnan(communication)
    if np.count_nonzero(unknown):
        communication = np.where(unknown, 0.0, communication)
    return computing + communication


def _newest(window: Floats) -> Floats:
    known = ~np.isnan(window)
    if known[:, -1].all():
        return window[:, -1]
    newest = window.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
    return np.take_along_axis(window, newest[:, np.newaxis], axis=1)[:, 0]


class PredictorKind(enum.Enum):
    """The name of a predictor, as a parameter of a policy."""

    LAST = "last"
    MEDIAN = "median"


PREDICTORS: dict[str, Callable[[Floats, Floats], Floats]] = {"last": last, "median": median}
"""Every predictor by the value of its `PredictorKind`; a new one is an entry here and there."""


def predict(kind: PredictorKind, view: View) -> Floats:
    """Seconds of each rank's next step by a predictor; shape (N,), NaN where unknown."""
    windows = (view.newest(name, WINDOW) for name in ("local_times", "communication"))
    return PREDICTORS[kind.value](*windows)
