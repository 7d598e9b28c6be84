"""Takes a run to the next review at which its policy may change the plan."""

from __future__ import annotations

from simstrag.engine.kernel import Kernel, Stop
from simstrag.policy import Hints, JudgesBlocks

__all__ = ["Reviews"]

GROWTH = 4
"""How many times as many reviews a block may have after one in which the plan stayed."""


class Reviews:
    """Passes reviews by in blocks, on behalf of a policy that judges blocks.

    A policy that changes its plan within a block costs the steps after that change a second
    time.  So a block has as many reviews as passed without a change before, times `GROWTH`.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._most = self._size = kernel.look_ahead()

    def advance(self, policy: JudgesBlocks, hints: Hints, until: float) -> Stop:
        """Go on as the kernel does; `Stop.REVIEW` at a review at which the plan may change."""
        kernel = self._kernel
        while (size := min(self._size, getattr(policy, "reviews_ahead", self._most))) > 1:
            stop = kernel.pass_reviews(size, until)
            if stop is None:
                break
            block = kernel.passed(hints)
            stays = policy.first_change(block) if len(block) else 0
            if stays < len(block):
                kernel.go_back(stays)
                self._size = max(stays, 1)
                return Stop.REVIEW
            kernel.accept(stop)
            self._size = min(GROWTH * self._size, self._most)
            if stop is not Stop.REVIEW:
                return stop
        return kernel.advance(until)

    def answered(self, stays: bool) -> None:
        """Learn whether the plan stayed at a review that was asked for."""
        if stays:
            self._size = min(GROWTH * self._size, self._most)
