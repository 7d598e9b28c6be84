"""Names slow ranks while a job runs: one long step at once, a lasting slowdown by a t test.

The t test is that of `simstrag.statistics.slow_workers`.  It looks again and again, so look k may
take 1 / (k (k + 1)) of the rate of false alarms: all looks together keep to it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from simstrag.ddp.failures.diagnosis import warn
from simstrag.statistics.slow_workers import ALARM, Slowness, chronic

TIMES, LEAST = 10.0, 1.0
"""A slow step takes more than TIMES times as long as the others', and more than LEAST seconds."""

LOOK, WINDOW = 40, 200
"""Steps of every rank between two looks, and the steps that a look takes in."""


class SlowRankDetector:
    """Names slow ranks once, and again when that changes.

    A long step is compared with two steps of every other rank, the last one before it and the first
    one after it; the longer of the two counts.  So a pause of all ranks, as for an evaluation,
    makes none of them slow.  A step is judged once half of the others have reported.

    A chronically slow rank is one that the t test names, with a slow stretch that reaches into the
    last `LOOK` steps.

    say: called with the sentence.

    >>> slow = SlowRankDetector(print)
    >>> for rank, seconds in ((0, 0.05), (1, 0.05), (2, 6.0), (0, 0.05)):
    ...     slow.add(rank, 7, seconds)
    rank 2 is slow: it took 6.0 s for step 7, the others 0.05 s
    """

    def __init__(self, say: Callable[[str], None] = warn) -> None:
        self._say, self._named = say, set[int]()
        self._last: dict[int, float] = {}
        self._long: dict[int, _LongStep] = {}
        self._window: dict[int, deque[tuple[int, float]]] = {}
        self._new: dict[int, int] = {}
        self._looks = 0
        self._chronic = set[int]()

    def add(self, rank: int, step: int, seconds: float) -> None:
        """Report the local time of a step."""
        self.extend([(rank, step, seconds)])

    def extend(self, reports: Iterable[tuple[int, int, float]]) -> None:
        """Report local times as (rank, step, seconds); one look is at all of them."""
        for rank, step, seconds in reports:
            self._judge_long_steps(rank, step, seconds)
            self._window.setdefault(rank, deque(maxlen=WINDOW)).append((step, seconds))
            self._new[rank] = self._new.get(rank, 0) + 1
        if len(self._new) > 1 and min(self._new.values()) >= LOOK:
            self._look()
            self._new = dict.fromkeys(self._new, 0)

    def remove(self, rank: int) -> None:
        """Stop comparing a rank that has left."""
        for reports in (self._last, self._long, self._window, self._new):
            reports.pop(rank, None)
        self._chronic.discard(rank)

    def _judge_long_steps(self, rank: int, step: int, seconds: float) -> None:
        longer = max(seconds, self._last.get(rank, 0.0))
        self._last[rank] = seconds
        for other in [other for other in self._long if other != rank]:
            at, took, peers = self._long[other]
            peers.setdefault(rank, longer)
            if 2 * len(peers) >= len(self._last) - 1:
                del self._long[other]
                usual = statistics.median(peers.values())
                if took > TIMES * usual:
                    self._named.add(other)
                    self._say(
                        f"rank {other} is slow: it took {took:.1f} s for step {at}, the others "
                        f"{usual:.2g} s"
                    )
        if seconds > LEAST and rank not in self._named:
            self._long.setdefault(rank, _LongStep(step, seconds, {}))

    def _look(self) -> None:
        """Test the last steps of all ranks, as many as each has."""
        self._looks += 1
        ranks = sorted(self._window)
        count = min(map(len, self._window.values()))
        reports = [list(self._window[rank])[-count:] for rank in ranks]
        slow = {ranks[place]: found for place, found in self._test(reports).items()}
        for rank in sorted(slow.keys() - self._chronic):
            found = slow[rank]
            since = reports[ranks.index(rank)][found.places[0]][0]
            p = f"p = {found.p:.2g}" if found.p >= 1e-6 else "p < 1e-06"
            self._say(
                f"rank {rank} is chronically slow: it computes {found.slowdown:.2f} times as long "
                f"as its peers since step {since} ({found.test}; {p})"
            )
        for rank in sorted(self._chronic - slow.keys()):
            self._say(f"rank {rank} is no longer slow")
        self._chronic = set(slow)

    def _test(self, reports: list[list[tuple[int, float]]]) -> dict[int, Slowness]:
        seconds = np.array([[took for _, took in own] for own in reports])
        limit = ALARM / 2 / (self._looks * (self._looks + 1))  # two tests can name a chronic one
        lately = seconds.shape[1] - LOOK
        return {
            place: found
            for place, found in chronic(seconds).items()
            if found.places[-1] >= lately and found.p <= limit
        }


class _LongStep(NamedTuple):
    """A step to be judged: its number, its seconds, and those of peers that have reported since."""

    step: int
    seconds: float
    peers: dict[int, float]
