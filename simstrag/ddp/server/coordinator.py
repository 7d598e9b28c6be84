"""What the server decides with: it is told what arrived, and answers what is to be done.

The books are `simstrag.engine.live.Live`'s; the desk knows who is away computing, whose gradient
lies where and what has to wait for it.  No socket, no tensor, no clock: times are told, in seconds.

A rank is *away* from its order to compute until it comes back.  Orders to a rank that is away wait;
it hears of an abort at once, by another way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from simstrag.ddp.server.gradient_weights import Sum
from simstrag.ddp.server.messages import (
    Abort,
    Apply,
    Compute,
    Deliver,
    Finish,
    Handover,
    How,
    Keep,
    Order,
)
from simstrag.ddp.server.reductions import Reductions
from simstrag.ddp.server.worker_state import Seat, booked, how
from simstrag.engine.live import Live, Lost, Reduction, Start, Update
from simstrag.errors import NobodyLeft, PlanError
from simstrag.plan import Plan

__all__ = ["Desk"]


class Desk:
    """Turns arrivals into orders.

    live: the books, from their beginning, made with `fixed=is_fixed` of
    `simstrag.ddp.server.worker_state`.
    batch: samples of a gradient at a share of 1.  is_synchronous: of a plan, whether all ranks had
    better go on without the server; after an update that lets all go together they are told so.
    over: whether there is nothing left to decide.
    """

    def __init__(
        self,
        live: Live,
        world_size: int,
        batch: int,
        is_synchronous: Callable[[Plan], bool] = lambda plan: False,
    ) -> None:
        self.live, self.over = live, False
        self.dead = set(live.lost)
        self._careful = False
        self._whole, self._first = world_size * batch, live.version
        self._is_synchronous = is_synchronous
        self._seats = [Seat() for _ in range(world_size)]
        self._reductions = Reductions(live, self._seats, self.dead, self._whole)
        self._agenda: deque[Order] = deque()

    # -- what has happened -------------------------------------------------------------------

    def begin(self) -> list[Order]:
        """Everybody is here."""
        return self._orders(self.live.now)

    def done(
        self, rank: int, step: int, at: float, seconds: float, *, here: bool, finite: bool = True
    ) -> list[Order]:
        """A rank is back from a step that took it so long; `here`: so is its gradient."""
        if self._back(rank, step):
            seat = self._seats[rank]
            seat.here, seat.finite = here, finite
            self.live.done(rank, at, seconds)
        return self._orders(at)

    def grouped(
        self, rank: int, step: int, at: float, members: Mapping[int, tuple[float, bool]]
    ) -> list[Order]:
        """The sum of a group is here, sent by `rank`; of each member (seconds, finite)."""
        work = self._away(rank)
        if work.step != step or set(members) != set(work.members):
            raise ConnectionError(f"rank {rank} sends the sum of a group that is not under way")
        alive = sorted(set(members) - self.dead)
        whole = Sum(rank, work.members, {o: self._away(o).weight for o in alive}, average=False)
        if len(alive) < len(members):  # the books do not know of the dead one's part any more
            for other in alive:
                self._seats[other].broken = True
            self._form_again()
            return self._orders(at)
        for other, (seconds, finite) in sorted(members.items()):
            seat = self._seats[other]
            seat.work, seat.finite, seat.sum = None, finite, whole
            self.live.done(other, at, seconds)
        return self._orders(at)

    def withdrawn(self, rank: int, step: int, at: float) -> list[Order]:
        """A rank is back from a step that was aborted."""
        if self._back(rank, step):
            raise ConnectionError(f"rank {rank} gave up step {step}, which nobody aborted")
        return self._orders(at)

    def delivered(self, rank: int, at: float) -> list[Order]:
        """The gradient that a rank had kept is here."""
        self._seats[rank].here = True
        return self._orders(at)

    def reduced(self, rank: int, closing: int, at: float) -> list[Order]:
        """An all-reduce has ended at a rank; what the lowest member sends is here."""
        self._agenda += self._reductions.done(rank, closing, at)
        return self._orders(at)

    def failed(self, rank: int, at: float, closing: int | None = None) -> list[Order]:
        """A collective failed at a rank: that of a closing, or that of its group."""
        if closing is None:
            self._away(rank)
            self._seats[rank].broken = self._careful = True
            self._form_again()
        else:
            self._agenda += self._reductions.failed(rank, closing, at)
        return self._orders(at)

    def lost(self, rank: int, at: float) -> list[Order]:
        """A rank has left, or died; what it has sent stays good."""
        if rank in self.dead:
            return []
        self.dead.add(rank)
        seat = self._seats[rank]
        seat.work = seat.held = None
        if len(self.dead) == len(self._seats):
            self.over = True
            return []
        try:
            self.live.gone(rank, at)
        except NobodyLeft:  # who could let the others go on
            self.over = True
            return [Finish(other) for other in range(len(self._seats)) if other not in self.dead]
        self._agenda += self._reductions.lost(at)
        self._form_again()
        return self._orders(at)

    def time(self, at: float) -> list[Order]:
        """Nothing has happened until then, but windows may be over."""
        self.live.wait(at)
        return self._orders(at)

    @property
    def expiry(self) -> float:
        """When `time` must be told at the latest."""
        return math.inf if self.over else self.live.expiry

    def _away(self, rank: int) -> Compute:
        work = self._seats[rank].work
        if work is None:
            raise ConnectionError(f"rank {rank} speaks of a step, but it was given none")
        return work

    def _back(self, rank: int, step: int) -> bool:
        """Note that a rank is back from that step; whether anybody wants its gradient."""
        if self._away(rank).step != step:
            raise ConnectionError(
                f"rank {rank} is back from step {step} instead of {self._away(rank).step}"
            )
        seat = self._seats[rank]
        wanted, seat.work, seat.given_up = not seat.given_up, None, False
        return wanted

    # -- what the books make of it -----------------------------------------------------------

    def _orders(self, at: float) -> list[Order]:
        while news := self.live.news():
            for each in news:
                if isinstance(each, Update):
                    self._agenda.append(booked(each, self._seats))
                elif isinstance(each, Start):
                    self._start(each)
                elif isinstance(each, Reduction):
                    self._agenda += self._reductions.begin(each, at)
                else:
                    self._lose(each)
        self._hand_over()
        if any(
            isinstance(each, Compute) and not (each.pull or each.local) for each in self._agenda
        ):
            raise PlanError(
                f"policy {self.live.name} averages models and then does not; that is possible "
                "where all ranks are there, begin together, and need no server from then on"
            )
        return self._due()

    def _start(self, start: Start) -> None:
        seat, plan = self._seats[start.rank], self.live.plan
        seat.samples = start.samples + (seat.samples if start.private else 0)
        if not start.private:
            seat.version = start.version
        answer, members = (How.READY, ()) if self._careful else how(start.rank, plan)
        members = tuple(rank for rank in members if rank not in self.dead)
        self._agenda.append(
            Compute(
                start.rank,
                start.step,
                start.version,
                start.amp,
                start.samples,
                answer,
                pull=not seat.own,
                local=plan.average,
                members=members,
                weight=start.samples / self._whole if members else 1.0,
                applied=self.live.samples,
            )
        )
        seat.own = plan.average

    def _lose(self, lost: Lost) -> None:
        """An aborted step may be under way, waiting to be begun, or finished."""
        seat = self._seats[lost.rank]
        if seat.held is not None and seat.held.step == lost.step:
            seat.held = None
        self._agenda = deque(
            each
            for each in self._agenda
            if not (isinstance(each, Compute) and (each.rank, each.step) == lost[:2])
        )
        if lost.fate == "aborted" and seat.work is not None and seat.work.step == lost.step:
            seat.given_up = True
            self._agenda.appendleft(Abort(lost.rank, lost.step))

    def _form_again(self) -> None:
        """A group whose collective failed begins its step anew, when all but the dead are back.

        Each of them pulls what it began from, for not all may have had it from the lowest.
        From now on no group sums up on the way: DDP cannot go on where a reduction has failed.
        """
        for seat in self._seats:
            if seat.work is None or not seat.broken:
                continue
            alive = tuple(other for other in seat.work.members if other not in self.dead)
            if alive != seat.work.members and all(self._seats[o].broken for o in alive):
                for other in alive:
                    work = self._away(other)
                    self._seats[other].work, self._seats[other].broken = None, False
                    alone = replace(work, how=How.READY, members=(), weight=1.0)
                    self._agenda.append(alone)

    # -- what can be done now ----------------------------------------------------------------

    def _hand_over(self) -> None:
        """All are about to begin together under a plan that needs no server: let them go."""
        steps = [each for each in self._agenda if isinstance(each, Compute)]
        starting = {each.rank for each in steps}
        everybody = len(starting) == len(self._seats) and not self._reductions
        if not everybody or any(seat.work is not None for seat in self._seats):
            return
        if self.live.version == self._first or not self._is_synchronous(self.live.plan):
            return
        apart = not steps[0].pull
        if any(each.pull is apart for each in steps):  # some have a model of their own, some not
            return
        facts, policy = self.live.facts(), self.live.policy
        self._agenda = deque(each for each in self._agenda if not isinstance(each, Compute))
        self._agenda += [Handover(rank, facts, policy, apart) for rank in sorted(starting)]

    def _due(self) -> list[Order]:
        """What need not wait for a gradient that is still on its way."""
        orders: list[Order] = []
        while self._agenda:
            order = self._agenda[0]
            if isinstance(order, Apply):
                if away := self._not_here(order):
                    orders += [Deliver(rank) for rank in away if not self._seats[rank].asked]
                    for rank in away:
                        self._seats[rank].asked = True
                    break
                self._agenda.popleft()
                orders += self._kept(order)
                orders.append(self._without_the_lost(order))
                continue
            self._agenda.popleft()
            if isinstance(order, Compute):
                self._seats[order.rank].held = order
                orders += self._give(order.rank)
            elif order.rank not in self.dead:
                orders.append(order)
            self.over = self.over or isinstance(order, Handover)
        for rank in range(len(self._seats)):
            orders += self._give(rank)
        return orders

    def _give(self, rank: int) -> list[Order]:
        """The next step of a rank, if it is back from the last."""
        seat = self._seats[rank]
        if seat.held is None or seat.work is not None or rank in self.dead:
            return []
        return [seat.leave()]

    def _not_here(self, apply: Apply) -> list[int]:
        found = [(rank, self._seats[rank]) for rank, _ in apply.parts if rank not in self.dead]
        return [rank for rank, seat in found if seat.sum is None and not seat.here]

    def _without_the_lost(self, apply: Apply) -> Apply:
        """A gradient that died with its rank, before it was sent, is not applied."""
        gone = {
            rank
            for rank, _ in apply.parts
            if rank in self.dead and self._seats[rank].sum is None and not self._seats[rank].here
        }
        if not gone:
            return apply
        parts = tuple(part for part in apply.parts if part[0] not in gone)
        return replace(apply, parts=parts, missing=tuple(sorted({*apply.missing, *gone})))

    def _kept(self, apply: Apply) -> list[Keep]:
        """Who will begin from the parameters that this update is about to change."""
        later = {each.rank for each in self._agenda if isinstance(each, Compute)}
        return [
            Keep(rank)
            for rank, seat in enumerate(self._seats)
            if rank not in later
            and seat.held is not None
            and seat.held.pull
            and seat.held.version == apply.version - 1
        ]
