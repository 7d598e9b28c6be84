"""Collectives of plain data among ranks; torch's own of objects unpickle what arrives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_object_coll_device

from simstrag.ddp.plain_data import dump, load

WHAT = "what another rank sends"


def gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all members, in the group's order; collective."""
    content = _tensor(dump(value), torch.device(_get_object_coll_device(group)))
    size = torch.tensor([len(content)], device=content.device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    padded = content.new_zeros(max(int(each) for each in sizes))
    padded[: len(content)] = content
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [_value(part[: int(each)]) for part, each in zip(parts, sizes, strict=True)]


def broadcast(
    value: Any,
    source: int = 0,
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
) -> Any:
    """The value of rank `source` of the world, a member of the group; collective.

    device: of the tensors that travel; default: where torch puts objects of this group.
    """
    leads = dist.get_rank() == source
    place = device or torch.device(_get_object_coll_device(group))
    content = _tensor(dump(value), place) if leads else torch.zeros(0, dtype=torch.uint8)
    size = torch.tensor([len(content)], device=place)
    dist.broadcast(size, src=source, group=group)
    content = content if leads else torch.zeros(int(size), dtype=torch.uint8, device=place)
    dist.broadcast(content, src=source, group=group)
    return value if leads else _value(content)


def _tensor(content: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)


def _value(content: torch.Tensor) -> Any:
    return load(content.cpu().numpy().tobytes(), WHAT)
