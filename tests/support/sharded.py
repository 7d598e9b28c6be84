"""Trainings of small tasks on replicas of several ranks, which shard their model by FSDP2."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from simstrag.learning import tasks
from tests.support.recorded_order import BATCH, MOMENTUM, RATE, batches

SHARDS = 2


def shard(
    model: nn.Module, world: int, shards: int = SHARDS, whole: bool = False, **options: Any
) -> nn.Module:
    """A model sharded within its replica; with `whole` over the mesh of all replicas."""
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=names)
    own = mesh if whole else mesh["shard"]
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer is not model:
            fully_shard(layer, mesh=own, **options)
    fully_shard(model, mesh=own, **options)
    return model


def whole(sharded: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """All numbers of sharded tensors, flat; the ranks of a replica call it together."""
    found = []
    for each in sharded:
        assert isinstance(each, DTensor)
        group = each.device_mesh.get_group(each.device_mesh.ndim - 1)
        parts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, each.detach().to_local(), group=group)
        found.append(torch.cat(parts).reshape(-1))
    return torch.cat(found)


def train(
    rank: int,
    world: int,
    policy: Any,
    out: str | None,
    steps: int = 12,
    pause: float = 0.0,
    act: Callable[[Any, int], None] | None = None,
    fetch: bool = False,
    **options: Any,
) -> list[float]:
    """The parameters of this rank's replica at the end, in fp64.

    pause: seconds that a step takes longer with each replica.
    act: is called with the trainer and the number of the step before each.
    fetch: of the server instead, on the leader of a replica.
    """
    from simstrag.ddp import wrap

    replicas, (replica, place) = world // SHARDS, divmod(rank, SHARDS)
    task, drawn, step = tasks.load("tabular"), batches(replicas), 0
    model = shard(task.model.double(), world)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)

    def loss() -> torch.Tensor:
        time.sleep(pause * replica)
        size = trainer._replica_batch
        rows = torch.from_numpy(drawn.of([replica], [step], [size]))[place::SHARDS]
        assert len(rows) == trainer.next_batch
        return task.loss(model(task.inputs[rows].double()), task.targets[rows].double()).mean()

    options = {"precision": "stand-in", "samples": BATCH * replicas * steps} | options
    with wrap(model, optimizer, policy, batch=BATCH, out=out, **options) as trainer:
        while not trainer.over:
            if act is not None:
                act(trainer, step)
            trainer.step(loss)
            step += 1
        state = trainer.state_dict() if fetch else {}
    if fetch:
        flat = [each.reshape(-1) for each in state["model"].values()] if state else []
        return list(torch.cat(flat).tolist()) if flat else []
    return list(whole(model.parameters()).tolist())
