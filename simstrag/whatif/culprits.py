"""Who was slow: the workers of a record that take longer than their peers.

A worker is one stage of one replica.  Its peers are the same stage of the other replicas, which do
the same work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Reals
from simstrag.documents.job_mesh import JobMesh
from simstrag.records.record import BACKWARD, FORWARD
from simstrag.statistics.groups import reference
from simstrag.statistics.pauses import find_pauses
from simstrag.statistics.slow_workers import FEWEST, excesses, slow_with, slowness
from simstrag.whatif.operation_array import Layout

PAUSING = 0.5
"""Share of the workers with scattered pauses from which pauses are nobody's own, ASSUMED."""
COMPARABLE = 0.2
"""Share of the longest pauses of a worker from which those of another count, ASSUMED: a stray step
of noise is no pausing worker."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A worker that is slower than its peers.

    replica, stage, rank: which one.
    pattern: "chronic", "periodic" or "one-off".
    slowdown: its computing over the median of its peers', in the steps where it is slow.
    steps: numbers of these steps.
    since: the first of them; until: the last.
    period: steps from one slow step to the next; None unless periodic.
    p: probability of such an excess by chance, corrected for all that the test looked at.
    test: the test, in words.
    """

    replica: int
    stage: int
    rank: int
    pattern: str
    slowdown: float
    steps: tuple[int, ...]
    period: int | None
    p: float
    test: str

    @property
    def since(self) -> int:
        """The first slow step."""
        return self.steps[0]

    @property
    def until(self) -> int:
        """The last slow step."""
        return self.steps[-1]


SAME = 0.5
"""The least share of common slow steps by which workers are slow at once; an assumed constant."""


class Group(NamedTuple):
    """Slow workers that are one thing: slow at once, and in one place or many.

    kind: "node", all ranks of a host; "mesh", all at one place of a dimension of the mesh; or
        "group", half of the ranks or more.
    name: the host, the place such as "replica 1", or the ranks.
    members: the workers.
    """

    kind: str
    name: str
    members: tuple[Culprit, ...]

    @property
    def slowdown(self) -> float:
        """Their computing over that of their peers, the median of them."""
        return float(np.median([each.slowdown for each in self.members]))


def computing(layout: Layout) -> Reals:
    """Seconds that each worker computes in each step, shape (replicas, stages, steps).

    Of a pipeline only forward and backward count, which all replicas do alike.
    """
    own = layout.find(FORWARD, BACKWARD)
    if not own.any():
        own = ~layout.communicates
    return np.stack(
        [
            layout.duration[own & (layout.stage == stage)].sum(axis=0, dtype=np.float64)
            for stage in range(layout.stages)
        ],
        axis=1,
    )


def over_peers(seconds: Reals) -> Reals:
    """Seconds of each worker (first axis) over the median of all; 1 where none computed.

    >>> over_peers(np.array([[1.0, 2.0], [1.0, 2.0], [1.5, 2.0]]))[2].tolist()
    [1.5, 1.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(seconds / np.median(seconds, axis=0), nan=1.0)


def excess_by_part(layout: Layout, slow: Culprit) -> dict[tuple[str, int], float]:
    """What each part of a slow worker's step has of the seconds that it computes longer.

    Parts by kind and number, the largest share first.  Longer is than the median of its peers, over
    the steps in which it is slow.
    """
    own = ~layout.communicates & (layout.stage == slow.stage)
    k = layout.replica.tolist().index(slow.replica)
    seconds = layout.duration[own][..., np.isin(layout.step, slow.steps)].astype(np.float64)
    over = (seconds[:, k] - np.median(np.delete(seconds, k, axis=1), axis=1)).sum(axis=1)
    keys = zip(layout.kind[own].tolist(), layout.number[own].tolist(), strict=True)
    shares = {
        (layout.kinds[kind], number): share
        for (kind, number), share in zip(keys, (over / over.sum()).tolist(), strict=True)
    }
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def culprits(layout: Layout, hosts: Mapping[int, str] | None = None) -> tuple[Culprit, ...]:
    """The workers that the tests name, the slowest first.

    hosts: of ranks; where a worker is chronically slow, its mates are tested in the same steps.
    None are named without peers (one replica) or in fewer than 5 steps.  Where half of the replicas
    are slow, the fastest group is what they are compared with.
    """
    seconds = _calm(computing(layout))
    replicas, stages, steps = seconds.shape
    if replicas < 2 or steps < FEWEST:
        return ()
    fastest = reference(seconds.sum(axis=1))
    excess = excesses(seconds, fastest)
    flat = excess.reshape(-1, steps)
    ranks = layout.workers.ravel()
    slow = {
        k: found
        for k, own in enumerate(flat)
        if (found := slowness(own, np.delete(flat, k, axis=0), layout.step)) is not None
    }
    on = [(hosts or {}).get(int(rank)) for rank in ranks]
    chronic = {k: found for k, found in slow.items() if found.pattern == "chronic"}
    for k, host in enumerate(on):
        mates = [found for j, found in chronic.items() if host is not None and on[j] == host]
        if k not in chronic and mates:
            also = slow_with(flat[k], np.delete(flat, k, axis=0), mates, on.count(host))
            slow |= {} if also is None else {k: also}
    named = [
        Culprit(
            int(layout.replica[k // stages]), k % stages, int(ranks[k]), found.pattern,
            found.slowdown, tuple(layout.step[found.places].tolist()), found.period, found.p,
            found.test,
        )
        for k, found in slow.items()
    ]  # fmt: skip
    return tuple(sorted(named, key=lambda each: -len(each.steps) * np.log(each.slowdown)))


def _calm(seconds: Reals) -> Reals:
    """Seconds without scattered pauses where half of the workers pause: then none is the slow one.

    seconds: shape (replicas, stages, steps).
    """
    flat = seconds.reshape(-1, seconds.shape[-1])
    found = find_pauses(flat)
    own = found.scattered.sum(axis=1)
    if np.mean(own > COMPARABLE * own.max()) < PAUSING:
        return seconds
    return np.asarray(flat - found.scattered).reshape(seconds.shape)


def gather(
    slow: Sequence[Culprit],
    layout: Layout,
    hosts: Mapping[int, str],
    mesh: JobMesh | None = None,
) -> tuple[Group, ...]:
    """The slow workers that are one thing; see `Group`.

    hosts: of ranks, as far as they are known.
    mesh: of the ranks, where it is known.
    """
    found = []
    by_rank = {each.rank: each for each in slow if each.pattern == "chronic"}
    for host in dict.fromkeys(hosts.values()):
        ranks = [rank for rank, name in hosts.items() if name == host]
        own = [by_rank[rank] for rank in ranks if rank in by_rank]
        if len(ranks) > 1 and len(own) == len(ranks) < len(hosts) and own == _at_once(own):
            found.append(Group("node", host, tuple(own)))
    known = {each.rank for group in found for each in group.members}
    for name, places in () if mesh is None else mesh.slices():
        if by_rank.keys() >= {*places} and not known & {*places}:
            own = [by_rank[rank] for rank in places]
            if own == _at_once(own):
                found.append(Group("mesh", name, tuple(own)))
                known |= {*places}
    rest = _at_once([each for each in by_rank.values() if each.rank not in known])
    if 2 * len(rest) >= len(layout.replica) > 2 and layout.stages == 1:
        found.append(Group("group", _ranges([each.rank for each in rest]), tuple(rest)))
    return tuple(found)


def _at_once(workers: Sequence[Culprit]) -> list[Culprit]:
    """The worker that is slow in most steps, and those whose slow steps are mostly the same.

    Mostly: `SAME` or more of the steps in which the one or the other is slow.
    """
    most = {*max((each.steps for each in workers), key=len, default=())}
    return [
        each for each in workers
        if len(most.intersection(each.steps)) >= SAME * len(most.union(each.steps))
    ]  # fmt: skip


def _ranges(ranks: Sequence[int]) -> str:
    """Ranks in words, runs of them as a range.

    >>> _ranges([3, 1, 2, 7])
    '1 to 3, 7'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if not runs or rank > runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(rank)
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)
