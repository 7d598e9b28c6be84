"""Gradients that a server takes itself, by which it tests those of the ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch

from simstrag import workloads
from simstrag.ddp.flat_parameters import flatten_gradients, split
from simstrag.errors import InputError

SEED = 1 << 32
"""Seed of the server's batches, to which the version is added; ranks have smaller ones."""


class ValidationSpec(NamedTuple):
    """The source of a server's own gradients.

    workload: its name, or `module:function`; its model is that of the job.
    names: of the trained parameters, in the optimizer's order.
    """

    workload: str
    names: tuple[str, ...]


class ValidationGradient:
    """Gradients of the mean loss over batches of a workload.

    flat: the present parameters, which the workload's model shares.
    version: of these; a training that goes on draws other batches.

    Raises `InputError` where the workload cannot be built here, or is of another model.
    """

    def __init__(self, validation: ValidationSpec, flat: torch.Tensor, version: int) -> None:
        self._parts = workloads.load(validation.workload).build(SEED + version)
        model = self._parts.model.to(flat.dtype).train()
        named = dict(model.named_parameters())
        own = [named.get(name) for name in validation.names]
        self._parameters = [each for each in own if each is not None]
        sizes = sum(each.numel() for each in self._parameters)
        if len(self._parameters) < len(own) or sizes != len(flat):
            raise InputError(
                f"validation '{validation.workload}' builds another model than the ranks train, "
                f"{sizes} of {len(flat)} parameters by their names: give the workload of this model"
            )
        for each, values in zip(self._parameters, split(flat, self._parameters), strict=True):
            each.data = values

    def __call__(self, samples: int) -> torch.Tensor:
        """The gradient over a fresh batch of so many samples, flat, at the present parameters."""
        dtype = self._parameters[0].dtype
        batch = workloads.map_tensors(
            self._parts.make_batch(samples),
            lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor,
        )
        with torch.enable_grad():
            loss = self._parts.loss(self._parts.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        gradient = torch.empty(sum(each.numel() for each in self._parameters), dtype=dtype)
        flatten_gradients(self._parameters, gradient)
        self._parts.model.zero_grad()
        return gradient
