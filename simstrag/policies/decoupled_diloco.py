"""DiLoCo that waits for the K fastest ranks, and a while longer for the others.

A fragment's outer step comes with the models of the first K ranks and of those that follow within
the grace.  A rank that is later goes into the next one.  Ranks compute on meanwhile.

Source: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training", 2026,
arXiv:2604.21428.

The paper's: a minimum quorum, a grace window, fragments, weights by what each rank computed, and
an outer optimizer with Nesterov momentum.  Its grace adapts itself, and it weighs by tokens times
tokens per step; here the grace is fixed, and weights are by samples.  Ours: K = N-1, all other
defaults, and an all-reduce among the ranks that are there, where the paper has a synchronizer of
its own.  The outer gradient of a rank that was late counts from the parameters that it started
from.  We know the paper by its abstract and by others' summaries of its algorithm.
"""

from dataclasses import dataclass, field

from simstrag.contract import Plan, PlanError, Quorum, View
from simstrag.policies.streaming_diloco import StreamingDiloco


@dataclass(frozen=True)
class DecoupledDiloco:
    """DiLoCo with a minimum quorum and a grace.

    k: K, ranks that an outer step needs; `auto` is all but one, and at least one.
    grace: seconds after the K-th rank in which others may still come.
    h: H, private steps between two outer steps of one fragment; a multiple of p.
    p: P, fragments.
    tau: steps that a rank takes on while its fragment is under way; fewer than h/p.
    alpha: share of its own fragment that a rank keeps.
    lr: learning rate of the outer optimizer.
    momentum: of the outer optimizer, Nesterov's; 0 for none.
    """

    title = "Decoupled DiLoCo"
    lane = "C"

    k: int | None = field(default=None, metadata={"none": "auto"})
    grace: float = 0.0
    h: int = 8
    p: int = 2
    tau: int = 1
    alpha: float = 0.5
    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise ValueError(f"k must be 1 or more, or auto, not {self.k}")
        if not 0 <= self.grace < float("inf"):
            raise ValueError(f"grace must be 0 or more seconds, not {self.grace:g}")
        _ = self._streaming

    def plan(self, view: View) -> Plan:
        n = view.world_size
        k = max(n - 1, 1) if self.k is None else self.k
        if k > n:
            raise PlanError(f"decoupled_diloco: k={k} is more than {n} ranks")
        quorum = Quorum(
            count=k, steps=self.h // self.p, overlap=self.tau, grace=self.grace * (k < n)
        )
        return Plan.standing(quorum, average=True, outer=self._streaming.outer, fragments=self.p)

    @property
    def _streaming(self) -> StreamingDiloco:
        """The policy of the same fragments, which checks them."""
        return StreamingDiloco(self.h, self.p, self.tau, self.alpha, self.lr, self.momentum)
