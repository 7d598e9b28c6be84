"""STAR's two-headed LSTM: the next load of a node, and the time of an iteration there.

An LSTM of two layers reads the windows of a node's monitors; head A maps its output to the load of
the next interval, head B that load to the time of an iteration in it.  Rolled out, it reads its own
prediction as the next load.

Source: class `LstmRegr` of the code released with Zhang & Shen, "Straggler Tolerant and Resilient
DL Training on Homogeneous GPUs" (STAR), 2025, arXiv:2512.09685, in its training variant (three
inputs, 64 units, window 30, z-scores).  Ours: intervals of the monitors in place of iterations,
times as multiples of a clean iteration, so that one network serves several workloads, and a
roll-out that keeps the state of the LSTM, where the code begins anew for each interval.  Inference
is numpy; in a checkout of simstrag, `python -m benchmarks.lstm_training` trains, with torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.contract.view import INTERVALS
from simstrag.documents.weights_file import Weights, read_weights
from simstrag.errors import InputError

KIND = "lstm"
LAYERS = 2
HIDDEN = 64


class Lstm:
    """The trained network.

    about: how it was trained.
    """

    def __init__(self, weights: Weights) -> None:
        self.about: Mapping[str, Any] = weights.about
        self.sha256 = weights.sha256
        self._w = {name: array.astype(np.float64) for name, array in weights.arrays.items()}

    @classmethod
    def read(cls, path: str | Path) -> Lstm:
        """From a file of its weights.  Raises `InputError` for any other file."""
        weights = read_weights(path, KIND)
        window = weights.about.get("window")
        if window != INTERVALS:
            raise InputError(
                f"{path}: was trained for windows of {window} intervals, and a view has "
                f"{INTERVALS}; train again"
            )
        return cls(weights)

    def predict(self, windows: Floats, intervals: int = 1) -> Floats:
        """The time of an iteration in each of the next intervals, over that of a clean one.

        windows: shape (R, 30, 3) as in `View.telemetry`; intervals before the first have the load
            of the first, as in the released code.
        Returns shape (R, intervals); NaN where nothing is known of a node.
        """
        distinct, where = np.unique(_padded(windows), axis=0, return_inverse=True)
        known = ~np.isnan(distinct).any(axis=(1, 2))
        times = np.full((len(distinct), intervals), np.nan)
        load = (distinct[known] - self._w["load_mean"]) / self._w["load_std"]
        state = [(np.zeros((len(load), HIDDEN)), np.zeros((len(load), HIDDEN)))] * LAYERS
        for t in range(load.shape[1]):
            output, state = self._step(load[:, t], state)
        for k in range(intervals):
            load_next = self._linear("a", output)
            hidden = np.maximum(self._linear("b0", load_next), 0.0)
            hidden = np.maximum(self._linear("b1", hidden), 0.0)
            times[known, k] = self._linear("b2", hidden)[:, 0]
            output, state = self._step(load_next, state)
        times = times * self._w["time_std"] + self._w["time_mean"]
        answer: Floats = np.maximum(times, 1.0)[where.reshape(-1)]  # no iteration beats a clean one
        return answer

    def _linear(self, name: str, x: Floats) -> Floats:
        answer: Floats = x @ self._w[f"{name}_weight"].T + self._w[f"{name}_bias"]
        return answer

    def _step(
        self, x: Floats, state: list[tuple[Floats, Floats]]
    ) -> tuple[Floats, list[tuple[Floats, Floats]]]:
        """The output of the last layer for the next load, and the new state of each layer."""
        after = []
        for layer, (hidden, cell) in enumerate(state):
            gates = x @ self._w[f"input{layer}_weight"].T + self._w[f"layer{layer}_bias"]
            gates += hidden @ self._w[f"hidden{layer}_weight"].T
            enter, keep, new, show = np.split(gates, 4, axis=1)
            held = _sigmoid(keep) * cell + _sigmoid(enter) * np.tanh(new)
            x = _sigmoid(show) * np.tanh(held)
            after.append((x, held))
        return x, after


def _sigmoid(x: Floats) -> Floats:
    answer: Floats = 0.5 * (1 + np.tanh(0.5 * x))
    return answer


def _padded(windows: Floats) -> Floats:
    """Windows whose unknown first intervals have the load of the first known one."""
    unknown = np.isnan(windows[:, :, 0])
    first = np.argmin(unknown, axis=1)
    filled = windows[np.arange(len(windows)), first][:, np.newaxis]
    answer: Floats = np.where(unknown[:, :, np.newaxis], filled, windows)
    return answer
