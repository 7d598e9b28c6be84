"""Parameters as one flat buffer, and a copy of the user's optimizer that updates it at the server.

A rank sends its optimizer and parameters together, so that the optimizer's copy refers to the
parameters' copies: as plain data, and the name of the optimizer's class, which is imported at the
server.  Both sides flatten in the optimizer's order: group by group.
"""

from __future__ import annotations

import copy
import copyreg
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch

from simstrag.ddp.plain_data import dump, load
from simstrag.errors import InputError

Settings = list[dict[str, Any]]
"""The options of each parameter group, such as the learning rate."""


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


def pack_optimizer(optimizer: torch.optim.Optimizer, **more: Mapping[str, Any] | None) -> bytes:
    """An optimizer, its parameters, and more plain data for its server, on the CPU.

    Raises `InputError` for an optimizer that says itself how it is rebuilt.
    """
    parameters = trained_parameters(optimizer)
    if any(own.device.type != "cpu" for own in parameters):
        parameters, optimizer = copy.deepcopy((parameters, optimizer))
        for own in parameters:
            own.data, own.grad = own.data.cpu(), None
        for state in optimizer.state.values():
            state.update({k: v.cpu() for k, v in state.items() if isinstance(v, torch.Tensor)})
    kind, rebuilt = type(optimizer), optimizer.__reduce_ex__(2)
    if rebuilt[:2] != (copyreg.__newobj__, (kind,)):  # type: ignore[attr-defined]
        raise InputError(
            f"the optimizer {kind.__qualname__} says by __reduce__ how it is rebuilt, which a "
            "server does not follow: let it say its state by __getstate__ instead"
        )
    return dump({
        "class": (kind.__module__, kind.__qualname__), "state": rebuilt[2],
        "parameters": parameters, **more,
    })  # fmt: skip


def unpack_optimizer(
    packed: bytes,
) -> tuple[list[torch.Tensor], torch.optim.Optimizer, dict[str, Any]]:
    """The parameters, the optimizer of them, and the rest of what `pack_optimizer` was given.

    Raises `InputError` where the class cannot be imported here, or the state is no plain data.
    """
    content = load(packed, "the optimizer")
    (module, name), state = content.pop("class"), content.pop("state")
    try:
        kind = attrgetter(name)(import_module(module))
    except (AttributeError, ImportError) as error:
        raise InputError(
            f"the optimizer cannot be built at the server: {error}; its class must stand in a "
            "module that can be imported, not in the script itself"
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise InputError(f"the optimizer cannot be built: {module}.{name} is no torch.optim class")
    optimizer = kind.__new__(kind)
    optimizer.__setstate__({**state, "state": defaultdict(dict, state["state"])})
    return content.pop("parameters"), optimizer, content


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """The options of the parameter groups."""
    groups = optimizer.param_groups
    return [{k: v for k, v in own.items() if k != "params"} for own in groups]


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
