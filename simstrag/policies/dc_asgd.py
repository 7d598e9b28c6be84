"""Every gradient is an update of its own, corrected by how far the parameters have moved since.

A gradient g becomes g + strength * g * g * (parameters now - parameters pulled), by element: the
first order of its change, with g * g for the Hessian's diagonal.

Source: Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017,
arXiv:1609.08326.

The paper's: the correction, with a constant strength or with one over the root of the mean square
of gradients (`strength=2,decay=0.95`, their DC-ASGD-a).  The constants are those of A2S's released
code; which serve depends on the loss.  Ours: weights 1/N as under asgd, where the paper leaves the
learning rate as it is.  Times are those of asgd: the correction is assumed to cost nothing.
"""

from dataclasses import dataclass

from simstrag.contract import Compensation, Plan, Quorum, Via, View


@dataclass(frozen=True)
class DcAsgd:
    """Delay-compensated asynchronous SGD.

    strength: lambda, of the correction.
    decay: of the mean square of gradients, for a strength that adapts itself; 0 for a constant one.
    """

    title = "delay-compensated asynchronous SGD"
    lane = "C"

    strength: float = 0.04
    decay: float = 0.0

    def __post_init__(self) -> None:
        Compensation(self.strength, self.decay)

    def plan(self, view: View) -> Plan:
        compensation = Compensation(self.strength, self.decay)
        return Plan.standing(Quorum(count=1, via=Via.SERVER), compensation=compensation)
