"""Small worlds of facts: the views that a policy meets while its contract is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from simstrag.contract import WINDOW, Hints, Plan, Precision, View

RHO = 1.6
"""Gain of reduced precision."""
BATCH = 32
"""Samples of a rank's step."""


class World:
    """Facts for one policy: ranks 0 and 1 are slow for a while, one after the other.

    Every view is what a driver would show after one update; where a quorum counts, only so many of
    its ranks, drawn anew each time, have delivered.
    """

    clean = 1.0

    def __init__(self, world_size: int, updates: int = 120, seed: int = 0) -> None:
        self.world_size = world_size
        self.updates = updates
        self.random = np.random.default_rng(seed)
        self.times = np.full((world_size, WINDOW), np.nan)
        self.amp = np.zeros((world_size, WINDOW), dtype=bool)
        self.shares = np.full((world_size, WINDOW), np.nan)
        self.communication = np.full((world_size, WINDOW), np.nan)
        self.pending = np.zeros(world_size)
        self.samples = 0
        self.steps = np.zeros(world_size, dtype=np.int64)

    def views(self, ask: Callable[[View], Plan]) -> Iterator[tuple[View, Plan]]:
        """Ask for a plan after every update, and show what came of the answers."""
        view = self.view(0)
        for version in range(1, self.updates + 2):
            plan = ask(view)
            yield view, plan
            self._update(version, plan.resolved(self.world_size))
            view = self.view(version)

    def view(self, version: int) -> View:
        """The facts at one version."""
        return View(
            self.world_size,
            version,
            samples=self.samples,
            time=float(version),
            steps=self.steps.copy(),
            local_times=self.times.copy(),
            amp=self.amp.copy(),
            batch=self.shares.copy(),
            communication=self.communication.copy(),
            pending_since=self.pending.copy(),
            noise_scale=500.0,
            hints=Hints(
                amp_ratio=RHO, host_seconds=0.0, clean_seconds=self.clean, batch=BATCH,
                microbatches=4,
                samples=self.updates * BATCH * self.world_size // 2, noise_scale=500.0,
            ),
            truth=lambda: np.array([self._slowdown(r, version) for r in range(self.world_size)]),
        )  # fmt: skip

    def _update(self, version: int, plan: Plan) -> None:
        assert isinstance(plan.precision, tuple)
        samples = plan.samples(BATCH, self.world_size)
        delivered = [
            rank
            for quorum in plan.quorums
            for rank in self.random.permutation(quorum.members)[: quorum.needed]
        ]
        self.pending[delivered] = np.nan
        for rank in delivered:
            amp, share = plan.precision[rank] is Precision.AMP, samples[rank] / BATCH
            time = self._duration(rank, version) * share
            for window, value in (
                (self.times, time / RHO if amp else time), (self.amp, amp), (self.shares, share),
                (self.communication, self._transfer()),
            ):  # fmt: skip
                window[rank, :-1] = window[rank, 1:]
                window[rank, -1] = value
            self.steps[rank] += 1
            self.samples += samples[rank]
        waiting = self.random.permutation(delivered)[: len(delivered) // 2]
        self.pending[waiting] = float(version)

    def _duration(self, rank: int, version: int) -> float:
        return self._slowdown(rank, version) * self.random.normal(1.0, 0.02)

    def _transfer(self) -> float:
        return self.random.uniform(0.01, 0.02)

    @staticmethod
    def _slowdown(rank: int, version: int) -> float:
        return 2.0 if 20 < version <= 70 and rank == (version - 20) // 40 else 1.0


class TiedWorld(World):
    """Every time is a whole multiple of .05 s and most ranks are exactly as fast as another, so
    that thresholds such as 1.05, 1.1, 1.2 and 2 times the fastest are met to the last bit.
    """

    clean = 0.1

    def _duration(self, rank: int, version: int) -> float:
        factors = (1.0, 1.0, 1.05, 1.1, 1.2, 1.25, 2.0, 3.0)
        return self.clean * factors[(rank + version // 25) % len(factors)]

    def _transfer(self) -> float:
        return 0.0
