"""Handwritten digits of 8x8 pixels, which come with scikit-learn: real data for small models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simstrag.learning.tasks.task import LearningTask, TaskMaker, correct, cross_entropy, seeded
from simstrag.workloads.small import digit_images

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def digits(seed: int) -> LearningTask:
    """A perceptron 64-128-10 on 1,437 digits; every fifth of all 1,797 is held out."""
    from torch import nn

    return _digits(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
        seed,
    )


def digits_cnn(seed: int) -> LearningTask:
    """Two convolutions of 8 and 16 channels and a classifier on the same digits."""
    from torch import nn

    return _digits(
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64, 10),
        ),
        seed,
    )  # fmt: skip


def _digits(make: Callable[[], nn.Module], seed: int) -> LearningTask:
    images, labels = digit_images(held_out=False)
    return LearningTask(
        seeded(make, seed), images, labels, *digit_images(held_out=True), cross_entropy, correct,
        label=labels,
    )  # fmt: skip


IMAGES: dict[str, TaskMaker] = {"digits": digits, "digits_cnn": digits_cnn}
