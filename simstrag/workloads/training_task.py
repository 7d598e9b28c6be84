"""A workload in training: one gradient and one update at a time, on one device."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from simstrag.workloads.precision import parameter_dtype, reduced_loss, tensor_cores
from simstrag.workloads.workload import map_tensors

if TYPE_CHECKING:
    import torch

    from simstrag.workloads.workload import Batch, Parts


class TrainingTask:
    """The parts of a workload, on one device and in one precision.

    A *step* is `gradient`: forward and backward on one worker, which result in one gradient.
    `update` is not part of a step: in data-parallel training it follows the communication.
    Two tasks may share parts if the number format of their parameters is the same.

    parts: moved to the device and cast in place.
    precision: one of `PRECISIONS`.
    device: a torch device.

    >>> from simstrag.workloads import load
    >>> task = TrainingTask(load("mlp").build(), precision="bf16")
    >>> loss = task.gradient(task.batch(4))
    >>> task.update()
    """

    def __init__(self, parts: Parts, precision: str = "fp32", device: str = "cpu") -> None:
        import torch

        self.precision = precision
        self.device = torch.device(device)
        self.dtype = parameter_dtype(precision)
        self.parts = parts
        self.model = parts.model.to(self.device, self.dtype).train()
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
