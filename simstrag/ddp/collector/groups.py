"""The groups of a job: which ranks wait for each other, by the dimension of its mesh.

A label such as `shard:2` names one group: the dimension, and the lowest of its ranks.  All ranks of
a group have the same label, so that files of ranks tell who waited for whom.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from simstrag.ddp.collector.hooks import is_megatron
from simstrag.documents.job_mesh import JobMesh
from simstrag.errors import InputError


def wrapper_of(model: nn.Module, mesh: DeviceMesh | None = None) -> str:
    """The name of the wrapper that a model has; raises `InputError` for one without any.

    mesh: of the job; with one, a model may be a bare stage of a pipeline.
    """
    if isinstance(model, DistributedDataParallel):
        return "DistributedDataParallel"
    if isinstance(model, FSDPModule):
        return "fully_shard"
    if is_megatron(model):
        if has_one_group(model):
            return "megatron"
        raise InputError(
            "record() takes Megatron's model with data parallelism alone; for others, give "
            "simstrag diagnose the log of --timing-log-level 2"
        )
    if any(isinstance(each, DTensor) for each in model.parameters()):
        return "parallelize_module"
    if mesh is not None:
        return "none"
    raise InputError(
        "record() takes a model in DistributedDataParallel, fully_shard() or parallelize_module(), "
        "a stage of a pipeline with mesh=, but not a bare "
        f"{type(model).__name__}; call it after wrapping"
    )


def has_one_group(model: nn.Module) -> bool:
    """Whether one process group of all ranks does all that DDP or FSDP2 sends for a model."""
    world = dist.get_world_size()
    if isinstance(model, DistributedDataParallel):
        sharded = meshes_of(model.module)
        return not sharded and dist.get_world_size(model.process_group) == world
    if is_megatron(model):
        return dist.get_world_size(model.dp_cp_group) == world  # type: ignore[arg-type]
    shapes = [mesh.shape for mesh in meshes_of(model)]
    return isinstance(model, FSDPModule) and all(
        math.prod(shape) == world == max(shape) for shape in shapes
    )


def meshes_of(model: nn.Module) -> list[DeviceMesh]:
    """The meshes of a model's parameters, each once."""
    meshes = (each.device_mesh for each in model.parameters() if isinstance(each, DTensor))
    return list({id(mesh): mesh for mesh in meshes}.values())


def describe_mesh(meshes: Iterable[DeviceMesh]) -> JobMesh | None:
    """The whole mesh of a job, from meshes that may be parts of it; None without any."""
    whole = [mesh._get_root_mesh() for mesh in meshes]
    if not whole:
        return None
    largest = max(whole, key=lambda mesh: (mesh.size(), mesh.ndim))
    names = tuple(_dimension(largest, dim) for dim in range(largest.ndim))
    return JobMesh(names, tuple(largest.shape), tuple(largest.mesh.flatten().tolist()))


class GroupLabels:
    """The labels of process groups that are a dimension of a mesh, or were given a name."""

    def __init__(self, meshes: Iterable[DeviceMesh]) -> None:
        self._by_name: dict[str, str] = {}
        self._by_id: dict[Any, str] = {}
        self._kept: list[Any] = []  # what has a place in `_by_id` keeps its id
        for mesh in meshes:
            for dim in range(mesh.ndim):
                self.add(mesh.get_group(dim), _dimension(mesh, dim))

    def add(self, group: dist.ProcessGroup, name: str) -> str:
        """Give a group a name, unless it has one; its label, "" for a group of one rank."""
        ranks = dist.get_process_group_ranks(group)
        label = f"{name}:{min(ranks)}" if len(ranks) > 1 else ""
        return self._by_name.setdefault(group.group_name, label)

    def of(self, group: Any) -> str:
        """The label of a group as functions of torch take one; "" of one that is not known."""
        key = (id(group[0]), group[1]) if type(group) is tuple else id(group)
        label = self._by_id.get(key)
        if label is None:
            self._kept.append(group)
            label = self._by_id[key] = self._find(group)
        return label

    def _find(self, group: Any) -> str:
        if isinstance(group, DeviceMesh):
            group = (group, 0)
        if isinstance(group, tuple):
            mesh, dim = group
            return self.add(mesh.get_group(dim), _dimension(mesh, dim))
        try:
            name = group if isinstance(group, str) else getattr(group, "group_name", "")
        except RuntimeError:  # one that torch has given no name
            return ""
        return self._by_name.get(name, "")


def _dimension(mesh: DeviceMesh, dim: int) -> str:
    """The name of a dimension, without what separates columns."""
    names = mesh.mesh_dim_names
    return re.sub(r"[^\w.+-]", "_", names[dim]) if names else f"dim{dim}"
