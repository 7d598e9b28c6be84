"""After a few updates the slowest ranks leave for good, and the others take over their samples.

Every update waits for all ranks that are left.  It has as many samples as one of all ranks, and
each sample the same weight: the mathematics of synchronous training does not change.

Source: the validation of nodes of Xiong et al., "SuperBench: Improving Cloud AI Infrastructure
Reliability with Proactive Validation", USENIX ATC 2024, arXiv:2402.06194.

Theirs: nodes are measured before a job gets them, and defective ones are kept out.  Ours: the job's
own first updates are the measurement, `leave_out` ranks leave however little slower they are, and
none comes back.  With `ranks` those that are known to be slow leave from the start.
"""

from dataclasses import dataclass, field

import numpy as np

from simstrag.contract import WINDOW, Learnt, Plan, PlanError, Quorum, Review, View
from simstrag.contract.ties import argsort


@dataclass(frozen=True)
class Fewer:
    """Synchronous training with some of the ranks.

    leave_out: ranks that leave.
    measure: updates after which the ranks with the largest median step leave.
    ranks: ranks that leave from the start, such as 3+5; `auto` measures.
    """

    title = "fewer workers"
    lane = "A"

    leave_out: int = 1
    measure: int = 10
    ranks: str | None = field(default=None, metadata={"none": "auto"})
    state_: Learnt[Plan] = field(default_factory=Learnt, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.leave_out < 0:
            raise ValueError(f"leave_out must be 0 or more, not {self.leave_out}")
        if not 1 <= self.measure <= WINDOW:
            raise ValueError(f"measure must be 1 to {WINDOW} updates, not {self.measure}")
        if self.ranks is not None and not all(part.isdecimal() for part in self.ranks.split("+")):
            raise ValueError(f"ranks must be numbers of ranks, such as 3+5, not '{self.ranks}'")

    def plan(self, view: View) -> Plan:
        if self.state_.value is not None:
            return self.state_.value
        n = view.world_size
        if self.ranks is not None:
            out = sorted({int(part) for part in self.ranks.split("+")})
            if out[-1] >= n:
                raise PlanError(f"fewer: rank {out[-1]} is beyond a world of {n} ranks")
        elif view.steps.min() < self.measure and self.leave_out < n:
            return Plan.standing(review=Review(updates=self.measure))
        else:
            times = view.medians("local_times", self.measure)
            out = argsort(times)[max(n - self.leave_out, 0) :].tolist()
        if len(out) >= n:
            raise PlanError(f"fewer: without {len(out)} of {n} ranks there is none")
        self.state_.value = without(out, n)
        return self.state_.value


def without(out: list[int], n: int) -> Plan:
    """The plan in which some of n ranks do nothing, and the others do their samples.

    >>> without([1], 3).batch
    (1.5, 0.0, 1.5)
    """
    members = np.ones(n, dtype=np.bool_)
    members[out] = False
    if not out:
        return Plan()
    quorum = Quorum(tuple(np.flatnonzero(members).tolist()))
    return Plan((quorum,), batch=np.where(members, n / (n - len(out)), 0.0))
