"""A workload in training: one gradient and one update at a time, on one device.

Which precisions count as full and as reduced on a device is measured, not read from CPU flags: a
CPU without AMX and AVX512-BF16 runs bf16, three times slower than fp32.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from simstrag.workloads.precision import (
    available_precisions,
    parameter_dtype,
    reduced_loss,
    tensor_cores,
)
from simstrag.workloads.workload import map_tensors

if TYPE_CHECKING:
    import torch
    from torch import nn

    from simstrag.workloads.workload import Batch, Parts, Workload

COMPILATIONS = 64
"""Most batch sizes and precisions for which a model is compiled."""

MIN_GAIN = 1.15
"""The least measured gain at which bf16 counts as reduced precision on a CPU."""


class TrainingTask:
    """The parts of a workload, on one device and in one precision.

    A *step* is `gradient`: forward and backward on one worker, which result in one gradient.
    `update` is not part of a step: in data-parallel training it follows the communication.
    Two tasks may share parts if the number format of their parameters is the same.

    parts: moved to the device and cast in place.
    precision: one of `PRECISIONS`.
    device: a torch device; on a GPU convolutions take the fastest of cuDNN's algorithms.
    compiles: whether `torch.compile` compiles the model, at its first steps.

    >>> from simstrag.workloads import load
    >>> task = TrainingTask(load("mlp").build(), precision="bf16")
    >>> loss = task.gradient(task.batch(4))
    >>> task.update()
    """

    def __init__(
        self,
        parts: Parts,
        precision: str = "fp32",
        device: str = "cpu",
        compiles: bool = False,
    ) -> None:
        import torch

        self.precision = precision
        self.device = torch.device(device)
        self.dtype = parameter_dtype(precision)
        self.parts = parts
        self.model = parts.model.to(self.device, self.dtype).train()
        if compiles:
            # One kernel for each batch size, and as many as there are: beyond its limit torch would
            # go on without compiling, and say nothing.
            torch._dynamo.config.recompile_limit = COMPILATIONS
            self.model = cast("nn.Module", torch.compile(self.model, dynamic=False))
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        self.optimizer = parts.optimizer
        self._loss = (
            reduced_loss(self.model, parts.loss)
            if precision == "fp32_of_fp64"
            else lambda batch: parts.loss(self.model, batch)
        )
        self._autocast = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
        self._scaler = torch.amp.GradScaler(self.device.type) if precision == "fp16" else None

    @property
    def parameters(self) -> int:
        """The number of elements of one gradient."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def batch(self, samples: int) -> Batch:
        """A batch on the model's device; floating inputs in the parameters' number format."""

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

        return map_tensors(self.parts.make_batch(samples), move)

    def gradient(self, batch: Batch) -> torch.Tensor:
        """Run forward and backward, accumulate the gradients, and return the loss.

        Does not synchronize: on a GPU the call may return before the computation ends. In fp16
        the gradients stay scaled until `update`.
        """
        import torch

        cuda = self.device.type == "cuda"
        with tensor_cores(self.precision == "tf32") if cuda else nullcontext():
            if self._autocast is None:
                loss = self._loss(batch)
            else:
                with torch.autocast(self.device.type, self._autocast):
                    loss = self._loss(batch)
            scaled = loss if self._scaler is None else self._scaler.scale(loss)
            scaled.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """Apply the gradient and clear it; in fp16 the check for infinities synchronizes."""
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.unscale_(self.optimizer)
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True, slots=True)
class Precisions:
    """The precisions that "full" and "amp" denote.

    full, amp: names of `PRECISIONS`.
    stand_in: whether they are the float64 stand-in.
    probed_gain: the measured gain of bf16 over fp32 on a CPU; NaN on a GPU, which is not probed.
    """

    full: str
    amp: str
    stand_in: bool
    probed_gain: float


def choose_precisions(workload: Workload, device: str = "cpu", steps: int = 6) -> Precisions:
    """The full and the reduced precision of a workload on a device.

    On a GPU: TF32 and bf16, before 2020 fp32 and fp16. On a CPU: fp32 and bf16 if the gain at the
    nominal batch exceeds `MIN_GAIN`, else the stand-in.
    """
    if device != "cpu":
        modern = "tf32" in available_precisions(device)
        full, amp = ("tf32", "bf16") if modern else ("fp32", "fp16")
        return Precisions(full, amp, stand_in=False, probed_gain=float("nan"))
    parts = workload.build()
    full_task, amp_task = TrainingTask(parts, "fp32"), TrainingTask(parts, "bf16")
    batch = full_task.batch(workload.nominal)

    def step(task: TrainingTask, _number: int) -> None:
        task.gradient(batch)
        task.optimizer.zero_grad(set_to_none=True)

    measured = gain(partial(step, full_task), partial(step, amp_task), rounds=4, steps=steps)
    if measured > MIN_GAIN:
        return Precisions("fp32", "bf16", stand_in=False, probed_gain=measured)
    return Precisions("fp64", "fp32_of_fp64", stand_in=True, probed_gain=measured)


def gain(
    full: Callable[[int], object],
    amp: Callable[[int], object],
    rounds: int = 4,
    steps: int = 8,
    limit: float = math.inf,
) -> float:
    """Median time of a full step over the median time of an amp step.

    The two take turns of `steps` steps, so that drift affects both; the first step of a turn does
    not count.

    limit: seconds after which a turn ends with the first step that counts, and the rounds with it.
    """
    begin, seconds = time.monotonic(), (list[float](), list[float]())
    for _ in range(rounds):
        for step, times in zip((full, amp), seconds, strict=True):
            for number in range(steps):
                start = time.monotonic()
                step(number)
                if number > 0:
                    times.append(time.monotonic() - start)
                    if time.monotonic() - begin > limit:
                        break
        if time.monotonic() - begin > limit:
            break
    return statistics.median(seconds[0]) / statistics.median(seconds[1])
