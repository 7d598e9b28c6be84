"""Fits STAR-ML's network to moments, in numpy.

The network learns the logarithm of a mode's cost up to a constant of its moment, by least squares:
modes that cost the same get the same score, and no mode is named the right one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simstrag.documents.weights_file import Weights
from simstrag.experiments.mode_learning.moments import AFTER, BEFORE, Moment, digest
from simstrag.policies.estimators.modes import FEATURES, KIND

Floats = npt.NDArray[np.float64]

HIDDEN = 8
PASSES = 1000
RATE, DECAY = 3e-3, 1.0
"""Of Adam, and of the weights; chosen with the other two by cross-validation over scenarios."""
ARRAYS = ("weight0", "bias0", "weight1", "bias1", "weight2")


def fit(found: Sequence[Moment], seed: int, command: str) -> Weights:
    """Weights trained on moments."""
    x = np.concatenate([each.features for each in found])
    y = np.concatenate([np.log(each.costs) for each in found])
    sizes = np.array([len(each.costs) for each in found])
    mean, std = x.mean(axis=0), x.std(axis=0)
    std[std < 1e-9] = 1.0  # a feature that is the same everywhere, but for its last bits
    arrays = _trained((x - mean) / std, y, sizes, seed)
    return Weights(
        KIND,
        {name: array.astype(np.float32) for name, array in arrays.items()}
        | {"mean": mean, "std": std},
        {
            "features": FEATURES, "seed": seed, "data": digest(found), "moments": len(found),
            "rounds": [BEFORE, AFTER], "command": command,
        },
    )  # fmt: skip


def _trained(x: Floats, y: Floats, sizes: npt.NDArray[np.int64], seed: int) -> dict[str, Floats]:
    """By Adam on all rows at once."""
    random = np.random.default_rng(seed)
    shapes = ((x.shape[1], HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN,))
    w = [random.normal(0, 1 / np.sqrt(shape[0]), shape) * (len(shape) > 1) for shape in shapes]
    w[4] = random.normal(0, 1 / np.sqrt(HIDDEN), HIDDEN)
    first, second = [np.zeros_like(each) for each in w], [np.zeros_like(each) for each in w]
    for step in range(1, PASSES + 1):
        for k, slope in enumerate(slopes(w, x, y, sizes)):
            first[k] = 0.9 * first[k] + 0.1 * slope
            second[k] = 0.999 * second[k] + 0.001 * slope**2
            move = first[k] / (1 - 0.9**step) / (np.sqrt(second[k] / (1 - 0.999**step)) + 1e-8)
            w[k] = w[k] - RATE * (1 - step / PASSES) * (move + DECAY * w[k])
    return dict(zip(ARRAYS, w, strict=True))


def slopes(
    w: Sequence[Floats], x: Floats, y: Floats, sizes: npt.NDArray[np.int64]
) -> tuple[Floats, ...]:
    """Of the mean squared error, within moments, in each array."""
    one = np.tanh(x @ w[0] + w[1])
    two = np.tanh(one @ w[2] + w[3])
    wrong = _centred(two @ w[4] - y, sizes) / len(y)  # centring is its own transpose
    back_two = np.outer(wrong, w[4]) * (1 - two**2)
    back_one = back_two @ w[2].T * (1 - one**2)
    return x.T @ back_one, back_one.sum(0), one.T @ back_two, back_two.sum(0), two.T @ wrong


def _centred(values: Floats, sizes: npt.NDArray[np.int64]) -> Floats:
    """Values minus the mean of their moment."""
    starts = np.cumsum(sizes) - sizes
    answer: Floats = values - np.repeat(np.add.reduceat(values, starts) / sizes, sizes)
    return answer
