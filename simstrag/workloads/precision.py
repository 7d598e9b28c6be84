"""The number formats that a step is computed in, and what each asks of torch.

"fp32" is strict: on a GPU the tensor cores' TF32 is off, which torch leaves on for convolutions.
"tf32" has it on for matrix products too.  "fp16" and "bf16" are autocast.  "fp64" and
"fp32_of_fp64" are a stand-in for a CPU without a fast 16-bit format: parameters are float64, and
the second computes in float32, casts of the parameters included; it is a real reduced precision
with a real gain (about 2 by the width of vector registers), and no number format of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from simstrag.workloads.workload import Batch

__all__ = ["PRECISIONS", "parameter_dtype", "precisions", "reduced_loss", "tensor_cores"]

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64", "fp32_of_fp64")


def precisions(device: str) -> tuple[str, ...]:
    """Those that can be measured on "cpu" or on a CUDA device of this machine, as torch tells.

    >>> precisions("cpu")
    ('fp32', 'bf16', 'fp64', 'fp32_of_fp64')
    """
    if device == "cpu":
        return ("fp32", "bf16", "fp64", "fp32_of_fp64")
    import torch

    tensor_cores = torch.cuda.get_device_capability(device) >= (8, 0)
    return ("fp32", "tf32", "fp16", "bf16") if tensor_cores else ("fp32", "fp16")


def parameter_dtype(precision: str) -> torch.dtype:
    """Of the parameters, in which the optimizer computes and gradients come back."""
    import torch

    return torch.float64 if precision in ("fp64", "fp32_of_fp64") else torch.float32


@contextmanager
def tensor_cores(allowed: bool) -> Iterator[None]:
    """TF32 for every float32 product and convolution, or for none; as it was afterwards.

    Through `fp32_precision` where torch has it (2.9): reading the older `allow_tf32` after it was
    set raises, and the other way round warns.
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
    """The loss computed in float32 on float64 parameters, whose gradients come back as float64.

    Floating buffers are cast too, and what a step makes of them (running means) is kept.
    """
    import torch
    from torch import nn

    from simstrag.workloads.workload import mapped

    class Whole(nn.Module):
        """Model and loss in one, so that whatever the loss asks of the model is cast."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Batch) -> torch.Tensor:
            return loss(self.model, batch)

    whole = Whole()

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    def computed(batch: Batch) -> torch.Tensor:
        buffers = {name: b for name, b in whole.named_buffers() if b.is_floating_point()}
        reduced = {name: cast(b) for name, b in buffers.items()}
        values = {name: cast(p) for name, p in whole.named_parameters()} | reduced
        out: torch.Tensor = torch.func.functional_call(whole, values, (mapped(batch, cast),))
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(reduced[name])
        return out

    return computed
