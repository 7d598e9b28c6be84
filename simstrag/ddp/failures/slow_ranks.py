"""Ranks that are alive and far slower than the others: training goes on, and says who it is."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

__all__ = ["LEAST", "TIMES", "Slow", "warn"]

TIMES, LEAST = 10.0, 1.0
"""How many times as long as those of the others, and how many seconds, a step must take."""


def warn(sentence: str) -> None:
    """Tell the user on standard error."""
    print(f"warning: {sentence}\n", end="", file=sys.stderr, flush=True)  # at once, and whole


class Slow:
    """Says who is slow, once of each rank.

    A long step is held against the longer of the last that others reported before it and the first
    after it: where everybody paused, as for an evaluation, one of them is long.  Half of the others
    are waited for.

    >>> slow = Slow(print)
    >>> for rank, seconds in ((0, 0.05), (1, 0.05), (2, 6.0), (0, 0.05)):
    ...     slow.heard(rank, 7, seconds)
    rank 2 is slow: it took 6.0 s for step 7, the others 0.05 s
    """

    def __init__(self, say: Callable[[str], None] = warn) -> None:
        self._say, self._named = say, set[int]()
        self._last: dict[int, float] = {}
        self._long: dict[int, tuple[int, float, dict[int, float]]] = {}

    def heard(self, rank: int, step: int, seconds: float) -> None:
        """A rank took so many seconds for a step of its own."""
        longer = max(seconds, self._last.get(rank, 0.0))
        self._last[rank] = seconds
        for other in [other for other in self._long if other != rank]:
            at, took, beside = self._long[other]
            beside.setdefault(rank, longer)
            if 2 * len(beside) >= len(self._last) - 1:
                del self._long[other]
                self._judge(other, at, took, statistics.median(beside.values()))
        if seconds > LEAST and rank not in self._named:
            self._long.setdefault(rank, (step, seconds, {}))

    def left(self, rank: int) -> None:
        """A rank is no longer there to be compared with."""
        self._last.pop(rank, None)
        self._long.pop(rank, None)

    def _judge(self, rank: int, step: int, seconds: float, usual: float) -> None:
        if seconds > TIMES * usual:
            self._named.add(rank)
            self._say(
                f"rank {rank} is slow: it took {seconds:.1f} s for step {step}, the others "
                f"{usual:.2g} s"
            )
