"""The small training task that calibration times: its model, its batches and its two precisions.

A *step* here is forward and backward on one worker, ending in one gradient.  The optimizer is no
part of it: in data-parallel training the update follows the communication, on whoever applies it.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

__all__ = ["MIN_GAIN", "Precisions", "Shape", "Task", "choose_precisions"]

MIN_GAIN = 1.15
"""bf16 counts as a reduced precision only where it is measured faster than fp32 by more."""

Precision = Literal["full", "amp"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the transformer encoder: `batch` sequences of `sequence` tokens of `width`."""

    width: int = 256
    layers: int = 2
    heads: int = 4
    hidden: int = 1024
    classes: int = 64
    batch: int = 8
    sequence: int = 64

    @property
    def name(self) -> str:
        """Says the sizes in one word."""
        return f"encoder-w{self.width}-l{self.layers}-s{self.sequence}"


@dataclass(frozen=True, slots=True)
class Precisions:
    """Which number formats "full" and "amp" stand for, and the gain probed beforehand."""

    full: str
    amp: str
    stand_in: bool
    probed_gain: float


BF16 = ("fp32", "bf16 autocast")
STAND_IN = ("fp64", "fp32 compute on fp64 parameters (stand-in)")


class Task:
    """A model with random weights, a few random batches, and one gradient at a time.

    stand_in: parameters are float64; "full" computes in float64 and "amp" in float32, the casts of
    the parameters included.  Otherwise parameters are float32 and "amp" is bf16 autocast.
    """

    def __init__(self, shape: Shape, seed: int = 0, *, stand_in: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layer = nn.TransformerEncoderLayer(
                shape.width, shape.heads, shape.hidden, dropout=0.0, batch_first=True
            )
            self.model = nn.Sequential(
                nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False),
                nn.Linear(shape.width, shape.classes),
            )
        dtype = torch.float64 if stand_in else torch.float32
        self.model.to(dtype)
        self.stand_in = stand_in
        sizes = (shape.batch, shape.sequence)
        self.batches = [
            (
                torch.randn(*sizes, shape.width, generator=generator, dtype=dtype),
                torch.randint(0, shape.classes, sizes, generator=generator).flatten(),
            )
            for _ in range(4)
        ]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    @property
    def parameters(self) -> int:
        """How many numbers one gradient has."""
        return sum(p.numel() for p in self.model.parameters())

    def gradient(self, number: int, precision: Precision) -> float:
        """Forward and backward on batch `number` (counted around); returns the loss."""
        inputs, targets = self.batches[number % len(self.batches)]
        loss = nn.functional.cross_entropy(self._forward(inputs, precision).flatten(0, 1), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def update(self) -> None:
        """Apply the gradient and clear it; not part of a step's local time."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _forward(self, inputs: torch.Tensor, precision: Precision) -> torch.Tensor:
        if precision == "full":
            return self._call(inputs)
        if not self.stand_in:
            with torch.autocast("cpu", torch.bfloat16):
                return self._call(inputs).float()
        cast = {name: p.float() for name, p in self.model.named_parameters()}
        out: torch.Tensor = torch.func.functional_call(self.model, cast, (inputs.float(),))
        return out

    def _call(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(inputs)
        return out


def probe_gain(task: Task, rounds: int = 4, steps: int = 8) -> float:
    """Median full step / median amp step, the two in turns of `steps` so that drift hits both.

    The first step of each turn is left out.
    """
    seconds: dict[Precision, list[float]] = {"full": [], "amp": []}
    for _ in range(rounds):
        for precision, kept in seconds.items():
            for number in range(steps):
                begun = time.monotonic()
                task.gradient(number, precision)
                if number > 0:
                    kept.append(time.monotonic() - begun)
                task.update()
    return statistics.median(seconds["full"]) / statistics.median(seconds["amp"])


def choose_precisions(shape: Shape) -> Precisions:
    """bf16 autocast against fp32 where its gain exceeds `MIN_GAIN`, else the stand-in.

    CPU flags are no answer: without AMX or AVX512-BF16 bf16 runs, three times slower than fp32.
    """
    gain = probe_gain(Task(shape))
    if gain > MIN_GAIN:
        return Precisions(*BF16, stand_in=False, probed_gain=gain)
    return Precisions(*STAND_IN, stand_in=True, probed_gain=probe_gain(Task(shape, stand_in=True)))
