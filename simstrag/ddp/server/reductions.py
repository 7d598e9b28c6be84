"""All-reduces that the server orders: who takes part, how it went, and again without the dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simstrag.ddp.server.gradient_weights import Sum, averaged, weights
from simstrag.ddp.server.messages import Order, Reduce
from simstrag.ddp.server.worker_state import Seat
from simstrag.engine.live import Live, Reduction

__all__ = ["Reductions"]

RETRIES = 3
"""How often an all-reduce may fail though no member of it has died."""


@dataclass
class _Open:
    """One under way: what the books call it, who was told what, who has done it, who failed.

    everybody: whose gradients the books see in it.
    """

    number: int
    everybody: tuple[int, ...]
    average: bool
    told: Sum
    failures: int = 0
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


class Reductions:
    """Those under way.  It is over when all who are alive have said so.

    dead: ranks, as the desk knows them at any time.  whole: samples of all ranks in one step, N*b.
    Each method returns the orders that follow.
    """

    def __init__(self, live: Live, seats: Sequence[Seat], dead: set[int], whole: int) -> None:
        self._live, self._seats, self._dead, self._whole = live, seats, dead, whole
        self._open: dict[int, _Open] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self, reduction: Reduction, at: float) -> list[Order]:
        """The books say that one begins; that of a group was done on the way."""
        everybody = tuple(sorted(reduction.members + reduction.riders))
        on_the_way = self._seats[everybody[0]].sum
        if on_the_way is not None:
            assert on_the_way.members == everybody
            self._live.reduced(reduction.number, at)
            return []
        self._count += 1
        nobody = Sum(-1, everybody, {}, reduction.average)
        self._open[self._count] = _Open(reduction.number, everybody, reduction.average, nobody)
        return self._told(self._count, at)

    def done(self, rank: int, closing: int, at: float) -> list[Order]:
        """It has ended at a rank."""
        if closing not in self._open:
            return []
        self._open[closing].done.add(rank)
        return self._follow(closing, at)

    def failed(self, rank: int, closing: int, at: float) -> list[Order]:
        """It has failed at a rank."""
        if closing not in self._open:
            return []
        self._open[closing].failed.add(rank)
        return self._follow(closing, at)

    def lost(self, at: float) -> list[Order]:
        """Somebody is dead whom others may have waited for."""
        return [order for closing in list(self._open) for order in self._follow(closing, at)]

    def _told(self, closing: int, at: float) -> list[Order]:
        """Tell those of its members who are alive; without any it is over."""
        one = self._open[closing]
        alive = tuple(rank for rank in one.everybody if rank not in self._dead)
        samples = {rank: self._seats[rank].samples for rank in one.everybody}
        if one.average:
            shares = averaged({rank: samples[rank] for rank in alive})
        else:
            versions = {rank: self._seats[rank].version for rank in one.everybody}
            live = self._live
            shares = weights(live.plan, samples, versions, live.version, self._whole)
        root = alive[0] if alive else -1
        one.told = Sum(root, one.everybody, {rank: shares[rank] for rank in alive}, one.average)
        one.done.clear()
        one.failed.clear()
        if not alive:
            self._settle(closing, at)
        own = tuple(one.told.weights.values())
        return [Reduce(rank, closing, alive, own, one.average) for rank in alive]

    def _follow(self, closing: int, at: float) -> list[Order]:
        """Nothing until all who are alive have said how it went; then again if it went wrong."""
        one = self._open[closing]
        alive = set(one.told.weights) - self._dead
        if not alive <= one.done | one.failed:
            return []
        if not one.failed and one.told.root in one.done:
            self._settle(closing, at)
            return []
        one.failures += alive == set(one.told.weights)
        if one.failures > RETRIES:
            raise RuntimeError(
                f"the all-reduce of ranks {sorted(alive)} fails though all of them are alive"
            )
        return self._told(closing, at)

    def _settle(self, closing: int, at: float) -> None:
        one = self._open.pop(closing)
        for rank in one.everybody:
            self._seats[rank].sum = one.told
        self._live.reduced(one.number, at)
