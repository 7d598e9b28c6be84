"""Tasks whose samples are drawn by a stated process, so that their truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simstrag.learning.tasks.task import (
    LearningTask,
    TaskMaker,
    correct,
    cross_entropy,
    seeded,
    squared_error,
)

if TYPE_CHECKING:
    import torch

SAMPLES, HELD_OUT = 8192, 2048
CURVATURES = np.geomspace(1.0, 0.02, 40)
"""Eigenvalues of the quadratic's Hessian."""
START = 5.0
"""Distance of each of the quadratic's parameters from the minimum."""
NOISE_SCALE = 1000.0
"""B_noise of the quadratic at its start, in samples."""


def quadratic(seed: int) -> LearningTask:
    """A quadratic of 40 parameters with known curvature and gradient noise.

    The loss of a sample z is h.(w*w)/2 + z.w, the samples sum to zero, and B_noise is 1,000 at the
    start and grows as the gradient vanishes. The score is the share of the initial loss removed.
    """
    import torch
    from torch import nn

    curvature = torch.tensor(CURVATURES, dtype=torch.float32)

    class Quadratic(nn.Module):
        """Parameters w; the output for a sample z is its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((len(CURVATURES),), START))

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = z @ self.w + 0.5 * (curvature.to(self.w) * self.w * self.w).sum()
            return out

    gradient = CURVATURES * START
    deviation = np.sqrt(NOISE_SCALE * gradient @ gradient / len(CURVATURES))
    z = np.random.default_rng([seed, 0]).normal(0.0, deviation, (SAMPLES, len(CURVATURES)))
    inputs = torch.tensor(z - z.mean(0), dtype=torch.float32)
    zeros = torch.zeros(SAMPLES)
    whole = float(0.5 * CURVATURES.sum() * START**2)
    return LearningTask(
        Quadratic(), inputs, zeros, torch.zeros(1, len(CURVATURES)), zeros[:1],
        lambda outputs, _: outputs, lambda outputs, _: 1 - outputs / whole,
        "share of the initial loss removed",
    )  # fmt: skip


def teacher(seed: int) -> LearningTask:
    """A perceptron 32-64-1 that learns another of the same size, whose outputs have noise of 10 %.

    The score is the share of the held-out targets' variance that is explained (R squared).
    """
    import torch

    rng = np.random.default_rng([seed, 1])
    made = seeded(lambda: _perceptron(32, 64, 1), seed + 1)
    x = torch.tensor(rng.normal(size=(SAMPLES + HELD_OUT, 32)), dtype=torch.float32)
    with torch.no_grad():
        y = made(x).squeeze(-1)
    y = (y - y.mean()) / y.std()
    noise = torch.tensor(rng.normal(size=len(y)), dtype=torch.float32)
    return _regression(seed, x, y + 0.1 * noise)


def tabular(seed: int) -> LearningTask:
    """Friedman's first function of 10 uniform columns, which a perceptron 10-64-1 learns.

    10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + N(0, 1), standardised; Friedman,
    "Multivariate adaptive regression splines", 1991. The score is R squared on held-out rows.
    """
    import torch

    rng = np.random.default_rng([seed, 2])
    x = rng.uniform(size=(SAMPLES + HELD_OUT, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3]
    y = y + 5 * x[:, 4] + rng.normal(size=len(x))
    y = (y - y.mean()) / y.std()
    columns = torch.tensor(2 * x - 1, dtype=torch.float32)
    return _regression(seed, columns, torch.tensor(y, dtype=torch.float32))


def mixture(seed: int) -> LearningTask:
    """Mixtures of Gaussians: 4 classes of 8 clusters each in 64 dimensions; a perceptron 64-256-4.

    Centres are random unit vectors, the noise has deviation 0.5 in each dimension: the process of
    the asyncdiloco notebook (google-deepmind/asyncdiloco) in an eighth of its dimensions.
    """
    import torch

    rng = np.random.default_rng([seed, 3])
    classes, clusters, dimension, each = 4, 8, 64, (SAMPLES + HELD_OUT) // 32
    centres = rng.normal(size=(classes * clusters, dimension))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    x = np.repeat(centres, each, axis=0) + rng.normal(0, 0.5, (len(centres) * each, dimension))
    y = np.repeat(np.arange(classes), clusters * each)
    order = rng.permutation(len(x))
    inputs = torch.tensor(x[order], dtype=torch.float32)
    labels = torch.tensor(y[order])
    return LearningTask(
        seeded(lambda: _perceptron(dimension, 256, classes), seed),
        inputs[:SAMPLES], labels[:SAMPLES], inputs[SAMPLES:], labels[SAMPLES:],
        cross_entropy, correct, label=labels[:SAMPLES],
    )  # fmt: skip


def _perceptron(inputs: int, hidden: int, outputs: int) -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _regression(seed: int, x: torch.Tensor, y: torch.Tensor) -> LearningTask:
    """A perceptron with 64 hidden units on the first samples; the last are held out."""
    spread = float(y[SAMPLES:].var(correction=0))
    return LearningTask(
        seeded(lambda: _perceptron(x.shape[1], 64, 1), seed),
        x[:SAMPLES], y[:SAMPLES], x[SAMPLES:], y[SAMPLES:], squared_error,
        lambda outputs, targets: 1 - 2 * squared_error(outputs, targets) / spread,
        "share of the held-out variance explained",
    )  # fmt: skip


SYNTHETIC: dict[str, TaskMaker] = {
    "quadratic": quadratic, "teacher": teacher, "tabular": tabular, "mixture": mixture,
}  # fmt: skip
