"""Takes a run to the next review at which its policy may change the plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from simstrag import policies
from simstrag.contract import Hints, JudgesBlocks
from simstrag.engine.kernel import Kernel, Stop

__all__ = ["Reviews", "always"]

FIRST = 32
"""Reviews for which a plan stays before the first block, which takes room for what it shows."""
LEAST, SHARE = 4, 0.33
"""Reviews of a block that is worth its while; the share, in a block, of those for which the plan is
expected to stay.  Chosen by paired runs of the study's policies with 8, 64 and 512 ranks; they
change times alone."""
ALWAYS: ContextVar[int] = ContextVar("ALWAYS", default=0)
"""Reviews of every block while `always` is in force; else 0."""


@contextmanager
def always(most: int) -> Iterator[None]:
    """Blocks of so many reviews from the first review on, however seldom a plan stays."""
    token = ALWAYS.set(most)
    try:
        yield
    finally:
        ALWAYS.reset(token)


class Reviews:
    """Passes reviews by in blocks, on behalf of a policy that judges blocks.

    A change of plan within a block costs the steps before it a second time.  So a block has only a
    share of the reviews for which the plan has stayed, or typically stays.  A review at which the
    policy would not rule a change out counts as one; those that `reviews_ahead` foresees do not.

    name: the policy's, in messages.
    """

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel, self._name = kernel, name
        self._most = 0
        self._stayed, self._typical = 0, 0.0
        self._surprise = False

    def advance(self, policy: JudgesBlocks, hints: Hints, until: float) -> Stop:
        """Go on as the kernel does; `Stop.REVIEW` at a review at which the plan may change."""
        kernel = self._kernel
        while (size := self._next_size(policy)) > 0:
            self._most = self._most or kernel.look_ahead()
            stop = kernel.pass_reviews(min(size, self._most), until)
            if stop is None:
                break
            block = kernel.block(hints)
            kept = policies.ask_about(policy, block, self._name) if len(block) else 0
            self._stayed += kept
            if kept < len(block):
                kernel.go_back(kept)
                self._expect_less()
                return Stop.REVIEW
            kernel.accept(stop)
            if stop is not Stop.REVIEW:
                return stop
        return kernel.advance(until)

    def _next_size(self, policy: JudgesBlocks) -> int:
        """Reviews of the next block; 0 where `plan` is to be asked."""
        expected, forced = max(self._stayed, self._typical), ALWAYS.get()
        self._surprise = True
        seldom = SHARE * expected < LEAST or not (self._most or expected >= FIRST)
        if seldom and not forced:
            return 0
        ahead = policies.reviews_ahead(policy, self._name)
        self._surprise = ahead > 0
        size = min(ahead, forced or int(SHARE * expected))
        return size if forced or size >= LEAST else 0

    def learn(self, stays: bool) -> None:
        """Learn whether the plan stayed at a review that was asked for."""
        if stays:
            self._stayed += 1
        elif self._surprise:
            self._expect_less()

    def _expect_less(self) -> None:
        self._stayed, self._typical = 0, (self._stayed + self._typical) / 2
        self._surprise = False
