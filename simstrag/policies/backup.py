"""An update takes the first N-b gradients; the steps of the b slowest ranks are cancelled.

Each race decides anew which ranks lose. No stale gradient is applied; the losers' work is lost.

Source: Chen et al., "Revisiting Distributed Synchronous SGD", 2016, arXiv:1604.00981; K-sync
with K = N-b in Dutta et al., "Slow and Stale Gradients Can Win the Race", 2018, arXiv:1803.01113.

The papers take the mean of the K gradients, which is `weigh=members`.  By this project's defaults
every sample weighs 1/(N*b), so an update of K gradients is K/N of a full step, whose worth the
noise-scale learner knows.  Losers are cancelled at once (`late=drop` lets them finish): rule 14 of
docs/semantics.md, shown by tests/engine/test_stories.py.
"""

from dataclasses import dataclass

from simstrag.contract import Late, Plan, PlanError, Quorum, Via, View, Weigh


@dataclass(frozen=True)
class Backup:
    """Backup workers.

    b: gradients that an update leaves out.
    late: `abort` cancels the losers' steps at once, `drop` lets them finish and drops the result.
    via: `server` or `allreduce` (the losers then pull at no cost, which is assumed).
    weigh: `world`, every sample 1/(N*b), or `members`, the mean of an update's gradients.
    """

    title = "backup workers"
    lane = "B"

    b: int = 1
    late: Late = Late.ABORT
    via: Via = Via.SERVER
    weigh: Weigh = Weigh.WORLD

    def __post_init__(self) -> None:
        if self.b < 0:
            raise ValueError(f"b must be 0 or more, not {self.b}")
        if self.late not in (Late.ABORT, Late.DROP):
            raise ValueError(f"late must be abort or drop, not {self.late.value}")
        if self.via is Via.LEADER:
            raise ValueError("via must be server or allreduce, not leader")

    def plan(self, view: View) -> Plan:
        n = view.world_size
        if self.b >= n:
            raise PlanError(f"backup: b={self.b} of {n} ranks leaves no gradient to wait for")
        quorum = Quorum(count=n - self.b, via=self.via, late=self.late)
        return Plan.standing(quorum, weigh=self.weigh)
