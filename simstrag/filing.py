"""Where the gradients of a standing plan wait: who is in which quorum, and what is ready there."""

from __future__ import annotations

import math

from simstrag.gradient import Gradient
from simstrag.plan import Plan
from simstrag.quorum import Late, Quorum, Via

__all__ = ["Filing"]


class Filing:
    """A resolved plan, looked up by rank, and its quorums' ready gradients.

    named: the ranks that the plan names, riders included.
    parent: of each rider.  children: of each rank, its riders.
    closable: indices of quorums that have what they need.
    windowed: indices of quorums whose window is finite.
    """

    def __init__(self, plan: Plan, world_size: int) -> None:
        self.plan = plan
        self.parent: dict[int, int] = {}
        self.children: list[list[int]] = [[] for _ in range(world_size)]
        self.closable: set[int] = set()
        self._index = [-1] * world_size
        self._ready: list[list[Gradient]] = [[] for _ in plan.quorums]
        self._joining: list[list[Gradient]] = [[] for _ in plan.quorums]
        for index, quorum in enumerate(plan.quorums):
            for child, parent in quorum.riders:
                self.parent[child] = parent
                self.children[parent].append(child)
            for rank in (*quorum.members, *(child for child, _ in quorum.riders)):
                self._index[rank] = index
        self.windowed = tuple(k for k, q in enumerate(plan.quorums) if q.window < math.inf)
        self.named = frozenset(rank for rank, index in enumerate(self._index) if index >= 0)

    def quorum(self, rank: int) -> Quorum:
        """The quorum that names `rank`, as a member or rider."""
        assert self._index[rank] >= 0
        return self.plan.quorums[self._index[rank]]

    def puller(self, rank: int) -> int | None:
        """Whose link carries the parameters of a rank that starts by itself; None: it is free."""
        quorum = self.quorum(rank)
        if quorum.via is Via.LEADER:
            return quorum.members[0]
        return rank if quorum.via is Via.SERVER else None

    def add(self, g: Gradient) -> None:
        """`g` has arrived; arrivals come in order of (arrival, rank)."""
        index = self._index[g.rank]
        if g.joins:
            self._joining[index].append(g)
            return
        ready = self._ready[index]
        ready.append(g)
        if len(ready) >= self.plan.quorums[index].needed:
            self.closable.add(index)

    def sort(self) -> None:
        """Put gradients that were added out of order in order."""
        for ready in self._ready:
            ready.sort(key=lambda g: (g.arrival, g.rank))

    def expiry(self, index: int) -> float:
        """When the window of a quorum expires; infinity where nobody waits in it."""
        ready = self._ready[index]
        return ready[0].arrival + self.plan.quorums[index].window if ready else math.inf

    def take(self, index: int) -> tuple[list[Gradient], list[Gradient]]:
        """Re-arm a quorum: its contributors, and what else is ready and too late for them."""
        quorum = self.plan.quorums[index]
        ready, joining = self._ready[index], self._joining[index]
        contributors, rest = ready[: quorum.needed] + joining, ready[quorum.needed :]
        queued = rest if quorum.late is Late.QUEUE else []
        self._ready[index] = queued
        self._joining[index] = rest if quorum.late is Late.JOIN else []
        if len(queued) < quorum.needed:
            self.closable.discard(index)
        return contributors, rest
