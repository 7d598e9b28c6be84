"""A workload whose model FSDP2 shards over the ranks of replicas."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.fsdp import fully_shard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from simstrag.workloads.workload import Parts


def shard_parts(parts: Parts, mesh: DeviceMesh) -> Parts:
    """The parts with a sharded model, in one group of parameters, and its optimizer; collective.

    mesh: the ranks of this replica.
    """
    model, optimizer = parts.model, parts.optimizer
    names = {id(each): name for name, each in model.named_parameters()}
    order = [[names[id(each)] for each in group["params"]] for group in optimizer.param_groups]
    fully_shard(model, mesh=mesh)
    sharded: dict[str, nn.Parameter] = dict(model.named_parameters())
    groups = [
        {**group, "params": [sharded[name] for name in own]}
        for group, own in zip(optimizer.param_groups, order, strict=True)
    ]
    state = {**optimizer.__getstate__(), "state": defaultdict(dict), "param_groups": groups}
    new = type(optimizer).__new__(type(optimizer))
    new.__setstate__(state)
    return parts._replace(optimizer=new)
