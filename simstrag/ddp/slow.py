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

    A long step is held against those that others report after it: where everybody paused, as for an
    evaluation, all are long.  So many of them are waited for as make half of the others.

    >>> slow = Slow(print)
    >>> for rank, seconds in ((0, 0.05), (1, 0.05), (2, 6.0), (0, 0.04)):
    ...     slow.heard(rank, 7, seconds)
    rank 2 is slow: it took 6.0 s for step 7, the others 0.04 s
    """

    def __init__(self, say: Callable[[str], None] = warn) -> None:
        self._say, self._named, self._known = say, set[int](), set[int]()
        self._long: dict[int, tuple[int, float, list[float]]] = {}

    def heard(self, rank: int, step: int, seconds: float) -> None:
        """A rank took so many seconds for a step of its own."""
        self._known.add(rank)
        for other in [other for other in self._long if other != rank]:
            at, took, after = self._long[other]
            after.append(seconds)
            if 2 * len(after) >= len(self._known) - 1:
                del self._long[other]
                self._judge(other, at, took, statistics.median(after))
        if seconds > LEAST and rank not in self._named:
            self._long.setdefault(rank, (step, seconds, []))

    def _judge(self, rank: int, step: int, seconds: float, usual: float) -> None:
        if seconds > TIMES * usual:
            self._named.add(rank)
            self._say(
                f"rank {rank} is slow: it took {seconds:.1f} s for step {step}, the others "
                f"{usual:.2g} s"
            )
