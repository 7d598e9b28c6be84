"""Every gradient is an update of its own, on arrival, unless it is r or more versions stale.

No rank waits. A gradient that is too stale is ignored, and its rank pulls the present parameters.

Source: Maranjyan et al., "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time
Complexity", ICML 2025, arXiv:2501.16168.

The paper's: the rule, in its form without stopping computations under way, with
R = max(1, sigma^2/epsilon) of the gradient's variance and the accuracy wanted.  Ours: R = 2N, since
those are unknown here.  Equally fast ranks make about N-1 updates in one step, so R = 2N ignores
ranks more than about twice as slow.
"""

from dataclasses import dataclass, field

from simstrag.contract import Damping, Plan, Quorum, Via, View


@dataclass(frozen=True)
class Ringmaster:
    """Asynchronous SGD with a delay threshold.

    r: R, the staleness in versions from which a gradient is ignored; `auto` is 2N.
    """

    title = "Ringmaster ASGD"
    lane = "C"

    r: int | None = field(default=None, metadata={"none": "auto"})

    def __post_init__(self) -> None:
        if self.r is not None and self.r < 1:
            raise ValueError(f"r must be 1 or more, or auto, not {self.r}")

    def plan(self, view: View) -> Plan:
        cutoff = Damping(cutoff=2 * view.world_size if self.r is None else self.r)
        return Plan.standing(Quorum(count=1, via=Via.SERVER), damping=cutoff)
