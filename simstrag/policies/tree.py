"""Gradients are summed in groups of ranks, and the server gets one message of each group.

Every update waits for one gradient of every rank, as under `bsp:via=server`.  The first rank of a
group adds the gradients of the others to its own, pushes the sum, and relays the parameters.  The
server is then a queue of N/fan jobs, not N, and every gradient travels once more.

Source: STAR's communication tree: Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685.  The abstract alone was at hand for the paper.  From the
released code: parents and children, one level deep, given by hand; its example puts eight ranks on
four parents; the update comes when all parents have pushed.  Ours: groups of consecutive ranks,
which is the example's tree, and that the update divides by N as without a tree (the code does not).
"""

from dataclasses import dataclass

from simstrag.policy import Plan, Quorum, Via, View


@dataclass(frozen=True)
class Tree:
    """A gradient tree of one level under synchronous training.

    fan: ranks of a group, of which the first is the parent.
    """

    title = "gradient tree of STAR [our reading]"
    lane = "A"

    fan: int = 2

    def __post_init__(self) -> None:
        if self.fan < 2:
            raise ValueError(f"fan must be 2 or more, not {self.fan}")

    def plan(self, view: View) -> Plan:
        ranks = range(view.world_size)
        parents = tuple((rank, rank - rank % self.fan) for rank in ranks if rank % self.fan)
        return Plan.standing(Quorum(via=Via.SERVER, parents=parents))
