"""The inputs that every engine is given: the same step times, noise and slowdowns for all.

Every rank has a step time of its own; every 16th is a straggler.  All else is one number for all:
`REDUCE`, `PUSH`, `PULL`, and a server that is busy for about half of the time if nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simstrag.engine.simulate import simulate
from simstrag.plan import Plan
from simstrag.policies.cgp import group_by_speed
from simstrag.policy import Policy, Quorum, Via, View
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.noise import Noise
from simstrag.timing.timing import Timing
from simstrag.trace.slowdown import Piecewise, finish

__all__ = ["POLICIES", "Fixed", "Job"]

Floats = npt.NDArray[np.float64]
COMPUTE, CV, AMP_RATIO = 0.1, 0.05, 1.6
PUSH = PULL = 0.001
BUSY = 0.5
"""Seconds of service that come in per second from ranks that wait for nobody, about."""
GROUP = 8
SPARE = 1.4
"""How many times as many factors are drawn as the mean rank has steps: the quickest have more."""
POLICIES = ("bsp", "asgd", "ssp", "backup", "cgp", "korel")
BOUND, BACKUPS = 3, 1
"""What `ssp` and `backup` do by default."""


@dataclass(frozen=True)
class Fixed:
    """A policy that has one plan."""

    plan_: Plan

    def plan(self, view: View) -> Plan:
        return self.plan_


@dataclass(frozen=True)
class Job:
    """One job under one policy; it ends when `workers` x `rounds` gradients are applied.

    noise: lognormal, independent from step to step.  breakpoints: of each rank's slowdown, evenly
    spread over about the time of the run.
    """

    policy: str
    workers: int
    rounds: int
    noise: bool = True
    breakpoints: int = 0
    seed: int = 0

    @property
    def gradients(self) -> int:
        """How many are to be applied."""
        return self.workers * self.rounds

    @property
    def service(self) -> float:
        """Seconds of the server per job, which is of a gradient, or of a group's."""
        return BUSY * COMPUTE / (len(self.groups) if self.policy == "cgp" else self.workers)

    @cached_property
    def groups(self) -> list[tuple[int, ...]]:
        """Groups of 8, by speed, as `cgp:max_group=8` forms them of what it measures."""
        return group_by_speed(self._slowdowns[0], ratio=np.inf, max_group=GROUP)

    @cached_property
    def scenario(self) -> Scenario:
        """What the engine reads."""
        return Scenario.of(
            {
                "workers": self.workers,
                "samples": self.gradients,
                "step": {"compute": COMPUTE, "amp_ratio": AMP_RATIO, "cv": CV * self.noise},
                "allreduce": {"bytes": 1e8, "bandwidth": 1e10},
                "server": {"service": self.service, "push": PUSH, "pull": PULL},
                "learner": {"batch": 1},
                "trace": self.trace,
            }
        )

    @property
    def followed(self) -> str | Policy:
        """What the engine is to follow.  Of cgp the groups are fixed: nobody else plans any."""
        if self.policy == "cgp":
            return Fixed(Plan(tuple(Quorum(g, via=Via.LEADER) for g in self.groups), fuse=True))
        return self.policy

    def simulate(self) -> Run:
        """This project's engine, with a sample of updates for a log."""
        return simulate(self.scenario, self.followed, self.seed, record_updates=False)

    @cached_property
    def timing(self) -> Timing:
        """The constants of the engine's own scenario."""
        return self.scenario.timing(self.seed)

    def reduce(self, members: int) -> float:
        """Seconds of an all-reduce among so many."""
        return self.timing.allreduce.seconds((1,) * members)

    @cached_property
    def drawn(self) -> Floats:
        """The noise, shape (steps, workers), from the project's own streams (rule 4)."""
        if not self.noise:
            return np.ones((self._steps, self.workers))
        noise, ranks = Noise(self.seed, self.timing.step.draw), range(self.workers)
        return np.array([[noise.factor(rank, k) for rank in ranks] for k in range(self._steps)])

    @cached_property
    def factors(self) -> list[list[float]]:
        """The noise of every rank's steps."""
        return _by_rank(self.drawn)

    @cached_property
    def stretch(self) -> list[list[Piecewise]]:
        """Seconds per unit of work over time, of every rank, in full and in reduced precision."""
        return [
            [self.timing.stretch(rank, amp) for amp in (False, True)]
            for rank in range(self.workers)
        ]

    @cached_property
    def durations(self) -> list[list[float]]:
        """Seconds of every rank's steps, where no breakpoint makes them depend on the clock."""
        seconds = [full.values[0] for full, _ in self.stretch]
        return _by_rank(self.drawn * seconds)

    def prepare(self) -> None:
        """Make what is given to all engines, so that nobody's time is spent on it."""
        _ = self.factors if self.breakpoints or self.policy == "korel" else self.durations
        _ = self.stretch, self.groups

    def ends(self) -> Callable[[int, float], float]:
        """A function of rank and start: when the rank's next step ends, one after the other."""
        if self.breakpoints:
            works, full = [iter(row).__next__ for row in self.factors], [f for f, _ in self.stretch]
            return lambda rank, start: finish(start, works[rank](), full[rank])
        following = [iter(row).__next__ for row in self.durations]
        return lambda rank, start: start + following[rank]()

    def seconds(self) -> Callable[[int, float], float]:
        """The same as a duration, which is what SimPy is told."""
        if self.breakpoints:
            ends = self.ends()
            return lambda rank, start: ends(rank, start) - start
        following = [iter(row).__next__ for row in self.durations]
        return lambda rank, start: following[rank]()

    @property
    def _steps(self) -> int:
        return int(SPARE * self.rounds) + 16

    @cached_property
    def _slowdowns(self) -> Floats:
        """Shape (1 + breakpoints, workers)."""
        rng = np.random.default_rng(self.seed)
        slowdowns = 1 + 0.1 * rng.random((1 + self.breakpoints, self.workers))
        slowdowns[:, 5::16] *= 1.8
        return slowdowns

    @property
    def trace(self) -> tuple[dict[str, float | str], ...]:
        every = 1.5 * COMPUTE * self.rounds / (1 + self.breakpoints)
        return tuple(
            {"time": k * every, "node": rank, "resource": "gpu", "kind": "slowdown", "value": value}
            for k, row in enumerate(self._slowdowns.tolist())
            for rank, value in enumerate(row)
        )


def _by_rank(steps: Floats) -> list[list[float]]:
    """A list per rank; what ranks need at about the same time stands together in memory."""
    return list(map(list, zip(*steps.tolist(), strict=True)))
