"""The modes that STAR-ML compares, what it knows of each, and the network that scores them.

All of it is this project's reconstruction: the code released with STAR (arXiv:2512.09685) has an
untrained network, no labels and no training set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.contract import Quorum, Via
from simstrag.documents.weights_file import Weights, read_weights
from simstrag.errors import InputError
from simstrag.policies.estimators.time_to_progress import relative_updates, ward_clusters

KIND = "star_ml"
SIMILAR = 0.2
"""The threshold between groups, as a share of the fastest time, as in star_dynamic."""
FEATURES = (
    "is_all", "is_groups", "log_x_over_n", "log_gradient_rate", "log_updates", "log_time",
    "log_staleness", "log_n", "log_noise_over_batch", "log_time_25", "log_time_50", "log_time_75",
    "log_time_100", "communication",
)  # fmt: skip
"""What the network knows of a mode, and from `log_n` on of the job."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of making updates.

    x: gradients per update; N is all together.
    groups: of ranks that update independently, or none.
    """

    x: int
    groups: tuple[tuple[int, ...], ...] = ()

    def quorums(self, ranks: int) -> tuple[Quorum, ...]:
        """The quorums of a plan in this mode, through a server."""
        if self.groups:
            return tuple(Quorum(group, via=Via.SERVER) for group in self.groups)
        if self.x == ranks:
            return (Quorum(via=Via.SERVER),)
        return (Quorum(count=self.x, via=Via.SERVER),)


def modes(times: Floats) -> tuple[Mode, ...]:
    """All together, every smaller x from the largest on, and groups if there is more than one.

    times: seconds of each rank's next step, shape (N,).

    >>> [(mode.x, mode.groups) for mode in modes(np.array([1.0, 1.0, 2.0]))]
    [(3, ()), (2, ()), (1, ()), (3, ((0, 1), (2,)))]
    """
    n = len(times)
    groups = ward_clusters(times, SIMILAR * float(times.min()))
    grouped = [Mode(n, tuple(tuple(map(int, group)) for group in groups))] * (len(groups) > 1)
    return (*(Mode(x) for x in range(n, 0, -1)), *grouped)


def describe(
    chosen: tuple[Mode, ...], times: Floats, phi: float, batch: int, moved: float
) -> Floats:
    """What the network knows of each mode; shape (modes, features), the same for any rank numbers.

    times: seconds of each rank's next step.  phi: noise scale in samples.
    batch: samples of a gradient.
    moved: the share of communication in the median step.
    """
    n, p = len(times), np.sort(times)
    job = [
        math.log(n), math.log1p(phi / (n * batch)), *np.log(np.quantile(p, QUANTILES) / p[0]),
        moved,
    ]  # fmt: skip
    rows = []
    for mode in chosen:
        if mode.groups:
            sizes = np.array([len(group) for group in mode.groups], float)
            slowest = np.array([times[list(group)].max() for group in mode.groups])
            x, rate = n / len(sizes), float(np.sum(sizes / slowest))
            updates = relative_updates(sizes, phi, batch)
            seconds = float(1 / np.sum(1 / (slowest * updates)))
            needed = float(np.sum(sizes / slowest * updates) / rate)
        else:
            x = mode.x
            rate = x / p[x - 1] if x == n else float(np.sum(1 / np.maximum(p, p[-1] * x / n)))
            needed = float(relative_updates(np.array(float(x)), phi, batch))
            seconds = float(p[x - 1]) * needed
        every = float(relative_updates(np.array(float(n)), phi, batch))
        is_all = not mode.groups and mode.x == n
        rows.append([
            float(is_all), float(bool(mode.groups)), math.log(x / n), math.log(rate * p[-1] / n),
            math.log(needed / every), math.log(seconds / (p[-1] * every)), math.log(n / x), *job,
        ])  # fmt: skip
    return np.array(rows)


QUANTILES = (0.25, 0.5, 0.75, 1.0)


class ModeNetwork:
    """Scores modes: the logarithm of seconds per progress, up to a constant of the job.

    about: how it was trained.
    """

    def __init__(self, weights: Weights) -> None:
        self.about: Mapping[str, Any] = weights.about
        self.sha256 = weights.sha256
        self._w = {name: array.astype(np.float64) for name, array in weights.arrays.items()}

    @classmethod
    def read(cls, path: str | Path) -> ModeNetwork:
        """From a file of its weights.  Raises `InputError` for any other file."""
        weights = read_weights(path, KIND)
        if tuple(weights.about.get("features", ())) != FEATURES:
            raise InputError(f"{path}: was trained on other features; train again")
        return cls(weights)

    def scores(self, features: Floats) -> Floats:
        """Of modes with these features, shape (modes,); the lowest is the best."""
        x = (features - self._w["mean"]) / self._w["std"]
        x = np.tanh(x @ self._w["weight0"] + self._w["bias0"])
        x = np.tanh(x @ self._w["weight1"] + self._w["bias1"])
        answer: Floats = x @ self._w["weight2"]
        return answer
