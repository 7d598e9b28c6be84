"""Tensors that FSDP2 shards over a replica, and the whole ones that its leader has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

if TYPE_CHECKING:
    from simstrag.ddp.sharded.world import ReplicaWorld


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, in the same memory; all of it where it is not sharded."""
    own = tensor.detach()
    return own.to_local() if isinstance(own, DTensor) else own


def shard_of(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A new tensor, sharded as `like` is, of whose shape `whole` has all numbers."""
    new = torch.zeros_like(like.detach(), dtype=whole.dtype)
    if not isinstance(new, DTensor):
        return new.copy_(whole)
    own = new.to_local()
    parts = torch.chunk(whole.view(like.shape), new.device_mesh.size(), _dimension(like))
    place = new.device_mesh.get_local_rank()
    if place < len(parts):
        own.copy_(parts[place])
    return new


def gather(tensors: Sequence[torch.Tensor], world: ReplicaWorld) -> torch.Tensor:
    """All numbers of sharded tensors, one after the other, on the leader; collective in a replica.

    On the other ranks it is empty.  It is on the CPU.
    """
    own = torch.cat([local(each).reshape(-1) for each in tensors]).cpu()
    layouts = [_shapes(each, world.shards) for each in tensors]
    longest = max(sum(shapes[k].numel() for shapes in layouts) for k in range(world.shards))
    sent = torch.zeros(longest, dtype=own.dtype)
    sent[: len(own)] = own
    parts = [torch.zeros_like(sent) for _ in range(world.shards)] if world.leads else None
    dist.gather(sent, parts, dst=world.leader(), group=world.within)
    if parts is None:
        return torch.zeros(0, dtype=own.dtype)
    starts, whole = [0] * world.shards, list[torch.Tensor]()
    for tensor, shapes in zip(tensors, layouts, strict=True):
        pieces = []
        for k, shape in enumerate(shapes):
            pieces.append(parts[k][starts[k] : starts[k] + shape.numel()].view(shape))
            starts[k] += shape.numel()
        whole.append(torch.cat(pieces, _dimension(tensor)).reshape(-1))
    return torch.cat(whole)


def scatter(
    flat: torch.Tensor | None, tensors: Sequence[torch.Tensor], world: ReplicaWorld
) -> list[torch.Tensor]:
    """This rank's parts of what the leader has, as `gather` made it; collective in a replica.

    tensors: give the shapes.
    """
    layouts = [_shapes(each, world.shards) for each in tensors]
    lengths = [sum(shapes[k].numel() for shapes in layouts) for k in range(world.shards)]
    received, sent = torch.zeros(max(lengths), dtype=tensors[0].dtype), None
    if flat is not None:
        sent = [torch.zeros_like(received) for _ in range(world.shards)]
        starts = [0] * world.shards
        wholes = torch.split(flat, [each.numel() for each in tensors])
        for tensor, shapes, whole in zip(tensors, layouts, wholes, strict=True):
            dimension, done = _dimension(tensor), 0
            for k, shape in enumerate(shapes):
                piece = whole.view(tensor.shape).narrow(dimension, done, shape[dimension])
                sent[k][starts[k] : starts[k] + shape.numel()] = piece.reshape(-1)
                starts[k], done = starts[k] + shape.numel(), done + shape[dimension]
    dist.scatter(received, sent, src=world.leader(), group=world.within)
    own = [shapes[world.shard] for shapes in layouts]
    parts = torch.split(received[: lengths[world.shard]], [shape.numel() for shape in own])
    return [part.view(shape) for part, shape in zip(parts, own, strict=True)]


def _dimension(tensor: torch.Tensor) -> int:
    """The dimension over which a tensor is sharded."""
    assert isinstance(tensor, DTensor)
    (placement,) = tensor.placements
    assert isinstance(placement, Shard)
    return placement.dim


def _shapes(tensor: torch.Tensor, shards: int) -> list[torch.Size]:
    """The shapes of its parts, as `torch.chunk` cuts; the last ones may be empty."""
    dimension, size = _dimension(tensor), list(tensor.shape)
    each, shapes = -(-size[dimension] // shards), list[torch.Size]()
    for k in range(shards):
        own = max(0, min(each, tensor.shape[dimension] - k * each))
        shapes.append(torch.Size([*size[:dimension], own, *size[dimension + 1 :]]))
    return shapes
