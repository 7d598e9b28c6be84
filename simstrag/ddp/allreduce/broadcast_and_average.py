"""Synchronize parameters, optimizer state and buffers among the members of a group; a digest.

`broadcast` and `average` are collective, at an update boundary.  Of sharded tensors the members
hold the same part.  `optimizer` is None on all ranks or on none.
`torch.distributed.checkpoint.state_dict` does not serve: it fills the state of an optimizer that
never stepped by a step, which runs step hooks; it leaves out buffers that are not persistent; and
it broadcasts from rank 0 only.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from simstrag.ddp import plain_collectives
from simstrag.ddp.sharded.shard_tensors import local, shard_of
from simstrag.errors import SimstragError

Optimizer = torch.optim.Optimizer | None

StateKey = tuple[int, str]
"""Key of an entry of the optimizer's state: the number of its parameter, and its name."""


TensorSpec = tuple[tuple[int, ...], torch.dtype, str]
"""Size, type and device type of a tensor, so that a rank that lacks it can make one."""


class Outline(NamedTuple):
    """An optimizer without the contents of its tensors, as plain data.

    state: of each entry the specification of its tensor, or else None, and its value.
    options: settings of each parameter group, such as the learning rate.
    steps: step counts, which the correction of moments uses.
    """

    state: dict[StateKey, tuple[TensorSpec | None, Any]]
    options: list[dict[str, Any]]
    steps: dict[StateKey, float]


def broadcast(
    model: nn.Module, optimizer: Optimizer, source: int, group: dist.ProcessGroup | None = None
) -> None:
    """Copy everything from rank `source` of the world, a member of the group, to all members.

    Optimizer options are copied too, and state that the source lacks is removed.
    """
    outline = plain_collectives.broadcast(tuple(_outline(optimizer)), source, group)
    _adopt(optimizer, Outline(*outline))
    by_device: dict[torch.device, list[torch.Tensor]] = defaultdict(list)
    for tensor in _tensors(model, optimizer).values():
        by_device[tensor.device].append(tensor)
    for tensors in by_device.values():
        flat = torch.cat([_bytes(tensor) for tensor in tensors])
        dist.broadcast(flat, src=source, group=group)
        parts = torch.split(flat, [tensor.nbytes for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def average(model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None = None) -> None:
    """Average every floating tensor over the members; all else is copied from the lowest member.

    State that some members lack is averaged over the others: a rank that never stepped has no
    moments, which differs from moments of zero.  Scalars of a parameter with several elements,
    such as step counts, are copied from the lowest member that has them.  Raises `SimstragError`
    where step counts differ.
    """
    members = dist.get_process_group_ranks(group)
    place = members.index(dist.get_rank())
    gathered = plain_collectives.gather(tuple(_outline(optimizer)), group)
    outlines = [Outline(*each) for each in gathered]
    order = sorted(range(len(members)), key=members.__getitem__)
    _check_steps({members[k]: outlines[k].steps for k in order})
    holders: dict[StateKey, list[int]] = defaultdict(list)
    for k in order:
        for key in outlines[k].state:
            holders[key].append(k)
    state = {key: outlines[having[0]].state[key] for key, having in holders.items()}
    _adopt(optimizer, Outline(state, outlines[order[0]].options, {}))

    def weight(mean: bool, having: list[int]) -> float:
        if mean:
            return (place in having) / len(having)
        return float(place == having[0])

    weights = {
        name: weight(tensor.is_floating_point() or tensor.is_complex(), order)
        for name, tensor in _tensors(model, None).items()
    }
    parameters = _parameters(optimizer)
    for key, tensor in _state_tensors(optimizer):
        lone = tensor.ndim == 0 and parameters[key[0]].ndim > 0
        mean = tensor.is_floating_point() and key[1] != "step" and not lone
        weights[_name(key)] = weight(mean, holders[key])
    _weighed_sums(_tensors(model, optimizer), weights, group)


def digest(model: nn.Module, optimizer: Optimizer) -> str:
    """32 hexadecimal digits of all bytes of parameters, buffers and optimizer state.

    >>> model = nn.Linear(2, 1)
    >>> before = digest(model, None)
    >>> with torch.no_grad():
    ...     _ = model.bias.add_(1e-6)
    >>> digest(model, None) == before
    False
    """
    whole = hashlib.blake2b(digest_size=16)
    for name, tensor in _tensors(model, optimizer).items():
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        whole.update(_bytes(tensor).cpu().numpy().data)
    for key, value in _held(optimizer):
        if not isinstance(value, torch.Tensor):
            whole.update(f"{key} {value!r};".encode())
    return whole.hexdigest()


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    groups = [] if optimizer is None else optimizer.param_groups
    return [parameter for group in groups for parameter in group["params"]]


def _held(optimizer: Optimizer) -> Iterator[tuple[StateKey, Any]]:
    """The entries of the state, in the same order on every rank."""
    for number, parameter in enumerate(_parameters(optimizer)):
        assert optimizer is not None
        for name, value in sorted(optimizer.state.get(parameter, {}).items()):
            yield (number, name), value


def _state_tensors(optimizer: Optimizer) -> Iterator[tuple[StateKey, torch.Tensor]]:
    """The tensors of the state; of sharded ones, this rank's part."""
    held = _held(optimizer)
    return ((key, local(value)) for key, value in held if isinstance(value, torch.Tensor))


def _tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Every tensor to synchronize, detached, by name; of sharded ones, this rank's part."""
    tensors: dict[str, torch.Tensor] = {}
    tensors |= {f"parameter {name}": parameter for name, parameter in model.named_parameters()}
    tensors |= {f"buffer {name}": buffer for name, buffer in model.named_buffers()}
    tensors |= {_name(key): tensor for key, tensor in _state_tensors(optimizer)}
    return {name: local(tensor) for name, tensor in tensors.items()}


def _name(key: StateKey) -> str:
    return f"{key[1]} of parameter {key[0]}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _specification(value: Any) -> TensorSpec | None:
    if not isinstance(value, torch.Tensor):
        return None
    return tuple(value.shape), value.dtype, value.device.type


def _outline(optimizer: Optimizer) -> Outline:
    state = {
        key: (_specification(value), None if isinstance(value, torch.Tensor) else value)
        for key, value in _held(optimizer)
    }
    groups = [] if optimizer is None else optimizer.param_groups
    options = [{name: group[name] for name in group if name != "params"} for group in groups]
    steps = {key: float(value) for key, value in _held(optimizer) if key[1] == "step"}
    return Outline(state, options, steps)


def _adopt(optimizer: Optimizer, outline: Outline) -> None:
    """Give an optimizer the state of an outline; tensors that it lacks become zeros."""
    if optimizer is None:
        return
    parameters, before = _parameters(optimizer), dict(_held(optimizer))
    optimizer.state.clear()
    for (number, name), (spec, value) in outline.state.items():
        parameter, own = parameters[number], before.get((number, name))
        held = value
        if spec is not None:
            size, dtype, kind = spec
            fits = isinstance(own, torch.Tensor) and (tuple(own.shape), own.dtype) == spec[:2]
            device = parameter.device if kind == parameter.device.type else kind
            new = torch.zeros(size, dtype=dtype, device=device)
            held = own if fits else shard_of(new, parameter) if size == parameter.shape else new
        optimizer.state[parameter][name] = held
    for group, options in zip(optimizer.param_groups, outline.options, strict=True):
        for name, value in options.items():
            if isinstance(group.get(name), torch.Tensor):
                group[name].copy_(value)
            else:
                group[name] = value


def _check_steps(steps: dict[int, dict[StateKey, float]]) -> None:
    """Raise `SimstragError` where step counts differ; steps: by member, then by entry."""
    for key in sorted({key for own in steps.values() for key in own}):
        counts = {rank: own[key] for rank, own in steps.items() if key in own}
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"rank {rank} {count:g}" for rank, count in counts.items())
            raise SimstragError(
                f"the optimizers' steps of parameter {key[0]} differ ({shown}): their moments have "
                "no mean; average only after equally many steps, or broadcast one rank's"
            )


def _weighed_sums(
    tensors: dict[str, torch.Tensor], weights: dict[str, float], group: dist.ProcessGroup | None
) -> None:
    """Replace each tensor by the sum of weight x tensor over the members, with 0 x NaN = 0.

    There is one collective for each device and type: whole numbers are summed as int64, floating
    ones in float32 at least.
    """
    kinds = defaultdict[tuple[torch.device, torch.dtype], list[str]](list)
    reals: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        reals[name] = real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        dtype = torch.float64 if real.dtype == torch.float64 else torch.float32
        kinds[tensor.device, dtype if real.is_floating_point() else torch.int64].append(name)
    for (device, dtype), names in kinds.items():
        flat = torch.cat(
            [_weighed(reals[name].to(dtype), weights[name]).reshape(-1) for name in names]
        ).to(device)
        dist.all_reduce(flat, group=group)
        parts = torch.split(flat, [reals[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            reals[name].copy_(part.view(reals[name].shape))


def _weighed(tensor: torch.Tensor, weight: float) -> torch.Tensor:
    if weight == 1:
        return tensor
    return torch.zeros_like(tensor) if weight == 0 else tensor * weight
