"""Parameters as one flat buffer, and a copy of the user's optimizer that updates it at the server.

A rank pickles its optimizer and parameters together, so that the optimizer's copy refers to the
parameters' copies.  Both sides flatten in the optimizer's order: group by group.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterable, Sequence

import torch

from simstrag.errors import InputError

ROW = 4096
"""Numbers whose squares are added up in their own type."""


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of an optimizer, group by group.

    Raises `InputError` where they are not of one floating type.
    """
    parameters = [own for group in optimizer.param_groups for own in group["params"]]
    kinds = sorted({str(own.dtype).removeprefix("torch.") for own in parameters})
    if len(kinds) != 1 or not parameters[0].dtype.is_floating_point:
        raise InputError(
            f"the parameters are of types {', '.join(kinds)}; one buffer holds one floating type: "
            "convert the model to one, for instance by model.float()"
        )
    return parameters


def check_served(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Raise `InputError` for an optimizer with step hooks, which its copy would not run.

    name: the policy's name.
    """
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    if before or after:
        raise InputError(
            f"policy {name} updates parameters at a server, which runs no step hooks, and this "
            f"optimizer has {len(before) + len(after)} of them: remove them, or take a policy "
            "that runs through DDP, such as korel; `simstrag policies` shows which do"
        )


def squared_norm(flat: torch.Tensor) -> torch.Tensor:
    """The sum of squares of a flat tensor, without dimensions, in float64.

    Rows are added up apart: one sum of ten million float32 is 0.07 % too low on a CPU.
    """
    dtype = flat.dtype if flat.element_size() >= 4 else torch.float32
    whole = len(flat) - len(flat) % ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1, dtype=dtype)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=dtype)
    total: torch.Tensor = rows.double().square().sum() + rest.double().square()
    return total


def pack_optimizer(optimizer: torch.optim.Optimizer) -> bytes:
    """Pickle an optimizer and its parameters, moved to the CPU."""
    parameters = trained_parameters(optimizer)
    if any(own.device.type != "cpu" for own in parameters):
        parameters, optimizer = copy.deepcopy((parameters, optimizer))
        for own in parameters:
            own.data, own.grad = own.data.cpu(), None
        for state in optimizer.state.values():
            state.update({k: v.cpu() for k, v in state.items() if isinstance(v, torch.Tensor)})
    buffer = io.BytesIO()
    pickle.dump((parameters, optimizer), buffer)
    return buffer.getvalue()


def pack_settings(optimizer: torch.optim.Optimizer) -> bytes:
    """Pickle the options of the parameter groups; equal bytes mean equal options."""
    groups = optimizer.param_groups
    return pickle.dumps([{k: v for k, v in own.items() if k != "params"} for own in groups])


def flatten_gradients(parameters: Iterable[torch.Tensor], into: torch.Tensor) -> None:
    """Copy all gradients into a flat buffer; a parameter without one counts as zeros."""
    parameters = list(parameters)
    for parameter, part in zip(parameters, split(into, parameters), strict=True):
        if parameter.grad is None:
            part.zero_()
        else:
            part.copy_(parameter.grad)


@torch.no_grad()
def unflatten(flat: torch.Tensor, parameters: Iterable[torch.Tensor]) -> None:
    """Copy a flat buffer into the parameters."""
    parameters = list(parameters)
    for parameter, part in zip(parameters, split(flat, parameters), strict=True):
        parameter.copy_(part)


def split(flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of a flat buffer in the shapes of the parameters."""
    pieces = torch.split(flat, [own.numel() for own in parameters])
    return [piece.view(own.shape) for piece, own in zip(pieces, parameters, strict=True)]
