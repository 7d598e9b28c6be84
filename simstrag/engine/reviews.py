"""Takes a run to the next review at which its policy may change the plan."""

from __future__ import annotations

from simstrag.engine.kernel import Kernel, Stop
from simstrag.policy import UNLIMITED, Hints, JudgesBlocks

__all__ = ["Reviews"]

FIRST, LEAST, SHARE = 32, 4, 0.33
"""Reviews for which a plan stays before the first block; those of a block that is worth its while;
the share, in a block, of those for which a plan stays."""


class Reviews:
    """Passes reviews by in blocks, on behalf of a policy that judges blocks.

    A change of plan within a block costs the steps before it a second time.  So a block has only a
    share of the reviews for which the plan has stayed, or typically stays.  Changes that the policy
    foresees by `reviews_ahead` do not count.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._most = 0
        self._stayed, self._typical = 0, 0.0
        self._foreseen = True

    def advance(self, policy: JudgesBlocks, hints: Hints, until: float) -> Stop:
        """Go on as the kernel does; `Stop.REVIEW` at a review at which the plan may change."""
        kernel = self._kernel
        while (size := self._size(policy)) >= LEAST:
            self._most = self._most or kernel.look_ahead(True)
            stop = kernel.pass_reviews(min(size, self._most), until)
            if stop is None:
                break
            block = kernel.passed(hints)
            stays = policy.first_change(block) if len(block) else 0
            self._stayed += stays
            if stays < len(block):
                kernel.go_back(stays)
                return Stop.REVIEW
            kernel.accept(stop)
            if stop is not Stop.REVIEW:
                return stop
        return kernel.advance(until)

    def _size(self, policy: JudgesBlocks) -> int:
        stays = max(self._stayed, self._typical)
        if SHARE * stays < LEAST or not (self._most or stays >= FIRST):
            self._foreseen = False
            return 0
        ahead = getattr(policy, "reviews_ahead", UNLIMITED)
        self._foreseen = ahead <= 0
        return min(ahead, int(SHARE * stays))

    def answered(self, stays: bool) -> None:
        """Learn whether the plan stayed at a review that was asked for."""
        if stays:
            self._stayed += 1
        elif not self._foreseen:
            self._stayed, self._typical = 0, (self._stayed + self._typical) / 2
            if self._most and SHARE * self._typical < LEAST:
                self._most = self._kernel.look_ahead(False)
