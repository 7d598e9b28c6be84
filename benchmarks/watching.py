"""What a baseline needs to follow korel: the policy's own code, and the view it asks for."""

from __future__ import annotations

import numpy as np

from benchmarks.jobs import AMP_RATIO, COMPUTE, Job
from simstrag import policies
from simstrag.policy import WINDOW, Hints, Precision, View
from simstrag.trace.slowdown import finish

__all__ = ["Watch"]


class Watch:
    """Step times as korel wants them, and its answers; everybody takes one step per update."""

    def __init__(self, job: Job) -> None:
        n = job.workers
        self._policy = policies.load("korel")
        self._hints = Hints(AMP_RATIO, 0.0, COMPUTE, 0.0, 1)
        self._works = [iter(row).__next__ for row in job.factors]
        self._stretch = job.stretch
        self._last = [0.0] * n
        self._times = np.full((n, WINDOW), np.nan)
        self._amp = np.zeros((n, WINDOW), dtype=np.bool_)
        self._plan = self._policy.plan(View(n, hints=self._hints))
        self._in_amp = [False] * n

    def end(self, rank: int, start: float) -> float:
        """When the rank's next step ends."""
        stretch = self._stretch[rank][self._in_amp[rank]]
        end = finish(start, self._works[rank](), stretch)
        self._last[rank] = end - start
        return end

    def seconds(self, rank: int, start: float) -> float:
        """The same as a duration."""
        return self.end(rank, start) - start

    def review(self, version: int, now: float) -> None:
        """Ask the policy, once everybody's gradient is applied."""
        times, amp, n = self._times, self._amp, len(self._last)
        times[:, :-1], amp[:, :-1] = times[:, 1:], amp[:, 1:]
        times[:, -1], amp[:, -1] = self._last, self._in_amp
        steps = np.full(n, version)
        view = View(
            n, version, version * n, now, steps, times, amp, hints=self._hints,
        )  # fmt: skip
        plan = self._policy.plan(view)
        if plan is not self._plan:
            self._plan = plan
            precision = plan.resolved(n).precision
            assert isinstance(precision, tuple)
            self._in_amp = [own is Precision.AMP for own in precision]
