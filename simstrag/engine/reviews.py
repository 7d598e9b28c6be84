"""Takes a run to the next review at which its policy may change the plan."""

from __future__ import annotations

from time import perf_counter

from simstrag.engine.kernel import Kernel, Stop
from simstrag.policy import UNLIMITED, Hints, JudgesBlocks

__all__ = ["Reviews"]

LEAST, SHARE = 8, 0.25
"""Reviews of a block that is worth its while; the share, in a block, of those for which a plan
stays."""
RETRY = 64
"""Reviews one by one, while they are cheaper, until a block is tried again."""


class Reviews:
    """Passes reviews by in blocks, on behalf of a policy that judges blocks.

    A change of plan within a block costs the steps before it a second time.  So a block has only a
    share of the reviews for which the plan has stayed, or typically stays.  Changes that the policy
    foresees by `reviews_ahead` do not count.  Where blocks take longer than the same reviews one by
    one, these are asked for.  None of this changes what happens.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._most = 0
        self._stayed, self._typical = 0, 0.0
        self._foreseen = True
        self._alone, self._asked_at = _Cost(), 0.0
        self._together, self._skipped = _Cost(), 0

    def advance(self, policy: JudgesBlocks, hints: Hints, until: float) -> Stop:
        """Go on as the kernel does; `Stop.REVIEW` at a review at which the plan may change."""
        kernel, began = self._kernel, perf_counter()
        if self._asked_at:
            self._alone.add(began - self._asked_at, 1)
        while (size := self._size(policy)) >= LEAST:
            self._skipped = 0
            self._most = self._most or kernel.look_ahead()
            stop = kernel.pass_reviews(min(size, self._most), until)
            if stop is None:
                break
            block = kernel.passed(hints)
            stays = policy.first_change(block) if len(block) else 0
            self._stayed += stays
            if changes := stays < len(block):
                kernel.go_back(stays)
            else:
                kernel.accept(stop)
            began, before = perf_counter(), began
            self._together.add(began - before, stays)
            if changes or stop is not Stop.REVIEW:
                self._asked_at = 0.0
                return Stop.REVIEW if changes else stop
        self._skipped += 1
        self._asked_at = began
        return kernel.advance(until)

    def _size(self, policy: JudgesBlocks) -> int:
        ahead = getattr(policy, "reviews_ahead", UNLIMITED)
        self._foreseen = ahead <= 0
        if self._together.each > self._alone.each and self._skipped < RETRY:
            return 0
        return min(ahead, int(SHARE * max(self._stayed, self._typical)))

    def answered(self, stays: bool) -> None:
        """Learn whether the plan stayed at a review that was asked for."""
        if stays:
            self._stayed += 1
            return
        self._asked_at = 0.0  # a change costs as much after a block
        if not self._foreseen:
            self._stayed, self._typical = 0, (self._stayed + self._typical) / 2


class _Cost:
    """Recent seconds of reviews, and how many reviews they were for."""

    def __init__(self) -> None:
        self._seconds = self._reviews = 0.0

    def add(self, seconds: float, reviews: int) -> None:
        self._seconds += (seconds - self._seconds) / 8
        self._reviews += (reviews - self._reviews) / 8

    @property
    def each(self) -> float:
        """Seconds of a review; 0 before the first."""
        return self._seconds / max(self._reviews, 1e-9)
