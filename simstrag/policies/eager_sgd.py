"""An all-reduce starts as soon as one rank or half of them have a gradient; the others send zero.

A gradient that comes later is sent with the next all-reduce, without counting towards it.

Source: Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective
Operations", PPoPP 2020, arXiv:1908.04207.

The paper's: partial all-reduces among all ranks, solo and majority, whose result is divided by N,
and late gradients in the next one.  There a majority starts at the finish of a rank drawn at
random, so (N + 1) / 2 ranks are there on average.  Here it starts with that many, rounded down.
Ours: a late rank waits for the update that takes its gradient, where in the paper it goes on at
once, and adds its next gradient to the late one.
"""

from dataclasses import dataclass, field

from simstrag.contract import Late, Plan, Quorum, View


@dataclass(frozen=True)
class EagerSgd:
    """Eager-SGD by partial collectives.

    start: `solo` starts with one gradient, `majority` with those of at least half the ranks, 2 of 4
        and 3 of 5.
    """

    title = "eager-SGD"
    lane = "B"

    start: str = field(default="majority", metadata={"allowed": "solo or majority"})

    def __post_init__(self) -> None:
        if self.start not in ("solo", "majority"):
            raise ValueError(f"start must be solo or majority, not {self.start}")

    def plan(self, view: View) -> Plan:
        count = 1 if self.start == "solo" else (view.world_size + 1) // 2
        return Plan.standing(Quorum(count=count, partial=True, late=Late.JOIN))
