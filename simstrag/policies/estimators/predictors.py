"""Predictors of the time of each rank's next step: pure functions from a view to seconds.

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

from simstrag.view import WINDOW, View

Floats = npt.NDArray[np.float64]


def last(view: View, name: str) -> Floats:
    """The value of each rank's last step in an array of a view; shape (N,), NaN without any.

    >>> last(View(1, local_times=[[np.nan] * 14 + [2.0, np.nan]]), "local_times")
    array([2.])
    """
    window = view.newest(name, WINDOW)
    known = ~np.isnan(window)
    if known[:, -1].all():
        return window[:, -1]
    newest = WINDOW - 1 - np.argmax(known[:, ::-1], axis=1)
    return np.take_along_axis(window, newest[:, np.newaxis], axis=1)[:, 0]


def median(view: View, name: str) -> Floats:
    """The median of each rank's known steps; arguments and result as for `last`.

    One slow step in a window has no effect; a lasting slowdown has, from half of the window on.
    """
    return view.medians(name, WINDOW, skip=True)


class PredictorKind(enum.Enum):
    """The name of a predictor, as a parameter of a policy."""

    LAST = "last"
    MEDIAN = "median"


PREDICTORS: dict[str, Callable[[View, str], Floats]] = {"last": last, "median": median}
"""Every predictor by the value of its `PredictorKind`; a new one is an entry here and there."""


def predict(kind: PredictorKind, view: View, computing: Floats | None = None) -> Floats:
    """Seconds of each rank's next step by a predictor; shape (N,), NaN where unknown.

    Without a communication time that part is 0.

    computing: seconds of computing, where they are known, shape (N,).

    >>> window = [[np.nan] * 13 + [1.0, 9.0, 2.0]]
    >>> predict(PredictorKind.MEDIAN, View(1, local_times=window))
    array([2.])
    """
    predictor = PREDICTORS[kind.value]
    communication = predictor(view, "communication")
    if computing is None:
        computing = predictor(view, "local_times")
    unknown = np.isnan(communication)
    if np.count_nonzero(unknown):
        communication = np.where(unknown, 0.0, communication)
    return computing + communication
