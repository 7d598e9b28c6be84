"""Every rank takes h steps on a model of its own, then an outer optimizer steps by their mean.

The parameters less the mean of the models are the outer optimizer's gradient.  Its momentum makes
up for rare averages; communication and waiting come once in h steps, as in local_sgd.

Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
arXiv:2311.08105.

The paper's: the algorithm, with AdamW inside, whose state each rank keeps, and Nesterov momentum
outside, rate 0.7 and momentum 0.9; it takes h = 500.  Ours: the default of 8, for runs of a few
hundred steps; which optimizer is inside is the learner's choice.  `lr=1,momentum=0,nesterov=no` is
local_sgd.
"""

from dataclasses import dataclass

from simstrag.contract import Outer, Plan, Quorum, View


@dataclass(frozen=True)
class Diloco:
    """Local steps with an outer optimizer.

    h: H, private steps of each rank between two outer steps.
    lr: learning rate of the outer optimizer.
    momentum: of the outer optimizer.
    nesterov: whether that is Nesterov's.
    """

    title = "DiLoCo"
    lane = "C"

    h: int = 8
    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if self.h < 1:
            raise ValueError(f"h must be 1 or more, not {self.h}")
        Outer(self.lr, self.momentum, self.nesterov)

    def plan(self, view: View) -> Plan:
        outer = Outer(self.lr, self.momentum, self.nesterov)
        return Plan.standing(Quorum(steps=self.h), average=True, outer=outer)
