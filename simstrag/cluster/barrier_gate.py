"""Holds a job at its barrier until a manager lets it go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from simstrag.contract import ALL, Plan, Quorum, Review, Via


def is_barrier(plan: Plan) -> bool:
    """Whether each update of a plan waits for all ranks that it names.

    >>> is_barrier(Plan()), is_barrier(Plan((Quorum(count=3),)))
    (True, False)
    """
    first = plan.quorums[0]
    waits = first.count is None and first.window == math.inf and not first.riders
    return waits and len(plan.quorums) == 1


def barrier_of(plan: Plan) -> Plan:
    """The barrier at which a job begins whose first plan leaves it; its policy is soon asked again.

    >>> barrier_of(Plan((Quorum(count=1, via=Via.SERVER),))).quorums == (Quorum(via=Via.SERVER),)
    True
    """
    reduces = plan.quorums[0].via is Via.ALLREDUCE
    whole = Quorum(ALL, via=Via.ALLREDUCE if reduces else Via.SERVER)
    return replace(plan, quorums=(whole,), bound=None, fuse=False, review=Review(updates=1))


@dataclass(slots=True, eq=False)
class Gate:
    """Sees each new plan of one job's policy, and lets it take force or not.

    workers: ranks of the job.
    asks: whether it is held at its barrier, and a manager has not answered since.
    permitted: whether a manager has let it go; until its policy returns to the barrier.
    left: whether it has gone.
    granted, refused: how often it was.
    """

    workers: int
    asks: bool = False
    permitted: bool = False
    left: bool = False
    granted: int = 0
    refused: int = 0
    _in_force: Plan | None = field(default=None, repr=False)

    def __call__(self, plan: Plan) -> Plan:
        """The plan that takes force where the policy's is this one, a resolved one."""
        goes = not is_barrier(plan)
        self.asks = goes and not self.permitted
        if not self.asks:
            self.permitted = self.left = goes
            self._in_force = plan
        elif self._in_force is None:
            self._in_force = barrier_of(plan).resolved(self.workers)
        assert self._in_force is not None
        return self._in_force

    def answer(self, granted: bool) -> None:
        """A manager has answered; a permitted job goes at its next review."""
        self.asks, self.permitted = False, granted
        self.granted += int(granted)
        self.refused += int(not granted)
