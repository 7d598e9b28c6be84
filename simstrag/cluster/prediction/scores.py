"""How well predictors find stragglers: STAR's 20 % rule on predicted and true times."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from simstrag.cluster.job import STRAGGLES
from simstrag.cluster.prediction.recording import Recording
from simstrag.contract.view import INTERVALS
from simstrag.policies.estimators.lstm import Lstm
from simstrag.policies.estimators.time_to_progress import straggle

Floats = npt.NDArray[np.float64]

TRAINED = 0.7
"""The share of a run's intervals, from the first on, that is trained on, as in STAR's code."""
HORIZONS = (1, INTERVALS)
"""Intervals ahead for which predictions are scored."""


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one predictor.

    predictor: its name.
    ahead: intervals between the prediction and what it is about.
    states: jobs times intervals.
    share: of them that truly have a straggler.
    accuracy: share of the states that are predicted right.
    false_positive: share of the states without a straggler for which one is predicted.
    false_negative: share of those with a straggler for which none is.
    """

    predictor: str
    ahead: int
    states: int
    share: float
    accuracy: float
    false_positive: float
    false_negative: float

    @classmethod
    def of(
        cls, predictor: str, ahead: int, predicted: Sequence[bool], true: Sequence[bool]
    ) -> Score:
        """From what was predicted for each state, and what was true.

        >>> Score.of("last", 1, [True, True, False, False], [True, False, False, False])
        Score(predictor='last', ahead=1, states=4, share=0.25, accuracy=0.75, \
false_positive=0.3333333333333333, false_negative=0.0)
        """
        said, is_so = np.array(predicted, bool), np.array(true, bool)

        def share(of: npt.NDArray[np.bool_]) -> float:
            return float(of.mean()) if of.size else math.nan

        return cls(
            predictor, ahead, len(is_so), share(is_so), share(said == is_so), share(said[~is_so]),
            share(~said[is_so]),
        )  # fmt: skip


def score(
    recordings: Sequence[Recording], network: Lstm | None, trained: Container[str] = ()
) -> list[Score]:
    """The scores of every predictor, of states in which all of them know all ranks.

    trained: digests of runs of which the last 30 % alone count, which no training saw.
    """
    states: dict[int, list[tuple[dict[str, bool], bool]]] = {ahead: [] for ahead in HORIZONS}
    for recording in recordings:
        rolled_out = None if network is None else _roll_out(network, recording)
        start = int(TRAINED * len(recording.loads)) if recording.digest in trained else 0
        for job in recording.jobs.values():
            times = np.array(job.times)
            predicted = {
                name: np.array(values)[:, :, np.newaxis].repeat(INTERVALS, axis=2)
                for name, values in job.predicted.items()
            }
            if rolled_out is not None:
                predicted["lstm"] = rolled_out[job.first : job.first + len(times), job.nodes]
            for ahead in HORIZONS:
                for k in range(max(start - job.first, 0), len(times) - ahead + 1):
                    said = {name: values[k, :, ahead - 1] for name, values in predicted.items()}
                    if not any(np.isnan(each).any() for each in said.values()):
                        flags = {name: _any_straggles(each) for name, each in said.items()}
                        states[ahead].append((flags, _any_straggles(times[k + ahead - 1])))
    names = list(states[1][0][0]) if states[1] else []
    return [
        Score.of(name, ahead, [flags[name] for flags, _ in rows], [true for _, true in rows])
        for ahead, rows in states.items()
        for name in names
    ]


def _roll_out(network: Lstm, recording: Recording) -> Floats:
    """Times of iterations, shape (intervals, nodes, 30), as predicted once so many have ended."""
    loads = np.array(recording.loads)
    before = np.full((INTERVALS - 1, *loads.shape[1:]), np.nan)
    every = sliding_window_view(np.concatenate([before, loads]), INTERVALS, axis=0)
    windows = every.swapaxes(2, 3).reshape(-1, INTERVALS, loads.shape[2])
    found = np.full((len(loads) + 1, loads.shape[1], INTERVALS), np.nan)
    found[1:] = network.predict(windows, INTERVALS).reshape(found[1:].shape)
    return found


def _any_straggles(times: Floats) -> bool:
    return bool(straggle(times, STRAGGLES).any())
