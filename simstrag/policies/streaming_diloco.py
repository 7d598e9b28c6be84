"""DiLoCo of one part of the model after the other, while ranks go on computing.

The model has p fragments.  After every h/p steps an all-reduce carries one of them, in turn, and an
outer optimizer steps it.  Ranks take tau steps on meanwhile; then each mixes the new fragment with
its own, of which it keeps the share alpha.

Source: Douillard et al., "Streaming DiLoCo with Overlapping Communication: Towards a Distributed
Free Lunch", 2025, arXiv:2501.18512; what happens in which step is that of its code in torchft.

The paper's: fragments in turn, tau, alpha = 0.5, Nesterov momentum outside.  Ours: the defaults of
h, p and tau; the outer rate 0.7 and momentum 0.9 of DiLoCo.  A fragment is an equal run of the
parameters, where the paper takes every so many layers.  Left out: outer gradients in 4 bits.
"""

from dataclasses import dataclass

from simstrag.contract import Outer, Plan, Quorum, View


@dataclass(frozen=True)
class StreamingDiloco:
    """DiLoCo by fragments, with communication beside computing.

    h: H, private steps between two outer steps of one fragment; a multiple of p.
    p: P, fragments.
    tau: steps that a rank takes on while a fragment is under way; fewer than h/p.
    alpha: share of its own fragment that a rank keeps.
    lr: learning rate of the outer optimizer.
    momentum: of the outer optimizer, Nesterov's; 0 for none.
    """

    title = "Streaming DiLoCo"
    lane = "C"

    h: int = 8
    p: int = 2
    tau: int = 1
    alpha: float = 0.5
    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.p < 1:
            raise ValueError(f"p must be 1 or more, not {self.p}")
        if self.h < 1 or self.h % self.p:
            raise ValueError(f"h must be a multiple of p, not {self.h} of {self.p}")
        if not 0 <= self.tau < self.h // self.p:
            raise ValueError(f"tau must be 0 or more and below h/p, not {self.tau}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, not {self.alpha:g}")
        _ = self.outer

    def plan(self, view: View) -> Plan:
        quorum = Quorum(steps=self.h // self.p, overlap=self.tau)
        return Plan.standing(quorum, average=True, outer=self.outer, fragments=self.p)

    @property
    def outer(self) -> Outer:
        """The outer optimizer."""
        return Outer(self.lr, self.momentum, self.momentum > 0, mix=self.alpha)
