"""Every gradient is an update of its own, on arrival, and its rank goes on at once.

No rank waits. A gradient is as stale as the number of updates during its step.

Source: Dean et al., "Large Scale Distributed Deep Networks" (Downpour SGD), NIPS 2012; ASP in
some papers.
"""

from dataclasses import dataclass

from simstrag.contract import Plan, Quorum, Via, View


@dataclass(frozen=True)
class Asgd:
    """Asynchronous SGD through a parameter server; no parameters."""

    title = "asynchronous SGD"
    lane = "C"

    def plan(self, view: View) -> Plan:
        return Plan.standing(Quorum(count=1, via=Via.SERVER))
