"""Where each rank is, as the desk knows it, and what its gradient is part of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simstrag.ddp.server.gradient_weights import Sum, factor_of
from simstrag.ddp.server.messages import Apply, Compute, How
from simstrag.engine.live import Update
from simstrag.plan import Plan
from simstrag.quorum import Quorum, Via

__all__ = ["Seat", "booked", "how", "is_fixed"]


@dataclass
class Seat:
    """One rank.

    work: what it computes, while it is away.  given_up: that was aborted.  held: what comes next.
    here: its gradient is at the server.  asked: it was told to deliver it.  finite: it can be
    applied.  samples, version: of its contribution.  sum: what its gradient is a part of.  broken:
    the collective of its group failed.  own: it has a model of its own.
    """

    work: Compute | None = None
    given_up: bool = False
    held: Compute | None = None
    here: bool = False
    asked: bool = False
    finite: bool = True
    samples: int = 0
    version: int = 0
    sum: Sum | None = None
    broken: bool = False
    own: bool = False

    def leave(self) -> Compute:
        """It goes away with what was held for it, and nothing of its last step counts any more."""
        assert self.held is not None
        self.work, self.held = self.held, None
        self.here, self.asked, self.finite, self.sum = False, False, True, None
        return self.work


def is_fixed(quorum: Quorum) -> bool:
    """Whether a group is made before its steps begin, so that it may sum up on the way."""
    whole = quorum.count is None and quorum.window == math.inf and not quorum.private
    return quorum.via is Via.LEADER and whole and not quorum.riders


def how(rank: int, plan: Plan) -> tuple[How, tuple[int, ...]]:
    """What a rank is to do with its gradient under a resolved plan, and with whom on the way."""
    for quorum in plan.quorums:
        if rank in quorum.members and quorum.via is Via.SERVER:
            return How.PUSH, ()
        if rank in quorum.members and is_fixed(quorum):
            return How.GROUP, quorum.members
    return How.READY, ()


def booked(update: Update, seats: Sequence[Seat]) -> Apply:
    """How an update of the books is made of single gradients, and of sums as wholes."""
    gradients = sorted(update.gradients)
    weight_of = {gradient.rank: gradient.weight for gradient in gradients}
    parts: dict[int, float] = {}
    missing: set[int] = set()
    for rank, weight in weight_of.items():
        seat = seats[rank]
        if not seat.finite or (seat.sum is not None and rank not in seat.sum.weights):
            missing.add(rank)
        elif seat.sum is None:
            parts[rank] = weight
        elif not seat.sum.average:
            parts[seat.sum.root] = factor_of(seat.sum, weight_of)
    return Apply(
        update.version,
        tuple(sorted(parts.items())),
        tuple(sorted(missing)),
        tuple((g.rank, g.step, g.version, g.weight) for g in gradients),
    )
