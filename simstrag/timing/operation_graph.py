"""When operations end that wait for each other: the graph of a step, level by level.

Operations are sorted into levels: those of a level wait only for lower ones.  A level is computed
at once for all cases.  Rules: an operation starts when the last one that it waits for has ended;
computing ends at start + duration; all members of a communication end at the latest start among
them + their own transfer time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.errors import InputError

BLOCK = 1 << 24
"""Most bytes of the ends that are computed at once."""


@dataclass(slots=True)
class Dependencies:
    """What the operations of one replica wait for, by their places.

    before: the operations that each waits for.
    groups: operations of one communication, which end together.
    synced: those that every replica has its part in.
    members: of those in which replicas have several groups, the number of each one's group.
    received: those that another stage lets go on, whose own time begins when it does.
    last: operations whose latest end is the end of the step.
    """

    before: list[set[int]]
    groups: list[list[int]] = field(default_factory=list)
    synced: set[int] = field(default_factory=set)
    members: dict[int, Ints] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    def chain(self, operations: list[int], after: tuple[int, ...] = ()) -> None:
        """Let each of the operations wait for the one before it, the first for those `after`."""
        previous = after
        for operation in operations:
            self.before[operation].update(previous)
            previous = (operation,)


class GraphLevel(NamedTuple):
    """Operations that wait only for lower levels.

    own: their places, shape (operations,).
    before: places of what each waits for, shape (most, operations), its first repeated where it
        waits for fewer; -1 is the beginning of the step.
    together: members of the group of each, as indices into `own`, shape (most, operations), the
        first repeated likewise.
    is_synced: whether a group has its members in all replicas.
    members: number of each replica's group, shape (operations, replicas); None for one of all.
    """

    own: Ints
    before: Ints
    together: Ints
    is_synced: bool
    members: Ints | None = None


def ends_of(
    levels: Sequence[GraphLevel],
    shape: tuple[int, ...],
    seconds: Callable[[Ints], Reals],
    delay: Callable[[Ints], Reals] | None = None,
    begin: Reals | None = None,
) -> Reals:
    """Ends of operations, from the beginning of the step.

    shape: (operations, cases...); the first kind of cases is the replicas, where there are any.
    seconds: what operations need themselves, for their places, shape (operations, cases...).
    delay: from the end of what they wait for to their starts; none by default.
    begin: when the step begins, shape (cases...); 0 by default.
    """
    operations, *cases = shape
    ends = np.zeros((operations + 1, *cases))  # the last one is the beginning of the step
    if begin is not None:
        ends[-1] = begin
    for own, before, together, is_synced, members in levels:
        start = latest_at(ends, before)
        if delay is not None:
            start += delay(own)
        if len(together) > 1:
            start = latest_at(start, together)
        if is_synced:
            start = latest_among(start, members)
        ends[own] = start + seconds(own)
    return ends[:-1]


def levels_of(needs: Dependencies) -> tuple[GraphLevel, ...]:
    """Levels by the longest path to each operation, whose groups count as one.

    Raises `InputError` where operations wait for each other in a circle.
    """
    operations = len(needs.before)
    members = [*needs.groups]
    group_of = [-1] * operations
    for k, group in enumerate(members):
        for operation in group:
            group_of[operation] = k
    for operation in range(operations):
        if group_of[operation] < 0:
            group_of[operation] = len(members)
            members.append([operation])
    waits = [{group_of[b] for o in group for b in needs.before[o]} for group in members]
    after: list[list[int]] = [[] for _ in members]
    for k, others in enumerate(waits):
        for other in others:
            after[other].append(k)
    left = [len(others) for others in waits]
    ready, ordered, done = [k for k, n in enumerate(left) if not n], [], 0
    while ready:
        ordered.append(ready)
        done += len(ready)
        following = []
        for k in ready:
            for other in after[k]:
                left[other] -= 1
                if not left[other]:
                    following.append(other)
        ready = following
    if done < len(members):
        raise InputError("operations wait for each other in a circle; starts or ends are wrong")
    levels = []
    for groups in ordered:
        for is_synced in (False, True):
            own = [members[k] for k in groups if (members[k][0] in needs.synced) == is_synced]
            if own:
                levels.append(_level(own, needs, is_synced))
    return tuple(levels)


def _level(groups: list[list[int]], needs: Dependencies, is_synced: bool) -> GraphLevel:
    own = [operation for group in groups for operation in group]
    waits = [sorted(needs.before[operation]) or [-1] for operation in own]
    first = np.cumsum([0] + [len(group) for group in groups[:-1]]).tolist()
    together = [
        list(range(begin, begin + len(group)))
        for begin, group in zip(first, groups, strict=True)
        for _ in group
    ]
    members = None
    if is_synced and any(operation in needs.members for operation in own):
        of_all = np.zeros_like(next(iter(needs.members.values())))
        members = np.stack([needs.members.get(operation, of_all) for operation in own])
    return GraphLevel(np.array(own), _padded(waits), _padded(together), is_synced, members)


def _padded(lists: list[list[int]]) -> Ints:
    """Lists as columns, each as long as the longest by repeats of its first value."""
    most = max(map(len, lists))
    return np.array([each + each[:1] * (most - len(each)) for each in lists]).T


def latest_at(times: Reals, places: Ints) -> Reals:
    """The latest of the times at several places, for each column of places."""
    latest: Reals = times[places[0]]
    for each in places[1:]:
        np.maximum(latest, times[each], out=latest)
    return latest


def latest_among(times: Reals, members: Ints | None) -> Reals:
    """The latest time among the replicas of a group.

    times: shape (operations, replicas, ...).
    members: see `GraphLevel`; the replicas are one in the result for None, as they are alike.
    """
    if members is None:
        return np.asarray(times.max(axis=1, keepdims=True))
    latest = np.empty_like(times)
    for k, groups in enumerate(members):
        order = np.argsort(groups, kind="stable")
        firsts = np.flatnonzero(np.diff(groups[order], prepend=groups[order[0]] - 1))
        each = np.maximum.reduceat(times[k][order], firsts, axis=0)
        latest[k][order] = np.repeat(each, np.diff(firsts, append=len(order)), axis=0)
    return latest
