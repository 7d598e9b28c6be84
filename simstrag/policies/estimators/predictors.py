"""Predictors of the time of each rank's next step: functions of a view.

A step's time is computing plus push plus pull, without waiting for other ranks.  A rank may be slow
in computing or in communication, so the two are predicted separately and added.  Times are not
normalised for precision or batch share, because the policies that use them change neither.

Source: the definition is from the code released with Zhang & Shen, "Straggler Tolerant and
Resilient DL Training on Homogeneous GPUs" (STAR), 2025, arXiv:2512.09685.  Its LSTM on the load of
the ranks' nodes is in `lstm`; the others are this project's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.contract import WINDOW, Block, View
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError, PlanError
from simstrag.policies.estimators.lstm import KIND, Lstm

PredictionRule = Callable[[Any, str], Floats]
"""The next value of an array of a view by its recent values; shape (N,), NaN where unknown.

By `median` also of a block; shape (R, N)."""


def last(view: View, name: str) -> Floats:
    """The value of each rank's last step in an array of a view.

    >>> last(View(1, local_times=[[np.nan] * 14 + [2.0, np.nan]]), "local_times")
    array([2.])
    """
    window = view.newest(name, WINDOW)
    known = ~np.isnan(window)
    if known[:, -1].all():
        return window[:, -1]
    newest = WINDOW - 1 - np.argmax(known[:, ::-1], axis=1)
    return np.take_along_axis(window, newest[:, np.newaxis], axis=1)[:, 0]


def median(view: View | Block, name: str) -> Floats:
    """The median of each rank's known steps in an array of a view, or at each review of a block.

    One slow step in a window has no effect; a lasting slowdown has, from half of the window on.
    """
    return view.medians(name, WINDOW, skip=True)


def predict(rule: PredictionRule, view: View | Block, computing: Floats | None = None) -> Floats:
    """Seconds of each rank's next step by a rule; shape (N,), or (R, N); NaN where unknown.

    Without a communication time that part is 0.

    computing: seconds of computing, where they are known, shape (N,).

    >>> window = [[np.nan] * 13 + [1.0, 9.0, 2.0]]
    >>> predict(median, View(1, local_times=window))
    array([2.])
    """
    communication = rule(view, "communication")
    if computing is None:
        computing = rule(view, "local_times")
    unknown = np.isnan(communication)
    if np.count_nonzero(unknown):
        communication = np.where(unknown, 0.0, communication)
    return computing + communication


def true(view: View) -> Floats:
    """The true noise-free computing of a step started now, plus the median communication.

    Raises `PlanError` outside a simulation.
    """
    if view.truth is None:
        raise PlanError("only a simulation has an oracle; choose another predictor")
    return predict(median, view, view.truth())


@dataclass(frozen=True, slots=True, eq=False)
class OfLoad:
    """The computing that the load of each rank's node suggests, plus the median communication."""

    network: Lstm

    def __call__(self, view: View) -> Floats:
        """Raises `PlanError` where no cluster is simulated."""
        if not view.telemetry.shape[1]:
            raise PlanError(
                "the predictor lstm reads the load of nodes, which only `simstrag cluster` "
                "simulates; choose predictor=median"
            )
        clean = view.hints.clean_seconds
        times = self.network.predict(view.telemetry)[:, 0]
        return times if clean is None else predict(median, view, clean * times)


StepPredictor = Callable[[View], Floats]
"""Seconds of each rank's next step; shape (N,), NaN where unknown."""
RULES: dict[str, PredictionRule] = {"last": last, "median": median}
"""Predictors from recent times alone, by name."""
PREDICTORS: dict[str, StepPredictor] = {
    **{name: partial(predict, rule) for name, rule in RULES.items()}, "oracle": true,
}  # fmt: skip
"""Every predictor that reads no file, by its name in a spec."""
ALLOWED = "last, median, oracle or lstm:FILE"
"""Allowed predictors of a spec, in words."""


def load_predictor(text: str) -> StepPredictor:
    """The predictor of a spec: a name of `PREDICTORS`, or lstm and the file of its weights.

    Raises `InputError` for an unknown one, and for a file without such weights.

    >>> load_predictor("medain")
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no predictor 'medain'; known: last, median, oracle, \
lstm:FILE. Did you mean 'median'?
    """
    name, colon, file = text.partition(":")
    if name == KIND and file:
        return OfLoad(Lstm.read(file))
    if name == KIND:
        raise InputError("predictor lstm needs the file of its weights: lstm:FILE")
    if name in PREDICTORS and not colon:
        return PREDICTORS[name]
    known = f"{', '.join(PREDICTORS)}, {KIND}:FILE"
    near = nearest(name, (*PREDICTORS, KIND))
    raise InputError(f"there is no predictor '{text}'; known: {known}{near}")


class PredictsTimes:
    """What policies share that have a parameter `predictor`; they call `_load` once built."""

    predictor: str

    @cached_property
    def predictor_(self) -> StepPredictor:
        """The predictor that the parameter names."""
        return load_predictor(self.predictor)

    def _load(self) -> None:
        """Raise `InputError` where there is no such predictor."""
        _ = self.predictor_

    @property
    def oracle(self) -> bool:
        """Whether it uses `View.truth`."""
        return self.predictor == "oracle"

    @property
    def reads_telemetry(self) -> bool:
        """Whether it uses `View.telemetry`."""
        return isinstance(self.predictor_, OfLoad)

    @property
    def weights(self) -> str:
        """The SHA-256 of the file that it reads; empty if it reads none."""
        return self.predictor_.network.sha256 if isinstance(self.predictor_, OfLoad) else ""
