"""The K fastest gradients make an update; the stragglers' gradients join the next one.

No update waits beyond the K-th gradient, and no work is lost: a straggler's gradient is one update
stale, or more if it misses that one too.

Source: Xu et al., "Live Gradient Compensation for Evading Stragglers in Distributed Learning",
INFOCOM 2021.

The paper's: the K fastest, and late gradients in the next update.  The paper also cuts each batch
into blocks and adds the finished blocks; here a late gradient is added as a whole.  K = N-2 is the
baseline's in STAR's released code (arXiv:2512.09685).  Ours: weights 1/N for early and late alike,
where that code updates in two phases.
"""

from dataclasses import dataclass, field

from simstrag.contract import Late, Plan, PlanError, Quorum, Via, View


@dataclass(frozen=True)
class Lgc:
    """Live gradient compensation.

    k: K, gradients per update; `auto` is all but two, and at least one.
    via: `server` or `allreduce` (ranks outside the collective pull at no cost, which is assumed).
    """

    title = "Live Gradient Compensation"
    lane = "B"

    k: int | None = field(default=None, metadata={"none": "auto"})
    via: Via = Via.SERVER

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise ValueError(f"k must be 1 or more, or auto, not {self.k}")
        if self.via is Via.LEADER:
            raise ValueError("via must be server or allreduce, not leader")

    def plan(self, view: View) -> Plan:
        n = view.world_size
        k = max(n - 2, 1) if self.k is None else self.k
        if k > n:
            raise PlanError(f"lgc: k={k} is more than {n} ranks")
        return Plan.standing(Quorum(count=k, via=self.via, late=Late.JOIN))
