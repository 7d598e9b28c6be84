"""Every rank takes h steps on a model of its own, then one all-reduce averages all models.

Communication and waiting come once in h steps, so that single slow steps even out before the
average. A rank that is always slow still delays all others.

Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv:1805.09767;
for deep networks: Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020,
arXiv:1808.07217.

The papers': the algorithm with one h for all, which they tune.  Ours: the default of 8.  Left out:
the second paper's start with ordinary steps (post-local SGD).
"""

from dataclasses import dataclass

from simstrag.contract import Plan, Quorum, View


@dataclass(frozen=True)
class LocalSgd:
    """Local SGD, or periodic model averaging.

    h: H, private steps of each rank between two averages.
    """

    title = "local SGD"
    lane = "C"

    h: int = 8

    def __post_init__(self) -> None:
        if self.h < 1:
            raise ValueError(f"h must be 1 or more, not {self.h}")

    def plan(self, view: View) -> Plan:
        return Plan.standing(Quorum(steps=self.h), average=True)
