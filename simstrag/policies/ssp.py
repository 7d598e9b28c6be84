"""Every gradient is an update of its own, but no rank may be more than `bound` steps ahead.

A rank that would be further ahead of the slowest blocks before its next step, and pulls again when
it is released.

Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", NIPS 2013; the usual bound is 3.
"""

from dataclasses import dataclass

from simstrag.contract import Plan, Quorum, Via, View


@dataclass(frozen=True)
class Ssp:
    """Stale synchronous parallel.

    bound: s, steps that a rank may be ahead of the slowest; None (`inf`) is asgd.
    """

    title = "stale-synchronous parallel"
    lane = "C"

    bound: int | None = 3

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 0:
            raise ValueError(f"bound must be 0 or more, or inf, not {self.bound}")

    def plan(self, view: View) -> Plan:
        return Plan.standing(Quorum(count=1, via=Via.SERVER), bound=self.bound)
