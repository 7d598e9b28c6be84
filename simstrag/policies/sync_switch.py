"""A first share of the work is bulk-synchronous, the rest asynchronous: BSP, then ASGD.

The early updates, which the paper finds to matter most, are made without staleness; what is left
gains the speed of ASGD.  A straggler in the synchronous part is waited for, or escaped by ASGD
while it lasts (`greedy`), or left out until the switch (`elastic`).

Source: Li, Mangoubi, Xu & Guo, "Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep
Learning", ICDCS 2021, arXiv:2104.08364.

The paper's: one switch, by a share of the work found beforehand, and the two ways with stragglers;
the shares it settles on are 6.25 % (ResNet32 on CIFAR-10, 8 workers), 12.5 % (ResNet50 on
CIFAR-100, 8 workers) and 50 % (ResNet32, 16 workers).  Ours: who is a straggler (`ratio`, a window
of 5 steps).  Left out are the search for the share, the cost of reconfiguring the job, and what the
paper changes with the protocol, momentum and learning rate: the plan has no words for them.
"""

import enum
import math
from dataclasses import dataclass, field

from simstrag.policies.estimators.detectors import median
from simstrag.policy import Plan, PlanError, Quorum, Review, Via, View
from simstrag.ties import is_less

RECENT = 5
"""Recent steps of a rank whose median is compared."""
EVERY_UPDATE = Review(updates=1)
ASYNCHRONOUS = Quorum(count=1, via=Via.SERVER)


class StragglerHandling(enum.Enum):
    """What is done about a straggler in the synchronous part."""

    NONE = "none"
    GREEDY = "greedy"
    ELASTIC = "elastic"


@dataclass(slots=True)
class _State:
    """The last plan, who has been left out, and how often the protocol has changed."""

    plan: Plan | None = None
    evicted: frozenset[int] = frozenset()
    switches: int = 0


@dataclass(frozen=True)
class SyncSwitch:
    """BSP for a share of the samples, then ASGD.

    share: of all samples, 0 (ASGD) to 1 (BSP); the switch is at the first update that reaches it.
    stragglers: `none` waits for them; `greedy` is asynchronous while there is one; `elastic` goes
        on without it until the switch, in which all take part again.
    ratio: a rank is a straggler if the median of its last 5 local times exceeds this many times the
        median of the ranks that take part.
    via: `allreduce` or `server`, in the synchronous part.
    samples: of the whole run; `auto` takes what the scenario says.
    """

    share: float = 0.125
    stragglers: StragglerHandling = StragglerHandling.NONE
    ratio: float = 1.2
    via: Via = Via.ALLREDUCE
    samples: int | None = field(default=None, metadata={"none": "auto"})
    state_: _State = field(default_factory=_State, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be 0 to 1, not {self.share}")
        if not self.ratio > 1:
            raise ValueError(f"ratio must be above 1, not {self.ratio}")
        if self.via is Via.LEADER:
            raise ValueError("via must be allreduce or server, not leader")
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples must be 1 or more, or auto, not {self.samples}")

    def plan(self, view: View) -> Plan:
        state = self.state_
        before, after = state.plan, self._planned(view, state)
        if before is None:
            state.plan = after
        elif after != before:
            state.switches += _asynchronous(after) != _asynchronous(before)
            state.plan = after
        assert state.plan is not None
        return state.plan

    def summary(self) -> dict[str, int | float]:
        """How often the protocol changed, and how many ranks were left out until the switch."""
        return {"switches": self.state_.switches, "evictions": len(self.state_.evicted)}

    def _planned(self, view: View, state: _State) -> Plan:
        left = math.ceil(self.share * self._total(view)) - view.samples
        if left <= 0:
            return Plan((ASYNCHRONOUS,))
        if self.stragglers is StragglerHandling.NONE:
            return Plan((Quorum(via=self.via),), review=Review(samples=left))
        slow = self._slow(view, state.evicted)
        if self.stragglers is StragglerHandling.GREEDY:
            quorum = ASYNCHRONOUS if slow else Quorum(via=self.via)
            return Plan((quorum,), suspects=slow, review=EVERY_UPDATE)
        state.evicted |= slow
        rest = tuple(rank for rank in range(view.world_size) if rank not in state.evicted)
        quorum = Quorum(rest, via=self.via)
        return Plan((quorum,), suspects=state.evicted, review=EVERY_UPDATE)

    def _total(self, view: View) -> int:
        total = view.hints.samples if self.samples is None else self.samples
        if total is None:
            raise PlanError(
                "sync_switch: nothing says how many samples the run is to have, of which it is to "
                f"spend {self.share:g} on BSP; give samples=..., or samples in the scenario"
            )
        return total

    def _slow(self, view: View, evicted: frozenset[int]) -> frozenset[int]:
        """The stragglers among those who take part, once all of these have a full window.

        A rank left out shows no new times; its last ones would say for ever that it is slow.
        """
        ranks = [rank for rank in range(view.world_size) if rank not in evicted]
        x = median(view.local_times[ranks, -RECENT:])
        slow = is_less(self.ratio * median(x), x)
        return frozenset(rank for rank, is_slow in zip(ranks, slow, strict=True) if is_slow)


def _asynchronous(plan: Plan) -> bool:
    return plan.quorums[0] == ASYNCHRONOUS
