"""Who was slow: the workers of a record that take longer than their peers.

A worker is one stage of one replica.  Its peers are the same stage of the other replicas, which do
the same work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simstrag.records.record import BACKWARD, FORWARD, Floats
from simstrag.statistics.slow_workers import FEWEST, excesses, slowness
from simstrag.whatif.layout import Layout


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


def computing(layout: Layout) -> Floats:
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


def culprits(layout: Layout) -> tuple[Culprit, ...]:
    """The workers that the tests name, the slowest first.

    None are named without peers (one replica) or in fewer than 5 steps.
    """
    seconds = computing(layout)
    replicas, stages, steps = seconds.shape
    if replicas < 2 or steps < FEWEST:
        return ()
    excess = excesses(seconds)
    named = []
    for replica in range(replicas):
        for stage in range(stages):
            own = excess[replica, stage]
            others = np.delete(excess.reshape(-1, steps), replica * stages + stage, axis=0)
            found = slowness(own, others, layout.step)
            if found is None:
                continue
            at = np.flatnonzero(layout.stage == stage)[0]
            culprit = Culprit(
                int(layout.replica[replica]), stage, int(layout.rank[at, replica]), found.pattern,
                found.slowdown, tuple(layout.step[found.places].tolist()), found.period, found.p,
                found.test,
            )  # fmt: skip
            named.append(culprit)
    return tuple(sorted(named, key=lambda each: -len(each.steps) * np.log(each.slowdown)))
