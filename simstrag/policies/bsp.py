"""Every update waits for one gradient of every rank, and no rank goes on before it.

The cluster is as fast as its slowest rank, and no gradient is stale.
`via=server` sends the gradients through a parameter server instead of one all-reduce.

Source: Valiant, "A bridging model for parallel computation", CACM 33(8), 1990; as PyTorch does
it: Li et al., "PyTorch Distributed", VLDB 2020, arXiv:2006.15704.
"""

from dataclasses import dataclass

from simstrag.contract import Plan, Quorum, Via, View


@dataclass(frozen=True)
class Bsp:
    """Bulk-synchronous parallel.

    via: `allreduce` (one collective) or `server` (each gradient one job of a parameter server).
    """

    title = "synchronous training"
    lane = "A"

    via: Via = Via.ALLREDUCE

    def __post_init__(self) -> None:
        if self.via is Via.LEADER:
            raise ValueError("via must be allreduce or server, not leader")

    def plan(self, view: View) -> Plan:
        return Plan.standing(Quorum(via=self.via))
