"""Gradients are summed in groups of ranks, and the server gets one message of each group.

Every update waits for one gradient of every rank, as under `bsp:via=server`.  The parent of a group
adds the gradients of the others to its own, pushes the sum, and relays the parameters.  The server
is then a queue of as many jobs as there are groups, and every gradient travels once more.

Source: STAR's communication tree: Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685.  The abstract alone was at hand for the paper.  From the
released code: parents and children, one level deep, given by hand; its example puts eight ranks on
four parents; the update comes when all parents have pushed.  Ours: groups of consecutive ranks,
which is the example's tree, or of the ranks of a node, and the choice of the parent.  The update
divides by N as without a tree; the code does not.
"""

import enum
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Bools
from simstrag.contract import Plan, PlanError, Quorum, Review, Via, View
from simstrag.policies.estimators.gradient_trees import with_trees
from simstrag.policies.estimators.predictors import median, predict
from simstrag.policies.estimators.time_to_progress import straggle


class By(enum.Enum):
    """Which ranks form a group: consecutive ones, or those of a node."""

    RANK = "rank"
    NODE = "node"


@dataclass(slots=True)
class _State:
    """The last plan by node, and the ranks that straggled then."""

    plan: Plan | None = None
    slow: Bools | None = None


@dataclass(frozen=True)
class Tree:
    """A gradient tree of one level under synchronous training.

    by: `rank`: the first of consecutive ranks is the parent. `node`: of a node's ranks that do not
        straggle, the one that communicates in the least time; again when others straggle.
    fan: ranks of a group by rank.
    ratio: a rank straggles if its step is longer than the fastest rank's by more than this share.
    """

    title = "gradient tree of STAR [our reading]"
    lane = "A"

    fan: int = 2
    by: By = By.RANK
    ratio: float = 0.2
    state_: _State = field(default_factory=_State, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.fan < 2:
            raise ValueError(f"fan must be 2 or more, not {self.fan}")
        if not self.ratio > 0:
            raise ValueError(f"ratio must be above 0, not {self.ratio}")

    def plan(self, view: View) -> Plan:
        if self.by is By.NODE:
            return self._by_node(view)
        ranks = range(view.world_size)
        parents = tuple((rank, rank - rank % self.fan) for rank in ranks if rank % self.fan)
        return Plan.standing(Quorum(via=Via.SERVER, parents=parents))

    def _by_node(self, view: View) -> Plan:
        """A plan; the same object while the same ranks straggle, or a rank's time is unknown."""
        state = self.state_
        if view.hints.nodes is None:
            raise PlanError("tree:by=node: the node of each rank is unknown (hints.nodes)")
        t = predict(median, view)
        known = not np.isnan(t).any()
        slow = straggle(t, self.ratio) if known else np.zeros(len(t), np.bool_)
        stays = state.slow is not None and (not known or np.array_equal(slow, state.slow))
        if state.plan is None or not stays:
            suspects = np.flatnonzero(slow) if known else None
            quorums = with_trees((Quorum(via=Via.SERVER),), view, slow)
            state.plan = Plan(quorums, suspects=suspects, review=Review(updates=1))
            state.slow = slow
        return state.plan
