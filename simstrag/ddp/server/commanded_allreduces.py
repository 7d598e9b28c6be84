"""All-reduces that the server commands: members, end, and repetition without the dead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simstrag.ddp.server.messages import Command, Reduce
from simstrag.ddp.server.worker_state import (
    ReducedSum,
    WorkerState,
    gradient_weights,
    is_served,
    model_weights,
)
from simstrag.engine.live import Live, Reduction

RETRIES = 3
"""Failures of one all-reduce that are accepted though none of its members has died."""


@dataclass
class _Open:
    """An all-reduce under way.

    reduction: the engine's.
    sum: the sum as commanded last.
    samples: of each member's gradient or model.
    fragment, fragments: the part of the model that it carries, of how many.
    beside: whether it is carried out beside steps.
    told: the ranks that take part, with or without a part of the sum, as commanded last.
    in_rounds: whether its group has rounds, or a member has kept gradients of some.
    commands: how often it was commanded.
    failures: how often it failed though all members were alive.
    done, failed: the ranks at which it has ended, and has failed, since the last command.
    is_over: whether it has ended at all of them.
    """

    reduction: Reduction
    sum: ReducedSum
    samples: Mapping[int, int]
    fragment: int
    fragments: int
    beside: bool
    in_rounds: bool
    told: tuple[int, ...] = ()
    commands: int = 0
    failures: int = 0
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    is_over: bool = False


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
        prepared = {rank: self._workers[rank].prepared for rank in members}
        samples = {
            rank: self._workers[rank].samples if own is None else own[0]
            for rank, own in prepared.items()
        }
        self._count += 1
        fragments, version = self._live.plan.fragments, self._live.version + len(self._open)
        partial = len(reduction.among) > len(reduction.members)
        self._open[self._count] = _Open(
            reduction, ReducedSum(-1, members, {}, reduction.average), samples,
            version % fragments, fragments, beside=partial or any(prepared.values()),
            in_rounds=reduction.rounds > 1 or any(self._workers[rank].rounds for rank in members),
        )  # fmt: skip
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
        members, samples, average = this.sum.members, this.samples, this.reduction.average
        alive = tuple(rank for rank in members if rank not in self._dead)
        if average:
            weights = model_weights({rank: samples[rank] for rank in alive})
        elif this.in_rounds:  # what damps an update does not damp a round
            weights = {rank: samples[rank] / self._whole for rank in members}
        else:
            versions = {rank: self._workers[rank].version for rank in members}
            weights = gradient_weights(live.plan, samples, versions, live.version, self._whole)
        own = {rank: weights[rank] for rank in alive}
        kept = average and not is_served(live.plan, len(self._workers))
        stays = this.in_rounds or (this.beside and not kept)
        root, number = alive[0] if alive else -1, closing if stays else None
        this.sum = ReducedSum(root, members, own, kept, number, this.in_rounds)
        this.commands += 1
        this.done.clear()
        this.failed.clear()
        if not alive:
            self._settle(closing, at)
            return []
        among = {*alive, *this.reduction.among} - self._dead
        this.told = tuple(sorted(among))
        shares = tuple(own.get(rank, 0.0) for rank in this.told)
        return [
            Reduce(
                rank, closing, this.told, shares, average, this.fragment,
                beside=this.beside, stays=stays, again=this.commands > 1,
            )
            for rank in this.told
        ]  # fmt: skip

    def _follow(self, closing: int, at: float) -> list[Command]:
        """Once all live members have reported, end the all-reduce, or repeat it if one failed."""
        this = self._open[closing]
        alive = set(this.told) - self._dead
        if this.is_over or not alive <= this.done | this.failed:
            return []
        if not this.failed and this.sum.root in this.done:
            self._settle(closing, at)
            return []
        this.failures += alive == set(this.told)
        if this.failures > RETRIES:
            raise RuntimeError(
                f"the all-reduce of ranks {sorted(alive)} fails though all of them are alive"
            )
        return self._command(closing, at)

    def _settle(self, closing: int, at: float) -> None:
        """End an all-reduce; one of a fragment after those that began before, as fragments go."""
        self._open[closing].is_over = True
        for number, this in list(self._open.items()):
            if not this.is_over:
                if this.fragments > 1:
                    break
                continue
            del self._open[number]
            for rank in this.sum.members:
                worker = self._workers[rank]
                worker.sum = this.sum
                if worker.prepared is not None:
                    worker.finite, worker.prepared = worker.prepared[1], None
            self._live.finish_reduction(this.reduction.number, at)
