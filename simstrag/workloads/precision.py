"""The precisions of a step, and the torch settings of each.

fp32: strict; on a GPU TF32 is off, which torch leaves on for convolutions by default.
tf32: TF32 for convolutions and matrix products.
fp16, bf16: autocast.
fp64, fp32_of_fp64: a stand-in for a CPU without a fast 16-bit format. Parameters are float64; the
    second casts them and computes in float32, about twice as fast because vector registers hold
    twice as many numbers. It is a measured reduced precision, and not a number format of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from simstrag.workloads.workload import Batch

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64", "fp32_of_fp64")


def available_precisions(device: str) -> tuple[str, ...]:
    """The precisions that "cpu", or a CUDA device of this machine, supports.

    >>> available_precisions("cpu")
    ('fp32', 'bf16', 'fp64', 'fp32_of_fp64')
    """
    if device == "cpu":
        return ("fp32", "bf16", "fp64", "fp32_of_fp64")
    import torch

    tensor_cores = torch.cuda.get_device_capability(device) >= (8, 0)
    return ("fp32", "tf32", "fp16", "bf16") if tensor_cores else ("fp32", "fp16")


def parameter_dtype(precision: str) -> torch.dtype:
    """The number format of parameters, gradients and the optimizer's arithmetic."""
    import torch

    return torch.float64 if precision in ("fp64", "fp32_of_fp64") else torch.float32


@contextmanager
def tensor_cores(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in products and convolutions of float32; restore the setting at exit.

    Sets `fp32_precision` where torch has it (2.9), because torch raises or warns where a program
    uses both that and the older `allow_tf32`.
    """
    from torch import backends

    if hasattr(backends.cudnn, "conv"):
        switches = [
            (backends.cuda.matmul, "fp32_precision"),
            (backends.cudnn.conv, "fp32_precision"),
            (backends.cudnn.rnn, "fp32_precision"),
        ]
        value: Any = "tf32" if allowed else "ieee"
    else:
        switches = [(backends.cuda.matmul, "allow_tf32"), (backends.cudnn, "allow_tf32")]
        value = allowed
    before = [getattr(owner, name) for owner, name in switches]
    try:
        for owner, name in switches:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), was in zip(switches, before, strict=True):
            setattr(owner, name, was)


def reduced_loss(
    model: nn.Module, loss: Callable[[nn.Module, Batch], torch.Tensor]
) -> Callable[[Batch], torch.Tensor]:
    """A loss that computes in float32 on float64 parameters; its gradients are float64.

    Floating buffers are cast too, and their new values (running means) are written back.
    """
    import torch
    from torch import nn

    from simstrag.workloads.workload import map_tensors

    class ModelWithLoss(nn.Module):
        """Model and loss in one module, so that every use of the model in the loss is cast."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Batch) -> torch.Tensor:
            return loss(self.model, batch)

    module = ModelWithLoss()

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    def compute(batch: Batch) -> torch.Tensor:
        buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
        reduced = {name: cast(b) for name, b in buffers.items()}
        values = {name: cast(p) for name, p in module.named_parameters()} | reduced
        out: torch.Tensor = torch.func.functional_call(module, values, (map_tensors(batch, cast),))
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(reduced[name])
        return out

    return compute
