"""Every x gradients that arrive at the server make one update, from any ranks.

Early ranks wait for the x-th gradient, late gradients count for the next update and are never lost,
and x gradients make x/N of a full step.  `x=1` is asgd, `x=N` is bsp through a server.

Source: STAR's static x-order: Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs", 2025, arXiv:2512.09685.  K-async: Dutta et al., "Slow and Stale Gradients Can Win
the Race", 2018, arXiv:1803.01113.  Only the abstract and the first sentences of STAR's introduction
were at hand; they do not give the rule. Rule and weights 1/N are the released code's.
"""

from dataclasses import dataclass, field

from simstrag.contract import Plan, PlanError, Quorum, Via, View


@dataclass(frozen=True)
class KAsync:
    """Updates of the first x gradients.

    x: gradients per update; None (`all`) is N.
    """

    title = "K-async SGD"
    lane = "C"

    x: int | None = field(default=None, metadata={"none": "all"})

    def __post_init__(self) -> None:
        if self.x is not None and self.x < 1:
            raise ValueError(f"x must be 1 or more, or all, not {self.x}")

    def plan(self, view: View) -> Plan:
        n = view.world_size
        if self.x is not None and self.x > n:
            raise PlanError(f"k_async: x={self.x} is more gradients than {n} ranks have")
        return Plan.standing(Quorum(count=self.x, via=Via.SERVER))
