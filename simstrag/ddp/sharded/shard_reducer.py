"""FSDP2's all-reduce hook: weigh a replica's gradients, and sum them with those of the others.

FSDP2 calls it with what its reduce-scatter made of each group of parameters: this rank's shard of
the mean over the replica.  Ranks with the same shard reduce it among themselves.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from simstrag.ddp.allreduce.hook import Reducer
from simstrag.ddp.local_step_timer import StepTimer
from simstrag.ddp.sharded.world import ReplicaWorld

UNDIVIDED = torch.float32, torch.bfloat16
"""Types in which FSDP2 divides within the reduce-scatter; in others partly behind the hook."""


class ShardReducer(Reducer):
    """State of the hook on one rank; see `Reducer`, whose attributes it has.

    The weights are those of replicas.  On a CPU a replica waits in the hook for the others, which
    does not count as its time; on a GPU the hook is queued on a stream of its own (untried).
    """

    def __init__(self, model: nn.Module, clock: StepTimer, world: ReplicaWorld) -> None:
        super().__init__(clock)
        self._world, self._reduces = world, False
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_all_reduce_hook(self._reduce)

    def backward(self, loss: torch.Tensor) -> None:
        """Backward with reductions between replicas; elsewhere the hook does nothing."""
        self._reduces = True
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            self._reduces = False

    def _reduce(self, shard: torch.Tensor) -> None:
        if not self._reduces:
            return
        self.stop_timer()  # the last one counts
        if self.measures:
            self.measure(shard)
            if shard.dtype not in UNDIVIDED:
                self._squares[-1] /= _division_behind(self._world.shards) ** 2
        if self.weight == 0:
            shard.zero_()
        else:
            shard.mul_(self.weight / self.scale)
        with self.clock.waiting():
            dist.all_reduce(shard, group=self._world.across)


def _division_behind(shards: int) -> float:
    """The factor by which FSDP2 divides behind the hook, in types that may overflow.

    >>> [_division_behind(shards) for shards in (2, 3, 4, 8)]
    [1.0, 1.5, 2.0, 2.0]
    """
    before = 1
    while shards % before == 0 and shards / before > before:
        before *= 2
    return shards / before
