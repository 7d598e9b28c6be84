"""Steps of a replica of several ranks under a server: its leader obeys, and the others follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from simstrag.ddp.server.messages import Handover
from simstrag.ddp.server.server_mode import ServerMode
from simstrag.ddp.sharded.sharded_replica import Release, ShardedReplica

if TYPE_CHECKING:
    from simstrag.ddp.precision import Closure


class LeadingMode(ServerMode):
    """The mode of a replica's leader: it speaks with the server, and releases the others.

    They do with their parts of the replica what it does.
    """

    def _obey(self) -> None:
        super()._obey()
        self.release()

    def release(self) -> None:
        """Let the other ranks go on with their script."""
        assert isinstance(self.replica, ShardedReplica)
        told = None
        if (handover := self.handover) is not None:
            told = handover.policy, handover.facts, handover.apart
        self.replica.release(Release(self.samples, self.next_batch, told, self.finished))
        self.replica.leading = handover is None


class FollowingMode:
    """The mode of a replica's other ranks.

    The constructor follows the leader up to the first step.
    mark: is called with the step and the phase that begins.
    samples: samples applied by all replicas, as the leader knew them last.
    next_batch: samples of the replica's next step.
    handover: what ended this mode; None before.
    finished: whether the plan leaves the replica out.
    """

    def __init__(self, replica: ShardedReplica, mark: Callable[[int, str], None]) -> None:
        self.replica, self._mark, self._steps = replica, mark, 0
        self.handover: Handover | None = None
        self.samples = self.next_batch = 0
        self.finished = False
        self._follow(_refuse)

    @property
    def over(self) -> bool:
        """Whether all ranks go on without the server."""
        return self.handover is not None

    def step(self, closure: Closure) -> torch.Tensor:
        """Compute the leader's next step with it; the loss of this rank's part of the batch."""
        self._follow(closure)
        self._steps += 1
        return self.replica.loss

    def follow_checkpoint(self) -> None:
        """Give the leader what it needs of this rank for a checkpoint."""
        self._mark(self._steps, "talking to the server")
        self.replica.follow(_refuse)

    def _follow(self, closure: Closure) -> None:
        self._mark(self._steps, "computing")
        told = self.replica.follow(closure)
        self.samples, self.next_batch, self.finished = told.samples, told.next_batch, told.finished
        if told.handover is not None:
            policy, facts, apart = told.handover
            self.handover = Handover(self.replica.world.rank, facts, policy, apart)
        self._mark(self._steps, "loading")
        self.replica.clock.begin()


def _refuse() -> torch.Tensor:
    raise AssertionError("a step was commanded between two steps")
