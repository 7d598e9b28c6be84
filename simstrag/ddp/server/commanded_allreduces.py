"""All-reduces that the server commands: members, end, and repetition without the dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simstrag.ddp.policy_support import OUTER
from simstrag.ddp.server.messages import Command, Reduce
from simstrag.ddp.server.worker_state import (
    ReducedSum,
    WorkerState,
    gradient_weights,
    model_weights,
    outer_of,
)
from simstrag.engine.live import Live, Reduction
from simstrag.errors import PlanError

RETRIES = 3
"""Failures of one all-reduce that are accepted though none of its members has died."""


@dataclass
class _Open:
    """An all-reduce under way.

    number: the engine's number of the reduction.
    sum: the sum as commanded last.
    failures: how often it failed though all members were alive.
    done, failed: the ranks at which it has ended, and has failed, since the last command.
    """

    number: int
    sum: ReducedSum
    failures: int = 0
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


class Reductions:
    """The all-reduces under way; one is over when all members that are alive have reported it.

    dead: the lost ranks; the coordinator adds to this set.
    whole: samples of all ranks in one step, N*b.
    Each method returns the commands that follow.
    """

    def __init__(
        self, live: Live, workers: Sequence[WorkerState], dead: set[int], whole: int
    ) -> None:
        self._live, self._workers, self._dead, self._whole = live, workers, dead, whole
        self._open: dict[int, _Open] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self, reduction: Reduction, at: float) -> list[Command]:
        """Begin an all-reduce of the engine; a group's has happened during backward already."""
        members = tuple(sorted(reduction.members + reduction.riders))
        group = self._workers[members[0]].sum
        if group is not None:
            assert group.members == members
            self._live.finish_reduction(reduction.number, at)
            return []
        self._count += 1
        empty = ReducedSum(-1, members, {}, reduction.average)
        self._open[self._count] = _Open(reduction.number, empty)
        return self._command(self._count, at)

    def on_report(self, rank: int, closing: int, at: float, failed: bool) -> list[Command]:
        """An all-reduce has ended or failed at a rank."""
        if closing not in self._open:
            return []
        this = self._open[closing]
        (this.failed if failed else this.done).add(rank)
        return self._follow(closing, at)

    def on_loss(self, at: float) -> list[Command]:
        """A rank has died; others may be waiting for it."""
        return [command for closing in list(self._open) for command in self._follow(closing, at)]

    def _command(self, closing: int, at: float) -> list[Command]:
        """Command an all-reduce to its live members; without any it is over."""
        this, live = self._open[closing], self._live
        members, average = this.sum.members, this.sum.average
        alive = tuple(rank for rank in members if rank not in self._dead)
        samples = {rank: self._workers[rank].samples for rank in members}
        if average:
            weights = model_weights({rank: samples[rank] for rank in alive})
        else:
            versions = {rank: self._workers[rank].version for rank in members}
            weights = gradient_weights(live.plan, samples, versions, live.version, self._whole)
        own = {rank: weights[rank] for rank in alive}
        this.sum = ReducedSum(alive[0] if alive else -1, members, own, average)
        this.done.clear()
        this.failed.clear()
        if not alive:
            self._settle(closing, at)
        if outer_of(live.plan) is not None and len(members) < len(self._workers):
            raise PlanError(OUTER)
        fragment = live.version % live.plan.fragments
        weighed = tuple(own.values())
        return [Reduce(rank, closing, alive, weighed, average, fragment) for rank in alive]

    def _follow(self, closing: int, at: float) -> list[Command]:
        """Once all live members have reported, end the all-reduce, or repeat it if one failed."""
        this = self._open[closing]
        alive = set(this.sum.weights) - self._dead
        if not alive <= this.done | this.failed:
            return []
        if not this.failed and this.sum.root in this.done:
            self._settle(closing, at)
            return []
        this.failures += alive == set(this.sum.weights)
        if this.failures > RETRIES:
            raise RuntimeError(
                f"the all-reduce of ranks {sorted(alive)} fails though all of them are alive"
            )
        return self._command(closing, at)

    def _settle(self, closing: int, at: float) -> None:
        this = self._open.pop(closing)
        for rank in this.sum.members:
            self._workers[rank].sum = this.sum
        self._live.finish_reduction(this.number, at)
