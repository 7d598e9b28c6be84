"""Steps in which everybody waits for everybody: DDP sums up, and each rank decides for itself.

All replicas of the policy see the same gathered facts, so they decide the same; a digest of what
they decided travels with the next step, and whoever came apart is caught there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from simstrag.ddp import support
from simstrag.ddp.allreduce.control_message import PlanDigests, describe_disagreement, unpack
from simstrag.ddp.failures.diagnosis import SlowRankDetector
from simstrag.errors import InputError, SimstragError

if TYPE_CHECKING:
    from simstrag.ddp.precision import Closure
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.sampler import ShareSampler
    from simstrag.engine.live import Live
    from simstrag.plan import Plan

__all__ = ["AllReduceMode", "Disagreement"]


class Disagreement(SimstragError, RuntimeError):
    """Replicas of the policy have decided differently; the message names who did."""


class AllReduceMode:
    """A rank among ranks that take every step together.

    live: the replica of policy and books.  zero: when the run began on rank 0's monotonic clock,
    which it is told before the first step.
    batch: samples of a rank at a share of 1.  mark: is told (step, phase).  note: where this rank
    records what has happened, if it does.  sampler: makes batches of the shares of a plan.
    names: the ranks as users know them, where some are lost.  steps: taken here so far.
    """

    def __init__(
        self,
        replica: Replica,
        live: Live,
        rank: int,
        world_size: int,
        batch: int,
        mark: Callable[[int, str], None],
        note: Callable[..., None] | None = None,
        sampler: ShareSampler | None = None,
        names: Sequence[int] = (),
    ) -> None:
        self.replica, self.live, self.rank, self.world_size = replica, live, rank, world_size
        self.batch, self.sampler = batch, sampler
        self.zero = time.monotonic() - live.now
        self._mark, self._note, self._digests = mark, note, PlanDigests()
        self.steps = 0
        self._reducer = replica.reducer
        self._reducer.over(None)
        self._planned: Plan | None = None
        self._said = False
        self._slow, self._names = SlowRankDetector(), names or range(world_size)
        live.news()
        self._prepare()

    @property
    def over(self) -> bool:
        """Whether the plan from now on needs a server."""
        return not support.is_synchronous(self.live.plan, self.world_size)

    @property
    def samples(self) -> int:
        """Applied so far."""
        return self.live.samples

    def step(self, closure: Closure) -> torch.Tensor:
        """Forward, backward, reduction, update and decision; the loss of this rank's batch.

        Raises `Disagreement` where a replica decided otherwise at the end of the last step.
        """
        replica, live, reducer = self.replica, self.live, self._reducer
        version = live.version
        self._mark(version, "computing")
        reducer.digest, reducer.version = self._digests.of(live.plan, version), version
        reducer.flags = amp = int(live.plan.in_amp[self.rank])
        loss = replica.reduced_gradient(closure, bool(amp), self._weight)
        self._mark(version, "reducing")
        told = unpack(reducer.wait())
        if odd := describe_disagreement(told):
            raise Disagreement(f"at version {version}: {odd}; parameters are those of that version")
        if self.rank == 0:
            for name, seconds in zip(self._names, told.seconds.tolist(), strict=True):
                self._slow.add(name, version, seconds)
        self._mark(version, "updating")
        finite = replica.finite()
        if finite:
            replica.update()
        replica.clear()
        end = time.monotonic() - self.zero
        self._mark(version, "deciding")
        start = max(float(told.start[0]) - self.zero, live.now)
        live.lockstep(start, told.seconds)
        if self._note is not None:
            self._note("lockstep", start, told.seconds.tolist(), max(end, live.now))
            if not finite:
                self._note("skipped", live.version, "gradients that are not finite")
        self.steps += 1
        self._prepare()
        self._mark(live.version, "loading")
        return loss

    @property
    def next_batch(self) -> int:
        """Samples of this rank's next batch; who asks sees to it that they are so many."""
        self._heeded = True
        return self._sizes[self.rank]

    def _prepare(self) -> None:
        """What the plan says of the next batch."""
        if self.live.wanted_reduced and not self._said:
            self._said = True
            if self.rank == 0:
                refusal = self.replica.formats.refusal
                warnings.warn(support.full_precision_notice(self.live.name, refusal), stacklevel=2)
        if self.live.plan is not self._planned:
            self._planned = self.live.plan
            support.check_plan(self._planned, self.live.name)
            self._shares = self._planned.samples(self.batch, self.world_size)
        self._sizes, self._heeded = self._shares, False
        if self.sampler is not None:
            self.sampler.set_sizes(self._sizes)

    def _weight(self) -> float:
        """What this rank's mean gradient weighs: 1/N, or its share of the samples."""
        if self.sampler is not None:
            self._sizes = self.sampler.take()
        elif self.live.plan.batch is not None and not self._heeded:
            raise InputError(
                f"policy {self.live.name} shares batches out unevenly: draw trainer.next_batch "
                "samples before each step, or give wrap() a simstrag.ddp.ShareSampler"
            )
        even = len(set(self._sizes)) == 1  # 1/N to the last bit, as plain DDP has it
        return 1.0 / self.world_size if even else self._sizes[self.rank] / sum(self._sizes)
