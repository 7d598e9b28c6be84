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

    >>> slow = Slow(print)
    >>> for rank, seconds in ((0, 0.05), (1, 0.05), (2, 6.0)):
    ...     slow.heard(rank, 7, seconds)
    rank 2 is slow: it took 6.0 s for step 7, the others 0.05 s for their last
    """

    def __init__(self, say: Callable[[str], None] = warn) -> None:
        self._say, self._named = say, set[int]()
        self._last: dict[int, float] = {}

    def heard(self, rank: int, step: int, seconds: float) -> None:
        """A rank took so many seconds for a step of its own."""
        self._last[rank] = seconds
        if seconds <= LEAST or rank in self._named:
            return
        others = [each for other, each in self._last.items() if other != rank]
        usual = statistics.median(others) if others else seconds
        if seconds > TIMES * usual:
            self._named.add(rank)
            self._say(
                f"rank {rank} is slow: it took {seconds:.1f} s for step {step}, the others "
                f"{usual:.2g} s for their last"
            )
