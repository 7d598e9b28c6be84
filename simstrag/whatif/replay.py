"""Replay: when the operations of every step end if some of them take another time.

All replicas, steps and what-if cases are replayed together, by `simstrag.timing.operation_graph`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from simstrag.arrays import Bools, Ints, Reals
from simstrag.timing.operation_graph import (
    BLOCK,
    GraphLevel,
    ends_of,
    latest_among,
    latest_at,
    levels_of,
)
from simstrag.whatif.dependencies import dependencies
from simstrag.whatif.operation_array import Layout

CLOCK = 0.010
"""A transfer or delay of at most minus this many seconds counts as none: clocks differ."""


class ReplayCase(NamedTuple):
    """One what-if case.

    recorded: whether an operation needs its recorded time, shape (operations, replicas).
    ideal: what it needs otherwise; None for the ideal of its kind.
    delayed: whether it has its recorded delay, shape (operations, replicas); None for none.
    """

    recorded: Bools
    ideal: Reals | None = None
    delayed: Bools | None = None


@dataclass(frozen=True, slots=True, eq=False)
class JobReplay:
    """A record that can be replayed.

    work: seconds that each operation needs itself: a duration, or the transfer of a communication;
        shape (operations, replicas, steps).
    delay: seconds from the end of what an operation waits for to its start, same shape.
    ideal: what each operation takes where it is not as recorded, shape (operations, replicas or 1,
        steps or 1): by default the one value of its kind, the mean of computing and the median of
        communication.
    begin: when replicas begin a step, shape (replicas, steps); None for all at 0.  Where they wait
        in several groups, one may begin a step before another has ended the last one.
    """

    layout: Layout
    levels: tuple[GraphLevel, ...]
    last: Ints
    work: Reals
    delay: Reals
    ideal: Reals
    begin: Reals | None = None

    @classmethod
    def of(cls, layout: Layout) -> Self:
        """Raises `InputError` where operations wait for each other in a circle."""
        needs = dependencies(layout)
        levels = levels_of(needs)
        work, delay = _work(layout, levels), _delay(layout, levels)
        for each in needs.received:
            let_go = layout.end[sorted(needs.before[each])].max(axis=0)
            work[each] = np.maximum(layout.end[each] - let_go, 0)
        ideal = np.zeros(len(layout.kind), work.dtype)
        for kind in np.unique(layout.kind):
            own = layout.kind == kind
            average = np.median if layout.communicates[own][0] else np.mean
            ideal[own] = average(np.asarray(work[own], np.float64))
        last, begin = np.array(needs.last), layout.begin
        return cls(layout, levels, last, work, delay, ideal[:, None, None], begin)

    def step_times(self, recorded: Bools, delayed: Bools | None = None) -> Reals:
        """Seconds of each step in what-if cases, shape (cases, steps).

        recorded: whether an operation needs its recorded time, otherwise the ideal one, shape
            (cases, operations, replicas).
        delayed: whether it has its recorded delay, same shape; nothing has one by default.
        """
        operations, replicas, steps = self.work.shape
        each = max(1, BLOCK // (8 * operations * replicas * steps))
        parts = []
        for k in range(0, len(recorded), each):
            own = None if delayed is None else delayed[k : k + each]
            ends = self.ends(recorded[k : k + each], own)
            parts.append(ends[self.last].max(axis=(0, 1)))
        return np.concatenate(parts)

    def means(self, cases: Sequence[ReplayCase]) -> list[float]:
        """Seconds of a mean step in each case."""
        alike: dict[tuple[bool, int], list[int]] = {}
        for k, case in enumerate(cases):
            own = -1 if case.ideal is None else k  # a case with an ideal is replayed by itself
            alike.setdefault((case.delayed is None, own), []).append(k)
        found = [0.0] * len(cases)
        for places in alike.values():
            ideal = cases[places[0]].ideal
            own_replay = self if ideal is None else replace(self, ideal=ideal)
            delays = [delayed for k in places if (delayed := cases[k].delayed) is not None]
            times = own_replay.step_times(
                np.stack([cases[k].recorded for k in places]), np.stack(delays) if delays else None
            )
            for k, mean in zip(places, times.mean(axis=1).tolist(), strict=True):
                found[k] = mean
        return found

    def alone(self, worker: Ints | None = None) -> Reals:
        """Seconds that each replica would take without the others, shape (replicas, steps).

        Communication with other replicas takes no time (one that ended before the last began, as
        clocks differ, still does).  So no replica takes longer alone than in the whole job.

        worker: number of each replica's worker; then the seconds of each worker, whose replicas
            still wait for each other.
        """
        work, levels = self.work.copy(), []
        for level in self.levels:
            members = None if worker is None else _within(level, worker)
            if level.is_synced:
                crosses = _differ(level, members)
                work[level.own[crosses]] = np.minimum(work[level.own[crosses]], 0)
            levels.append(level._replace(is_synced=members is not None, members=members))
        everything = np.ones((1, *self.layout.rank.shape), np.bool_)
        alone = replace(self, levels=tuple(levels), work=work, begin=None).ends(everything)
        ends = np.asarray(alone[self.last, :, 0].max(axis=0))
        if worker is None:
            return ends
        return np.stack([ends[worker == k].max(axis=0) for k in range(1 + worker.max())])

    def ends(self, recorded: Bools, delayed: Bools | None = None) -> Reals:
        """When operations end, shape (operations, replicas, cases, steps); see `step_times`."""
        operations, replicas, steps = self.work.shape
        kept = recorded.transpose(1, 2, 0)[..., None]
        late = None if delayed is None else delayed.transpose(1, 2, 0)[..., None]

        def needed(own: Ints) -> Reals:
            return np.where(kept[own], self.work[own][:, :, None], self.ideal[own][:, :, None])

        def delay(own: Ints) -> Reals:
            assert late is not None
            return np.where(late[own], self.delay[own][:, :, None], 0.0)

        shape = operations, replicas, len(recorded), steps
        begin = None if self.begin is None else self.begin[:, None]
        return ends_of(self.levels, shape, needed, None if late is None else delay, begin)


def _within(level: GraphLevel, worker: Ints) -> Ints | None:
    """The members of a level's groups that are of one worker; None where it has no groups."""
    if not level.is_synced:
        return None
    members = np.zeros((len(level.own), len(worker)), np.int64)
    members += 0 if level.members is None else level.members
    return np.asarray((members - members.min()) * (1 + worker.max()) + worker)


def _differ(level: GraphLevel, within: Ints | None) -> Bools:
    """Of which operations a group is cut: by None to single replicas."""
    if within is None:
        return np.ones(len(level.own), np.bool_)
    whole = np.zeros_like(within) if level.members is None else level.members
    pairs = zip(whole, within, strict=True)
    return np.array([len(np.unique(a)) < len(np.unique(b)) for a, b in pairs])


def _work(layout: Layout, levels: tuple[GraphLevel, ...]) -> Reals:
    """Durations, and of communication end - latest start in its group."""
    work = layout.duration.copy()
    for own, _, together, is_synced, members in levels:
        latest = latest_at(layout.start[own], together)
        if is_synced:
            latest = latest_among(latest, members)
        shared = np.any(together != np.arange(len(own)), axis=0) | is_synced
        work[own[shared]] = (layout.end[own] - latest)[shared]
    work[(work <= -CLOCK) & layout.communicates[:, None, None]] = 0
    return work


def _delay(layout: Layout, levels: tuple[GraphLevel, ...]) -> Reals:
    """Start - latest end of what an operation waits for."""
    begin = np.zeros(layout.end.shape[1:], layout.end.dtype)
    begin = begin if layout.begin is None else layout.begin
    ends = np.concatenate([layout.end, begin[None]])
    delay = np.empty_like(layout.start)
    for level in levels:
        delay[level.own] = layout.start[level.own] - latest_at(ends, level.before)
    delay[delay <= -CLOCK] = 0
    return delay
