"""A lock-step driver for bulk-synchronous policies: the simplest world to judge Korel in.

It shares nothing with the engine: every update lasts as long as its slowest rank, contention is
looked up at the start of a step, and noise is a matrix drawn beforehand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Floats
from simstrag.contract import WINDOW, Hints, Plan, Policy, Precision, View
from simstrag.policies.bsp import Bsp

Contention = Callable[[int, float], float | Floats]
"""The slowdown of the contended ranks in the step of this number that starts at this time."""


@dataclass(frozen=True)
class World:
    """N ranks whose clean step takes host + gpu seconds, some of them contended.

    contention: their slowdown; resource: of which part, `gpu` or `host`.  rho: full over AMP time
    of a clean step.  cv: of the noise.  hints: what the policy is told; by default the truth.
    every: the policy is asked after so many updates only; lag: so many updates later its answer
    is obeyed.
    """

    contention: Contention = lambda step, time: 1.0
    updates: int = 2000
    n: int = 8
    contended: Collection[int] = (0,)
    resource: str = "gpu"
    host: float = 0.0
    gpu: float = 1.0
    rho: float = 1.66
    cv: float = 0.0
    seed: int = 0
    hints: Hints | None = None
    every: int = 1
    lag: int = 0

    @property
    def told(self) -> Hints:
        if self.hints is not None:
            return self.hints
        return Hints(amp_ratio=self.rho, host_seconds=self.host, clean_seconds=self.clean)

    @property
    def clean(self) -> float:
        return self.host + self.gpu

    def work(self, step: int, time: float, amp: npt.NDArray[np.bool_]) -> Floats:
        """Noise-free seconds of each rank's step, shape (n,)."""
        contended = np.isin(np.arange(self.n), list(self.contended))
        slowdown = np.where(contended, self.contention(step, time), 1.0)
        gpu = np.where(amp, self.clean / self.rho - self.host, self.gpu)
        if self.resource == "host":
            return self.host * slowdown + gpu
        return self.host + gpu * slowdown


@dataclass(frozen=True)
class BspRun:
    """What happened: seconds of each update, and the plan after so many updates."""

    seconds: Floats
    plans: list[Plan]
    amp_steps: int
    summary: dict[str, int | float]

    @property
    def makespan(self) -> float:
        return float(self.seconds.sum())

    def suspected(self, rank: int) -> list[int]:
        """The versions at which the policy took this rank for a straggler."""
        return [version for version, plan in enumerate(self.plans) if rank in (plan.suspects or ())]


@functools.lru_cache(maxsize=64)
def noise(seed: int, updates: int, n: int, cv: float) -> Floats:
    """Mean-1 lognormal factors, shape (updates, n): the same for every policy."""
    if cv == 0:
        return np.ones((updates, n))
    sigma = math.sqrt(math.log1p(cv * cv))
    columns = [np.random.default_rng([seed, rank]).standard_normal(updates) for rank in range(n)]
    return np.exp(sigma * np.column_stack(columns) - sigma * sigma / 2)


def bsp_run(policy: Policy, world: World) -> BspRun:
    """Drive a bulk-synchronous policy through `world`, asking it after every update."""
    n, hints = world.n, world.told
    factors = noise(world.seed, world.updates, n, world.cv)
    times, amps = np.full((n, WINDOW), math.nan), np.zeros((n, WINDOW), dtype=bool)
    plans = [policy.plan(View(n, hints=hints))]
    seconds, now, amp_steps = [], 0.0, 0
    for update in range(world.updates):
        amp = in_amp(plans[max(update - world.lag, 0)], n)
        local = world.work(update, now, amp) * factors[update]
        seconds.append(float(local.max()))
        now += seconds[-1]
        amp_steps += int(amp.sum())
        times = np.column_stack([times[:, 1:], local])
        amps = np.column_stack([amps[:, 1:], amp])
        version, plan = update + 1, plans[-1]
        if plan.review.updates is not None and version % world.every == 0:
            steps = np.full(n, version)
            plan = policy.plan(
                View(n, version, time=now, steps=steps, local_times=times, amp=amps, hints=hints)
            )
        plans.append(plan)
    counted: dict[str, int | float] = getattr(policy, "summary", dict)()
    return BspRun(np.array(seconds), plans, amp_steps, counted)


def in_amp(plan: Plan, n: int) -> npt.NDArray[np.bool_]:
    """Which ranks compute in reduced precision, shape (n,)."""
    precision = plan.precision if isinstance(plan.precision, tuple) else (plan.precision,) * n
    return np.array([p is Precision.AMP for p in precision])


def mitigation(policy: Policy, world: World) -> tuple[float, BspRun]:
    """The share of the straggler delay that a policy removes, under common random numbers."""
    run = bsp_run(policy, world)
    return share(run.makespan, world), run


def share(makespan: float, world: World) -> float:
    """M: where between plain bsp (0) and a clean cluster (1) a makespan lies."""
    slow = bsp_run(Bsp(), world).makespan
    factors = noise(world.seed, world.updates, world.n, world.cv)
    clean = world.clean * float(factors.max(axis=1).sum())
    return (slow - makespan) / (slow - clean)


def steps_between(c: float, first: int, last: int) -> Contention:
    """Slowdown c in the steps first..last-1."""
    return lambda step, time: c if first <= step < last else 1.0


def seconds_between(c: float, start: float, end: float) -> Contention:
    """Slowdown c in the steps that start within [start, end)."""
    return lambda step, time: c if start <= time < end else 1.0
