"""Workloads that one CPU core finishes: random weights, from torch's own layers.

Inputs are random, except those of `digits`, whose accuracy can improve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simstrag.errors import InputError
from simstrag.workloads.workload import (
    Batch,
    Parts,
    Workload,
    batch_generator,
    random_images,
    random_tokens,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


def cross_entropy(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean loss over the batch, and over positions where an input is a sequence."""
    from torch import nn

    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def resnet18(width: int = 16) -> Parts:
    """ResNet-18 for 3x32x32 images with a quarter of the usual width; 0.7 million parameters.

    The layers are those of He et al. 2016 (arXiv:1512.03385) with the stem for small images.
    """
    from torch import nn

    class Block(nn.Module):
        """Two convolutions and a residual connection."""

        def __init__(self, inner: int, outer: int, stride: int) -> None:
            super().__init__()
            self.main = nn.Sequential(
                nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outer),
                nn.ReLU(),
                nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outer),
            )
            shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )
            self.shortcut = nn.Identity() if inner == outer else shortcut

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.main(x) + self.shortcut(x)
            return out.relu()

    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inner = width
    for stage in range(4):
        outer = width << stage
        layers += [Block(inner, outer, 2 if stage else 1), Block(outer, outer, 1)]
        inner = outer
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 10))

    make_batch = random_images(3, 32, 32, classes=10)
    return Parts(model, cross_entropy, _momentum(model, 0.01), make_batch)


def transformer(width: int = 256, tokens: int = 32, vocabulary: int = 1024) -> Parts:
    """Encoder of 4 layers that predicts a token per position; 3.7 million parameters."""
    import torch
    from torch import nn

    class Encoder(nn.Module):
        """Tokens in, scores over the vocabulary out."""

        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True
            )
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))
            self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.scores = nn.Linear(width, vocabulary)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.scores(self.layers(self.tokens(x) + self.positions))
            return out

    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Parts(model, cross_entropy, optimizer, random_tokens(tokens, vocabulary))


def mlp(width: int = 1024) -> Parts:
    """Three layers of 1024 and a classifier; 3.2 million parameters, little but matrix products."""
    from torch import nn

    hidden = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, 10))

    return Parts(model, cross_entropy, _momentum(model, 0.01), random_images(width, classes=10))


def digits() -> Parts:
    """A convolutional network on scikit-learn's 1797 handwritten digits of 8x8; real data.

    A batch is drawn with replacement, because the theory of the gradient noise scale assumes
    independent samples. Every fifth image is held out (`held_out_digits`).
    """
    import torch
    from torch import nn

    images, labels = digit_images(held_out=False)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )

    generator = batch_generator()

    def make_batch(samples: int) -> Batch:
        drawn = torch.randint(0, len(images), (samples,), generator=generator)
        return images[drawn], labels[drawn]

    return Parts(model, cross_entropy, _momentum(model, 0.02), make_batch)


def held_out_digits() -> Batch:
    """Every fifth digit, 360 in all, as the test set."""
    return digit_images(held_out=True)


def digit_images(held_out: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of shape (n, 1, 8, 8) with values 0 to 1, and their digits."""
    import torch

    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "workload 'digits': its data come with scikit-learn, which is not installed; "
            "pip install simstrag[models]"
        ) from None
    data = load_digits()
    images = torch.tensor(data.images / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target, dtype=torch.int64)
    kept = (torch.arange(len(images)) % 5 == 0) == held_out
    return images[kept], labels[kept]


def _momentum(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    import torch

    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


SMALL = (
    Workload("resnet18", resnet18, (2, 4, 8, 16, 32), 8, "cpu"),
    Workload("transformer", transformer, (1, 2, 4, 8, 16), 4, "cpu"),
    Workload("mlp", mlp, (32, 64, 128, 256, 512), 128, "cpu"),
    Workload(
        "digits", digits, (16, 32, 64, 128, 256), 64, "cpu", real_data=True, test=held_out_digits
    ),
)
"""Nominal steps took 30, 33, 20 and 7 ms, measured in float32 on one Xeon core with AMX."""
