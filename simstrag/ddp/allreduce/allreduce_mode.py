"""Steps in which all ranks wait for each other: DDP reduces, and each rank decides by itself.

All replicas of the policy see the same gathered times, so they decide the same.  A digest of the
decision travels with the next step and shows a replica that decided otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from simstrag.ddp import policy_support
from simstrag.ddp.allreduce.control_message import (
    ControlMessages,
    PlanDigests,
    describe_disagreement,
    unpack,
)
from simstrag.ddp.failures.diagnosis import call_worker, warn
from simstrag.ddp.failures.slow_ranks import SlowRankDetector
from simstrag.errors import InputError, SimstragError
from simstrag.learning.noise_scale_estimate import pair_of

if TYPE_CHECKING:
    from simstrag.contract import Plan
    from simstrag.ddp.failures.rank_failure import Membership
    from simstrag.ddp.precision import Closure
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.sampler import ShareSampler
    from simstrag.ddp.sharded.world import ReplicaWorld
    from simstrag.engine.live import Live


class Disagreement(SimstragError, RuntimeError):
    """Replicas of the policy decided differently; the message names the ranks."""


class AllReduceMode:
    """Takes the steps of one rank through DDP.

    live: the replica of the engine and its policy.
    batch: samples of a rank at a share of 1.
    note: records events, on the rank that keeps the journal.
    sampler: makes batches by the shares of a plan.
    zero: start of the run on rank 0's monotonic clock; set before the first step.
    steps: taken so far.
    """

    def __init__(
        self,
        replica: Replica,
        live: Live,
        members: Membership,
        world: ReplicaWorld,
        batch: int,
        note: Callable[..., None] | None,
        sampler: ShareSampler | None,
    ) -> None:
        self.replica, self.live, self.batch, self.sampler = replica, live, batch, sampler
        self.rank, self.world_size, self._world = world.rank, world.world_size, world
        self.zero = time.monotonic() - live.now
        self._mark, self._note, self._digests = members.mark, note, PlanDigests()
        self.steps = 0
        self._reducer = replica.reducer
        self._reducer.over(None)
        self._reducer.sums = self.rank == 0  # one rank's is that of all: last bits may differ
        self._parts: list[tuple[int, float]] = []  # samples and norm of gradients just reduced
        self._planned: Plan | None = None
        self._warned = False
        self._slow = SlowRankDetector(lambda text: warn(call_worker(text, world.worker)))
        live.news()
        self._prepare()

    @property
    def over(self) -> bool:
        """Whether the plan from now on needs a server."""
        return not policy_support.is_synchronous(self.live.plan, self.world_size)

    @property
    def samples(self) -> int:
        """Samples applied so far."""
        return self.live.samples

    def step(self, closure: Closure) -> torch.Tensor:
        """Forward, backward, reduction, update and decision; the loss of this rank's batch.

        Raises `Disagreement` where replicas decided differently at the end of the last step.
        """
        replica, live, reducer = self.replica, self.live, self._reducer
        version = live.version
        self._mark(version, "computing")
        reducer.digest, reducer.version = self._digests.of(live.plan, version), version
        reducer.flags = amp = int(live.plan.in_amp[self.rank])
        reducer.measures = live.measures()
        loss = replica.reduced_gradient(closure, bool(amp), self._weight)
        self._mark(version, "reducing")
        messages = unpack(reducer.wait())
        if odd := describe_disagreement(messages):
            raise Disagreement(f"at version {version}: {odd}; parameters are those of that version")
        messages = self._world.fold(messages)
        self._measure(messages)
        if self.rank == 0:
            for name, seconds in zip(self._world.names, messages.seconds.tolist(), strict=True):
                self._slow.add(name, version, seconds)
        self._mark(version, "updating")
        finite = replica.finite()
        if finite:
            replica.update()
        replica.clear()
        end = time.monotonic() - self.zero
        self._mark(version, "deciding")
        start = max(float(messages.start[0]) - self.zero, live.now)
        live.lockstep(start, messages.seconds)
        if self._note is not None:
            self._note("lockstep", start, messages.seconds.tolist(), max(end, live.now))
            if not finite:
                self._note("skipped", live.version, "gradients that are not finite")
        self.steps += 1
        self._prepare()
        self._mark(live.version, "loading")
        return loss

    @property
    def next_batch(self) -> int:
        """Size of this rank's next batch.  Reading it obliges the caller to use that size."""
        self._size_read = True
        return self._sizes[self.rank] or self.batch  # a rank without a share only measures here

    def _measure(self, messages: ControlMessages) -> None:
        """Complete the norms of the step before by that of its sum, and keep those of this one."""
        pair = pair_of(self._parts, float(messages.squared_sum[0]), 1.0)
        if pair is not None:
            self.live.measure(pair)
        measured = self._reducer.measures
        norms = messages.squared_norm.tolist()
        self._parts = list(zip(self._sizes, norms, strict=True)) if measured else []

    def _prepare(self) -> None:
        if self.live.plan.pause:  # here, where the next step's time has not begun
            self._mark(self.live.version - 1, "pausing")
            time.sleep(self.live.plan.pause)
        if self.live.wanted_reduced and not self._warned:
            self._warned = True
            if self.rank == 0:
                refusal = self.replica.formats.refusal
                warn(policy_support.full_precision_notice(self.live.name, refusal))
        if self.live.plan is not self._planned:
            self._planned = self.live.plan
            policy_support.check_plan(self._planned, self.live.name)
            self._shares = self._planned.samples(self.batch, self.world_size)
        self._sizes, self._size_read = self._shares, False
        if self.sampler is not None:
            self.sampler.set_sizes(self._sizes)

    def _weight(self) -> float:
        """The weight of this rank's mean gradient: 1/N, or its share of the samples."""
        if self.sampler is not None:
            self._sizes = self.sampler.take()
        elif self.live.plan.batch is not None and not self._size_read:
            raise InputError(
                f"policy {self.live.name} shares batches out unevenly: draw trainer.next_batch "
                "samples before each step, or give wrap() a simstrag.ddp.ShareSampler"
            )
        even = len(set(self._sizes)) == 1  # 1/N to the last bit, as plain DDP has it
        return 1.0 / self.world_size if even else self._sizes[self.rank] / sum(self._sizes)
