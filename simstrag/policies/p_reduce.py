"""The first P ranks to finish average their models by all-reduce and go on, then the next P.

Groups form in order of arrival, and several may communicate at once. A slow rank delays only its
group.

Source: Miao et al., "Heterogeneity-Aware Distributed Machine Learning Training via Partial
Reduce", SIGMOD 2021.

The paper's: groups of P, averaged models, equal weights.  The released code's (Hetu): `window`; its
first version closes a group 1 ms after its first rank, and P is all ranks by default.  Ours: P = 2,
the smallest group that averages, and no window.  Left out: the staleness-aware weights, and the
filter that keeps groups from splitting the ranks into cliques that never mix.
"""

import math
from dataclasses import dataclass

from simstrag.contract import Plan, PlanError, Quorum, View


@dataclass(frozen=True)
class PReduce:
    """Partial reduce.

    p: P, ranks per group; `inf` is all of them.
    window: seconds after its first rank at which a group closes with the ranks it has.
    """

    title = "partial reduce"
    lane = "C"

    p: int | None = 2
    window: float = math.inf

    def __post_init__(self) -> None:
        if self.p is not None and self.p < 1:
            raise ValueError(f"p must be 1 or more, or inf, not {self.p}")
        if not self.window >= 0:
            raise ValueError(f"window must be 0 or more seconds, not {self.window}")

    def plan(self, view: View) -> Plan:
        if self.p is not None and self.p > view.world_size:
            raise PlanError(f"p_reduce: p={self.p} is more than {view.world_size} ranks")
        return Plan.standing(Quorum(count=self.p, window=self.window), average=True)
