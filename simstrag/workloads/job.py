"""A workload being trained: one gradient and one update at a time, on one device."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from simstrag.workloads.precision import parameter_dtype, reduced_loss, tensor_cores
from simstrag.workloads.workload import mapped

if TYPE_CHECKING:
    import torch

    from simstrag.workloads.workload import Batch, Parts

__all__ = ["Job"]


class Job:
    """Parts of a workload on a device in one precision.

    A *step* is `gradient`: forward and backward on one worker, ending in one gradient.  `update`
    is no part of it: in data-parallel training it follows the communication, on whoever applies
    it.  Jobs may share parts whose parameters have the same number format: the model is moved and
    cast when a job is made, which changes nothing where that is done already.

    >>> from simstrag.workloads import load
    >>> job = Job(load("mlp").build(), precision="bf16")
    >>> loss = job.gradient(job.batch(4))
    >>> job.update()
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
        """How many numbers one gradient has."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def batch(self, samples: int) -> Batch:
        """A batch where the model is, floating inputs in the parameters' number format."""
        return self.moved(self.parts.make_batch(samples))

    def moved(self, batch: Batch) -> Batch:
        """The same batch where the model is, as `batch` gives it."""

        def placed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

        return mapped(batch, placed)

    def gradient(self, batch: Batch) -> torch.Tensor:
        """Forward and backward, added to the gradients; the loss, still on the device.

        Launched without waiting: on a GPU it may come back before anything is computed.  With
        fp16 gradients are scaled until `update`.
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
        """Apply the gradient and clear it.

        With fp16 the scaler looks for infinities first, and waits for the device to say so.
        """
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.unscale_(self.optimizer)
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
