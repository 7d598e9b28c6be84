"""Every gradient is an update of its own, on arrival, with a weight that falls with staleness.

No rank waits. A gradient of staleness tau is applied with 1/tau of the learning rate.

Source: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016,
arXiv:1511.05950.

The paper's: the weight 1/tau; `power=0.5,shift=1` is 1/sqrt(1+tau) of FedBuff (Nguyen et al.,
AISTATS 2022, arXiv:2106.06639).  The paper applies it to n-softsync, whose updates take N/n
gradients; here n = N, fully asynchronous.  Ours: weight 1 at tau = 0.
"""

from dataclasses import dataclass

from simstrag.contract import Damping, Plan, Quorum, Via, View


@dataclass(frozen=True)
class StalenessLr:
    """Staleness-aware learning rate: a gradient weighs max(shift + tau, 1)**-power.

    power: how steeply the weight falls with staleness; 0 is asgd.
    shift: added to the staleness tau.
    """

    title = "staleness-aware asynchronous SGD"
    lane = "C"

    power: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("power", self.power), ("shift", self.shift)):
            if not value >= 0:
                raise ValueError(f"{name} must be 0 or more, not {value}")

    def plan(self, view: View) -> Plan:
        return Plan.standing(
            Quorum(count=1, via=Via.SERVER), damping=Damping(self.power, self.shift)
        )
