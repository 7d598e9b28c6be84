"""The transformer encoder that the recorder of contention traces and the timers of messages use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from simstrag.workloads.job import Job
from simstrag.workloads.probe import BF16, MIN_GAIN, STAND_IN, Precisions, gain
from simstrag.workloads.workload import Batch, Parts

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Shape", "Task", "choose_precisions"]


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


class Task:
    """A model with random weights, a few random batches, and one gradient at a time.

    stand_in: parameters are float64; "full" computes in float64 and "amp" in float32, the casts of
    the parameters included.  Otherwise parameters are float32 and "amp" is bf16 autocast.
    """

    def __init__(self, shape: Shape, seed: int = 0, *, stand_in: bool = False) -> None:
        parts = _parts(shape, seed)
        full, amp = ("fp64", "fp32_of_fp64") if stand_in else ("fp32", "bf16")
        self._jobs = {"full": Job(parts, full), "amp": Job(parts, amp)}
        self.model = parts.model
        self.batches = [self._jobs["full"].batch(shape.batch) for _ in range(4)]
        self.optimizer = parts.optimizer

    @property
    def parameters(self) -> int:
        """How many numbers one gradient has."""
        return self._jobs["full"].parameters

    def gradient(self, number: int, precision: Literal["full", "amp"]) -> float:
        """Forward and backward on batch `number` (counted around); returns the loss."""
        batch = self.batches[number % len(self.batches)]
        return float(self._jobs[precision].gradient(batch))

    def update(self) -> None:
        """Apply the gradient and clear it; not part of a step's local time."""
        self._jobs["full"].update()


def choose_precisions(shape: Shape) -> Precisions:
    """bf16 autocast against fp32 where its gain exceeds `MIN_GAIN`, else the stand-in."""
    found = _probed(Task(shape))
    if found > MIN_GAIN:
        return Precisions(*BF16, stand_in=False, probed_gain=found)
    return Precisions(*STAND_IN, stand_in=True, probed_gain=_probed(Task(shape, stand_in=True)))


def _probed(task: Task) -> float:
    def step(precision: Literal["full", "amp"], number: int) -> None:
        task.gradient(number, precision)
        task.update()

    return gain(lambda number: step("full", number), lambda number: step("amp", number))


def _parts(shape: Shape, seed: int) -> Parts:
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, shape.hidden, dropout=0.0, batch_first=True
        )
        model = nn.Sequential(
            nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False),
            nn.Linear(shape.width, shape.classes),
        )

    def make_batch(samples: int) -> Batch:
        sizes = (samples, shape.sequence)
        inputs = torch.randn(*sizes, shape.width, generator=generator)
        return inputs, torch.randint(0, shape.classes, sizes, generator=generator)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())

    return Parts(model, loss, torch.optim.SGD(model.parameters(), lr=1e-3), make_batch)
