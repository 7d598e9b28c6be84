"""All-reduces that the server commands: members, end, and repetition without the dead.

One that runs beside steps is announced to each member with the step after which the member begins
it, before all gradients have come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    sum: the sum as commanded last.
    samples: of each member's gradient or model.
    fragment: the part of the model that it carries.
    number: the engine's number of the reduction; None while one that was announced gathers.
    failures: how often it failed though all members were alive.
    done, failed: the ranks at which it has ended, and has failed, since the last command.
    finite: whether the last gradient of each member is finite that goes on beside it.
    """

    sum: ReducedSum
    samples: Mapping[int, int]
    fragment: int
    number: int | None = None
    failures: int = 0
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    finite: dict[int, bool] = field(default_factory=dict)


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
        self._announced: int | None = None
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def announce(self, rank: int) -> Reduce:
        """The all-reduce that a rank begins when it has finished its present contribution."""
        if self._announced is None:
            live, dead = self._live, self._dead
            (quorum,) = live.plan.quorums
            members = tuple(other for other in quorum.members if other not in dead)
            samples = {other: live.outlook(other)[1] for other in members}
            self._announced = self._open_anew(members, samples, average=True)
            self._open[self._announced].sum.weights.update(model_weights(samples))
        return self._commands(self._announced, self._open[self._announced])[rank]

    def note_finite(self, rank: int, closing: int, finite: bool) -> None:
        """A rank has begun an all-reduce that was announced; `finite`: its last gradient was."""
        self._open[closing].finite[rank] = finite

    def begin(self, reduction: Reduction, at: float) -> list[Command]:
        """Begin an all-reduce of the engine; a group's has happened during backward already."""
        members = tuple(sorted(reduction.members + reduction.riders))
        group = self._workers[members[0]].sum
        if group is not None:
            assert group.members == members
            self._live.finish_reduction(reduction.number, at)
            return []
        samples: Mapping[int, int] = {rank: self._workers[rank].samples for rank in members}
        if self._announced is not None:
            closing, self._announced = self._announced, None
            if self._open[closing].sum.members == members:
                self._open[closing].number = reduction.number
                return self._follow(closing, at)
            samples = self._open.pop(closing).samples  # a rank was lost before it closed
        closing = self._open_anew(members, samples, reduction.average)
        self._open[closing].number = reduction.number
        return self._command(closing, at)

    def _open_anew(
        self, members: tuple[int, ...], samples: Mapping[int, int], average: bool
    ) -> int:
        """An all-reduce of the next update, and its number."""
        live, everyone = self._live, set(range(len(self._workers)))
        if outer_of(live.plan) is not None and everyone - self._dead - set(members):
            raise PlanError(OUTER)
        self._count += 1
        root = next((rank for rank in members if rank not in self._dead), -1)
        total = ReducedSum(root, members, {}, average)
        self._open[self._count] = _Open(total, samples, live.version % live.plan.fragments)
        return self._count

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
        members, average, samples = this.sum.members, this.sum.average, this.samples
        alive = tuple(rank for rank in members if rank not in self._dead)
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
            return []
        return [*self._commands(closing, this).values()]

    def _commands(self, closing: int, this: _Open) -> dict[int, Reduce]:
        """The command to each rank of a sum."""
        ranks, weights = tuple(this.sum.weights), tuple(this.sum.weights.values())
        return {
            rank: Reduce(rank, closing, ranks, weights, this.sum.average, this.fragment)
            for rank in ranks
        }

    def _follow(self, closing: int, at: float) -> list[Command]:
        """Once all live members have reported, end the all-reduce, or repeat it if one failed."""
        this = self._open[closing]
        alive = set(this.sum.weights) - self._dead
        if this.number is None or not alive <= this.done | this.failed:
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
        assert this.number is not None
        for rank in this.sum.members:
            worker = self._workers[rank]
            worker.sum, worker.finite = this.sum, this.finite.get(rank, worker.finite)
        self._live.finish_reduction(this.number, at)
