"""A first share of the work is bulk-synchronous, the rest asynchronous: BSP, then ASGD.

The early updates, which matter most according to the paper, are made without staleness; the rest
gains the speed of ASGD.  In the synchronous part all ranks wait for a straggler, or train by ASGD
while it lasts (`greedy`), or leave it out until the switch (`elastic`).

Source: Li, Mangoubi, Xu & Guo, "Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep
Learning", ICDCS 2021, arXiv:2104.08364.

The paper's: one switch after a given share of the work, and the two reactions to stragglers.  Its
shares are 6.25 % (ResNet32 on CIFAR-10, 8 workers), 12.5 % (ResNet50 on CIFAR-100, 8 workers) and
50 % (ResNet32, 16 workers).  Ours: the definition of a straggler (`ratio`, a window of 5 steps).
Left out: the search for the share, the cost of reconfiguration, and the changes of momentum and
learning rate, which a plan cannot express.
"""

import enum
import math
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Bools, Floats
from simstrag.contract import UNLIMITED, Block, Plan, PlanError, Quorum, Review, Via, View
from simstrag.contract.ties import is_less
from simstrag.policies.estimators.columns import medians_of_known

RECENT = 5
"""Recent steps of a rank in its median."""
EVERY_UPDATE = Review(updates=1)
ASYNCHRONOUS = Quorum(count=1, via=Via.SERVER)


class StragglerHandling(enum.Enum):
    """The reaction to a straggler in the synchronous part."""

    NONE = "none"
    GREEDY = "greedy"
    ELASTIC = "elastic"


@dataclass(slots=True)
class _State:
    """The last plan, the ranks left out, and the changes of the protocol."""

    plan: Plan | None = None
    evicted: frozenset[int] = frozenset()
    switches: int = 0


@dataclass(frozen=True)
class SyncSwitch:
    """BSP for a share of the samples, then ASGD.

    share: share of the samples before the switch, 0 (ASGD) to 1 (BSP).
    stragglers: `none` waits for them; `greedy` is asynchronous while there is one; `elastic` leaves
        them out until the switch.
    ratio: a rank is a straggler if the median of its last 5 local times exceeds this many times the
        median of the ranks that take part.
    via: `allreduce` or `server`, in the synchronous part.
    samples: samples of the whole run; `auto` takes the scenario's.
    """

    title = "Sync-Switch"
    lane = "C"

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
        before, after = state.plan, self._next_plan(view, state)
        if before is None:
            state.plan = after
        elif after != before:
            state.switches += _asynchronous(after) != _asynchronous(before)
            state.plan = after
        assert state.plan is not None
        return state.plan

    @property
    def reviews_ahead(self) -> int:
        """Any number, while it looks for stragglers."""
        plan = self.state_.plan
        return 0 if plan is None or plan.review != EVERY_UPDATE else UNLIMITED

    def first_change(self, block: Block) -> int:
        state = self.state_
        if state.plan is None or state.plan.review != EVERY_UPDATE:
            return 0
        world = block.steps.shape[1]
        suspects = np.zeros(world, np.bool_)
        suspects[[*(state.plan.suspects or ())]] = True
        ranks = _without(state.evicted, world)
        found = np.zeros(block.steps.shape, np.bool_)
        found[:, [*state.evicted]] = True
        found[:, ranks] = self._exceed(block.medians("local_times", RECENT)[:, ranks])
        changes = np.count_nonzero(found != suspects, axis=1) > 0
        changes |= block.samples >= math.ceil(self.share * self._total(block))
        return int(changes.argmax()) if np.count_nonzero(changes) else len(block)

    def summary(self) -> dict[str, int | float]:
        """Changes of the protocol, and ranks left out until the switch."""
        return {"switches": self.state_.switches, "evictions": len(self.state_.evicted)}

    def _next_plan(self, view: View, state: _State) -> Plan:
        left = math.ceil(self.share * self._total(view)) - view.samples
        if left <= 0:
            return Plan((ASYNCHRONOUS,))
        if self.stragglers is StragglerHandling.NONE:
            return Plan((Quorum(via=self.via),), review=Review(samples=left))
        suspects = self._slow(view, state.evicted)
        if self.stragglers is StragglerHandling.ELASTIC:
            suspects = state.evicted = state.evicted | suspects
        if state.plan is not None and suspects == state.plan.suspects:
            return state.plan
        quorum = ASYNCHRONOUS if suspects else Quorum(via=self.via)
        if self.stragglers is StragglerHandling.ELASTIC:
            rest = tuple(rank for rank in range(view.world_size) if rank not in suspects)
            quorum = Quorum(rest, via=self.via)
        return Plan((quorum,), suspects=suspects, review=EVERY_UPDATE)

    def _total(self, view: View | Block) -> int:
        total = view.hints.samples if self.samples is None else self.samples
        if total is None:
            raise PlanError(
                f"sync_switch: the number of samples, of which {self.share:g} are for BSP, is "
                "unknown; give samples=..., or samples in the scenario"
            )
        return total

    def _slow(self, view: View, evicted: frozenset[int]) -> frozenset[int]:
        """The stragglers among the ranks that take part; none before all have a full window.

        A rank left out has no new times; its last ones would keep it a straggler for ever.
        """
        ranks = _without(evicted, view.world_size)
        (slow,) = self._exceed(view.medians("local_times", RECENT)[np.newaxis, ranks])
        return frozenset(ranks[k] for k in slow.nonzero()[0].tolist())

    def _exceed(self, x: Floats) -> Bools:
        """Whether each time exceeds `ratio` times the median of its row; none where one is NaN."""
        known, median = medians_of_known(x)
        median[known < x.shape[1]] = math.nan
        return is_less(self.ratio * median[:, np.newaxis], x)


def _without(evicted: frozenset[int], world_size: int) -> list[int]:
    return [rank for rank in range(world_size) if rank not in evicted]


def _asynchronous(plan: Plan) -> bool:
    return plan.quorums[0] == ASYNCHRONOUS
