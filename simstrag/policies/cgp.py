"""Ranks of similar speed form groups: synchronous inside, asynchronous between.

A group all-reduces, and its leader sends the sum to the server. Groups that wait there together
become one update, so that a busy server makes fewer updates.

Source: Li, Tian, Xu, Zhao & Xu, "Alleviating straggler impacts for data parallel deep learning with
hybrid parameter update", Future Generation Computer Systems 168, 2025, 107775.

Only the abstract is public.  The paper's: Cooperate Grouping Parallel, with groups that change
during the job, synchronous updates inside and asynchronous updates between them, and a shared cost
of global updates.  The rest is this project's reconstruction, with three ways to form groups.

`planned` (CGP-K): ranks are sorted by predicted time; a rank slower than `ratio` times the fastest
of a group opens the next.  Groups are planned again every `every` rounds of all ranks, and when a
rank has been outside its group's band by 10 % for three rounds in a row.  `window` (CGP-W): the
ranks that are ready within a window after the first form a group.  `rounds` (CGP-L): groups are
planned, and a group m times as fast as the slowest makes m rounds of its own before it goes to the
server.  The worth of such updates is not modelled (docs/semantics.md, 25), nor with a `power`.

Sharing (CGP-C) is `fuse`.  A rank's predicted time is the median of its last 10 local times. Its
communication does not count: the all-reduce takes equally long for all members, and push, queue and
pull would only make the leader look slow.
"""

import enum
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simstrag.arrays import Floats, Ints
from simstrag.contract import Block, Damping, Learnt, Plan, Quorum, Review, Via, View
from simstrag.contract.ties import TOLERANCE, argsort, is_at_most, is_less

W, LEAST = 10, 3
"""Local times of a rank in its median, and the least number before groups are planned."""
MARGIN, PATIENCE = 0.10, 3
"""Share by which, and rounds in a row in which, a rank outside its band causes new groups."""


class Grouping(enum.Enum):
    """The rule by which groups form."""

    PLANNED = "planned"
    WINDOW = "window"
    ROUNDS = "rounds"


@dataclass(slots=True)
class _State:
    """The plan in force and the data for the next one.

    quorums: those of the plan, resolved.
    low, high: shape (N,), seconds, the band of each rank's group since the last planning.
    outside: shape (N,), rounds in a row in which a rank was outside its band.
    checked: the round of the last check.
    planned: the round of the last planning.
    replans: changes of the groups.
    """

    plan: Plan
    quorums: tuple[Quorum, ...]
    low: Floats
    high: Floats
    outside: Ints
    checked: int = -1
    planned: int | None = None
    replans: int = 0


@dataclass(frozen=True)
class Cgp:
    """Cooperate Grouping Parallel.

    groups: `planned`, `window` or `rounds`.
    ratio: r_g, the largest ratio of a member's time to that of its group's fastest rank.
    every: R, rounds (N gradients) between two plannings.
    fuse: whether groups that wait for the server together become one update.
    window: as a share of a clean step where that is known, else of the fastest rank's step.
    max_group: largest number of ranks in a group.
    power: a of the factor 1/(1+tau)**a of a gradient's weight at staleness tau.
    """

    title = "Cooperate Grouping Parallel"
    lane = "C"

    groups: Grouping = Grouping.PLANNED
    ratio: float = 1.2
    every: int = 20
    fuse: bool = True
    window: float = 0.3
    max_group: int | None = None
    power: float = 0.0
    state_: Learnt[_State] = field(default_factory=Learnt, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.ratio >= 1:
            raise ValueError(f"ratio must be 1 or more, not {self.ratio}")
        for name in ("every", "max_group"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")
        for name in ("window", "power"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def unmodelled(self) -> str | None:
        """Why progress is not modelled, if later plans have rounds; the first plan has none."""
        rounds = self.groups is Grouping.ROUNDS
        return "its groups compute on models of their own between two updates" if rounds else None

    def plan(self, view: View) -> Plan:
        n, b = view.world_size, view.hints.batch
        rounds = int(_rounds(view.version, view.samples, n, b))
        state = self.state_.value
        if state is None:
            group, (low, high) = Quorum(via=Via.LEADER), np.zeros((2, n))
            plan, outside = self._plan_of((group,), view), np.zeros(n, dtype=np.int64)
            state = _State(plan, (group.resolved(n),), low, high, outside)
            self.state_.value = state
        if rounds <= state.checked:
            return state.plan
        state.checked = rounds
        known = min(W, int(np.minimum.reduce(view.steps)))
        if known < LEAST:
            return state.plan
        t = view.medians("local_times", known)
        if self._is_due(state, t):
            self._replan(state, t, view)
        return state.plan

    @property
    def reviews_ahead(self) -> int:
        """Rounds before the groups are planned again."""
        state = self.state_.value
        if state is None or state.planned is None:
            return 0
        return state.planned + self.every - 1 - state.checked

    def first_change(self, block: Block) -> int:
        state = self.state_.value
        if state is None or state.planned is None or np.minimum.reduce(block.steps[0]) < W:
            return 0
        rounds = _rounds(block.versions, block.samples, block.steps.shape[1], block.hints.batch)
        t = block.medians("local_times", W)
        out = is_less(t, state.low) | is_less(state.high, t)
        for k, checked in enumerate(rounds.tolist()):
            if checked <= state.checked:
                continue
            outside = (state.outside + 1) * out[k]
            if np.maximum.reduce(outside) >= PATIENCE or checked - state.planned >= self.every:
                return k
            state.outside, state.checked = outside, checked
        return len(block)

    def summary(self) -> dict[str, int | float]:
        """How often the groups changed, and how many there are."""
        state = self.state_.value
        if state is None:
            return {"replans": 0, "groups": 0}
        return {"replans": state.replans, "groups": len(state.plan.quorums)}

    def _is_due(self, state: _State, t: Floats) -> bool:
        if state.planned is None:
            return True
        state.outside += 1
        state.outside *= is_less(t, state.low) | is_less(state.high, t)
        left = np.maximum.reduce(state.outside) >= PATIENCE
        return bool(left) or state.checked - state.planned >= self.every

    def _replan(self, state: _State, t: Floats, view: View) -> None:
        """Plan groups; the plan stays the same object unless they change."""
        groups = group_by_speed(t, self.ratio, self.max_group)
        ranks = np.concatenate(groups)
        fastest = np.repeat(t[[group[0] for group in groups]], [len(group) for group in groups])
        state.low[ranks] = (1 - MARGIN) * fastest
        state.high[ranks] = (1 + MARGIN) * self.ratio * fastest
        state.outside[:] = 0
        state.planned = state.checked
        quorums = self._quorums(state, groups, t, view)
        resolved = tuple(quorum.resolved(view.world_size) for quorum in quorums)
        if resolved != state.quorums:
            state.plan, state.quorums = self._plan_of(quorums, view), resolved
            state.replans += 1

    def _quorums(
        self, state: _State, groups: list[Ints], t: Floats, view: View
    ) -> tuple[Quorum, ...]:
        if self.groups is Grouping.WINDOW:
            clean = view.hints.clean_seconds
            seconds = self.window * (float(t.min()) if clean is None else clean)
            standing = state.plan.quorums[0].window
            if is_at_most(seconds, standing) and is_at_most(standing, seconds):
                seconds = standing
            count = None if self.max_group is None else min(self.max_group, view.world_size)
            return (Quorum(count=count, via=Via.LEADER, window=seconds),)
        rounds = [1] * len(groups)
        if self.groups is Grouping.ROUNDS:
            slowest = [float(t[group[-1]]) for group in groups]
            rounds = [math.floor(max(slowest) / own * (1 + TOLERANCE)) for own in slowest]
        return tuple(
            Quorum(np.sort(group), via=Via.LEADER, rounds=count)
            for group, count in zip(groups, rounds, strict=True)
        )

    def _plan_of(self, quorums: tuple[Quorum, ...], view: View) -> Plan:
        n, b = view.world_size, view.hints.batch
        return Plan(
            quorums,
            fuse=self.fuse,
            damping=Damping(self.power, shift=1.0),
            review=Review(updates=n) if b is None else Review(samples=n * b),
        )


def _rounds(version: Any, samples: Any, n: int, batch: int | None) -> Any:
    """Rounds of all ranks until then: gradients by rank, by samples where a batch is known."""
    return version // n if batch is None else samples // (n * batch)


def group_by_speed(t: Floats, ratio: float, max_group: int | None = None) -> list[Ints]:
    """Groups of ranks as arrays, fastest first, each with its ranks in order of speed.

    A rank opens a new group if it takes more than `ratio` times as long as the fastest rank of the
    present group, or if that is full.

    t: predicted seconds per step, shape (N,), above 0.
    ratio: 1 or more.

    >>> group_by_speed(np.array([2.0, 1.0, 1.1, 2.1]), ratio=1.2)
    [array([1, 2]), array([0, 3])]
    """
    groups: list[Ints] = []
    order, start, most = argsort(t), 0, max_group or len(t)
    times = t[order]
    while start < len(t):
        alike = is_at_most(times[start : start + most], ratio * times[start])
        end = start + (int(alike.argmin()) or len(alike))  # argmin is 0 where all are alike
        groups.append(order[start:end])
        start = end
    return groups
