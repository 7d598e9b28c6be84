"""The replicas of a training: the workers of its policy, of one rank or of several each."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from simstrag.ddp import plain_collectives
from simstrag.ddp.allreduce.control_message import ControlMessages
from simstrag.ddp.allreduce.hook import create_group
from simstrag.ddp.failures.abort_collectives import Connections
from simstrag.ddp.job_store import START
from simstrag.ddp.sharded.replica_ranks import ReplicaRanks
from simstrag.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from simstrag.ddp.failures.rank_failure import Membership

PATIENCE = timedelta(days=30)
"""Timeout of the leader's next command."""

REMEDY = 'shard it within its replica only: fully_shard(model, mesh=mesh["shard"])'


class ReplicaWorld:
    """This rank's place among the replicas of the present generation of the group.

    layout: None where a replica is one rank; the world then shrinks as ranks are lost.
    across: the group of the ranks with this one's shard; None is all ranks.
    within: the group of this replica for plain data; None where it is one rank.
    """

    def __init__(
        self,
        members: Membership,
        layout: ReplicaRanks | None = None,
        across: dist.ProcessGroup | None = None,
        within: dist.ProcessGroup | None = None,
    ) -> None:
        self._members, self.layout = members, layout
        self.across, self.within = across, within
        self.shards = 1 if layout is None else layout.shards
        self._place = None if layout is None else layout.place(members.rank)

    @property
    def rank(self) -> int:
        """The number of this rank's replica, which is its rank to the policy."""
        return self._members.rank if self._place is None else self._place[0]

    @property
    def shard(self) -> int:
        """This rank's shard of the replica's model."""
        return 0 if self._place is None else self._place[1]

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its replica."""
        return self.shard == 0

    @property
    def world_size(self) -> int:
        """The number of replicas, which is that of the policy's workers."""
        return self._members.world_size if self.layout is None else len(self.layout.ranks)

    @property
    def leaders(self) -> tuple[int, ...] | None:
        """The ranks that speak for the replicas; None where replicas are ranks."""
        return None if self.layout is None else self.layout.across(0)

    def peer(self, replica: int) -> int:
        """The rank of another replica with this one's shard."""
        return replica if self.layout is None else self.layout.across(self.shard)[replica]

    def leader(self) -> int:
        """The rank that speaks for this replica."""
        return self._members.rank if self.layout is None else self.layout.ranks[self.rank][0]

    @property
    def worker(self) -> str:
        """The unit that a policy calls a worker: "rank" or "replica"."""
        return "rank" if self.layout is None else "replica"

    @property
    def names(self) -> tuple[int, ...]:
        """The replicas' numbers as users know them."""
        joined = self._members.joined
        here = joined is not None and self.layout is None
        return joined.names if here and joined else tuple(range(self.world_size))

    def part(self, samples: int) -> int:
        """This rank's part of a replica's samples; parts differ by one at most.

        A rank computes one sample where there is none for it, as FSDP2 needs all ranks.
        """
        return max(1, self._own(samples)) if samples else samples

    def _own(self, samples: int) -> int:
        return samples // self.shards + (self.shard < samples % self.shards)

    def share(self, samples: int) -> float:
        """The weight of this rank's mean in that of its replica, times the ranks: 1 if even."""
        return self._own(samples) * self.shards / samples if samples else 1.0

    def fold(self, messages: ControlMessages) -> ControlMessages:
        """The messages of all ranks, one for each replica.

        A replica is as slow as the slowest of its ranks; squared norms of shards add up.
        """
        if self.layout is None:
            return messages
        ranks = np.array(self.layout.ranks)
        first = ranks[:, 0]
        return ControlMessages(
            messages.start[first], messages.seconds[ranks].max(axis=1), messages.digest[first],
            messages.version[first], messages.flags[first],
            messages.squared_norm[ranks].sum(axis=1), messages.squared_sum[ranks].sum(axis=1),
        )  # fmt: skip


def shard_mesh(model: nn.Module) -> DeviceMesh | None:
    """The mesh over which a model is sharded; None where it is not.

    Raises `InputError` for a model on more than the mesh of its replica.
    """
    named = list(model.named_parameters())
    sharded = [each for _, each in named if isinstance(each, DTensor)]
    if not sharded:
        return None
    meshes = {each.device_mesh for each in sharded}
    whole = [name for name, each in named if not isinstance(each, DTensor)]
    if whole:
        raise InputError(
            f"parameter {whole[0]} is not sharded, and others are: fully_shard the whole model too"
        )
    if any(each.is_replicate() for own in sharded for each in own.placements):
        raise InputError(
            "the model is on the mesh of all replicas, so FSDP2 would reduce between them itself; "
            + REMEDY
        )
    if len(meshes) > 1 or next(iter(meshes)).ndim > 1:
        raise InputError(
            "the model is sharded over several dimensions of its mesh, such as tensor parallel; "
            "wrap() takes replicas that FSDP2 shards over one"
        )
    return next(iter(meshes))


def find_layout(mesh: DeviceMesh) -> ReplicaRanks:
    """The ranks of all replicas; collective.

    Raises `InputError` where there is one replica only, or they differ in size.
    """
    own = tuple(dist.get_process_group_ranks(mesh.get_group()))
    found = tuple(sorted({tuple(each) for each in plain_collectives.gather(own)}))
    if len(found) == 1:
        raise InputError(
            f"the model is sharded over all {len(own)} ranks, which is one replica; {REMEDY}, "
            'with mesh = init_device_mesh(device, (replicas, shards), mesh_dim_names=("replicate", '
            '"shard"))'
        )
    covered = sorted(rank for each in found for rank in each)
    if len({len(each) for each in found}) > 1 or covered != list(range(dist.get_world_size())):
        raise InputError(f"the replicas are the ranks {found}; all ranks must form equal ones")
    return ReplicaRanks(found)


def join_replicas(mesh: DeviceMesh, members: Membership) -> ReplicaWorld:
    """This rank's place among replicas that are sharded over `mesh`, and their groups; collective.

    Waiting for the leader's commands has no timeout: a replica may be as slow as it likes.
    """
    members.layout = layout = find_layout(mesh)
    replica, shard = layout.place(members.rank)
    connections = Connections() if members.joined is None else members.joined.connections
    limit = timedelta(seconds=max(members.stall_limit, START))
    over_gloo = mesh.device_type == "cpu" or "nccl" not in dist.get_backend_config()
    groups = []
    with connections.capture():
        for purpose, ranks, gloo, seconds in (
            ("replicas", layout.across(shard), over_gloo, limit),
            ("replica", layout.ranks[replica], True, PATIENCE),
        ):
            groups.append(create_group(purpose, ranks, gloo, seconds))
    return ReplicaWorld(members, layout, *groups)
