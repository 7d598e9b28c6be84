"""Inputs that every engine gets: the same step times, noise, slowdowns and reviews.

Each rank has its own step time; every 16th rank is a straggler.  The other constants are the same
for all ranks.  The server is busy for about half of the time if no rank waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simstrag import policies
from simstrag.arrays import Floats, Ints
from simstrag.contract import WINDOW, Hints, Plan, Policy, Precision, Quorum, Via, View
from simstrag.engine.simulate import simulate
from simstrag.policies.cgp import group_by_speed
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.noise import Noise
from simstrag.timing.timing import Timing
from simstrag.trace.slowdown import Piecewise, finish

__all__ = ["POLICIES", "FixedPolicy", "Job", "KorelReviews"]

StepClock = Callable[[int, float], float]
"""A function of a rank and the start of its next step; each call takes one step."""
COMPUTE, CV, LAG1, AMP_RATIO = 0.1, 0.05, 0.56, 1.6
PUSH = PULL = 0.001
BUSY = 0.5
"""Server load without blocking: seconds of service that arrive per second, approximately."""
GROUP = 8
SPARE = 1.4
"""Drawn noise factors per step of the mean rank; fast ranks take more steps than the mean."""
NOISES: dict[str, float | None] = {"no noise": None, "noise": 0.0, "lasting noise": LAG1}
"""Autocorrelation of noise by its name; that of lasting noise is the shipped profile's."""
POLICIES = ("bsp", "asgd", "ssp", "backup", "cgp", "korel")
BOUND, BACKUPS = 3, 1
"""Default parameters of `ssp` and `backup`."""


@dataclass(frozen=True)
class FixedPolicy:
    """A policy with one plan."""

    plan_: Plan

    def plan(self, view: View) -> Plan:
        return self.plan_


@dataclass(frozen=True)
class Job:
    """One job under one policy; it ends when `workers` x `rounds` gradients are applied.

    noise: a name in `NOISES`; factors are lognormal.
    breakpoints: breakpoints of each rank's slowdown, spread evenly over about the makespan.
    """

    policy: str
    workers: int
    rounds: int
    noise: str = "noise"
    breakpoints: int = 0
    seed: int = 0

    @property
    def gradients(self) -> int:
        """Number of gradients at which the job ends."""
        return self.workers * self.rounds

    @property
    def service(self) -> float:
        """Service time of the server in seconds, per gradient, or per group for `cgp`."""
        return BUSY * COMPUTE / (len(self.groups) if self.policy == "cgp" else self.workers)

    @cached_property
    def groups(self) -> list[Ints]:
        """Groups of 8 ranks by speed, as `cgp:max_group=8` forms them from its measurements."""
        return group_by_speed(self._slowdowns[0], ratio=np.inf, max_group=GROUP)

    @cached_property
    def scenario(self) -> Scenario:
        """The job as a scenario of simstrag."""
        lag1 = NOISES[self.noise]
        return Scenario.of(
            {
                "workers": self.workers,
                "samples": self.gradients,
                "step": {"compute": COMPUTE, "amp_ratio": AMP_RATIO, "cv": CV * (lag1 is not None)},
                "noise": {"lag1": lag1 or 0.0},
                "allreduce": {"bytes": 1e8, "bandwidth": 1e10},
                "server": {"service": self.service, "push": PUSH, "pull": PULL},
                "learner": {"batch": 1},
                "trace": self.trace,
            }
        )

    def simulate(self) -> Run:
        """Run simstrag's engine with sampled updates.

        The groups of cgp are fixed, because the other engines do not plan any.
        """
        policy: str | Policy = self.policy
        if policy == "cgp":
            quorums = tuple(Quorum(ranks, via=Via.LEADER) for ranks in self.groups)
            policy = FixedPolicy(Plan(quorums, fuse=True))
        return simulate(self.scenario, policy, self.seed, record_updates=False)

    @cached_property
    def timing(self) -> Timing:
        """Constants of the scenario, as simstrag's engine uses them."""
        return self.scenario.timing(self.seed)

    def reduce(self, members: int) -> float:
        """Seconds of an all-reduce of that number of members."""
        return self.timing.allreduce.seconds((1,) * members)

    @cached_property
    def factors(self) -> list[list[float]]:
        """Noise factors of every rank's steps."""
        return _by_rank(self._noise)

    @cached_property
    def stretch(self) -> list[list[Piecewise]]:
        """Seconds per unit of work over time, of every rank, in full and in reduced precision."""
        return [
            [self.timing.stretch(rank, amp) for amp in (False, True)]
            for rank in range(self.workers)
        ]

    @cached_property
    def durations(self) -> list[list[float]]:
        """Seconds of every rank's steps, for jobs without breakpoints."""
        return _by_rank(self._noise * [full.values[0] for full, _ in self.stretch])

    def prepare(self) -> None:
        """Compute the inputs of all engines before any of them is timed."""
        _ = self.factors if self.breakpoints or self.policy == "korel" else self.durations
        _ = self.stretch, self.groups

    def ends(self) -> StepClock:
        """A function of rank and start that returns the end of the rank's next step."""
        if self.breakpoints:
            works, full = [iter(row).__next__ for row in self.factors], [f for f, _ in self.stretch]
            return lambda rank, start: finish(start, works[rank](), full[rank])
        following = [iter(row).__next__ for row in self.durations]
        return lambda rank, start: start + following[rank]()

    def seconds(self) -> StepClock:
        """A function of rank and start that returns the duration of the rank's next step."""
        if self.breakpoints:
            ends = self.ends()
            return lambda rank, start: ends(rank, start) - start
        following = [iter(row).__next__ for row in self.durations]
        return lambda rank, start: following[rank]()

    @cached_property
    def _noise(self) -> Floats:
        """Noise factors, shape (steps, workers), from simstrag's own streams (rule 4)."""
        steps, ranks = int(SPARE * self.rounds) + 16, range(self.workers)
        noise = Noise(self.seed, self.timing.step.noise)
        return np.array([[noise.factor(rank, k) for k in range(steps)] for rank in ranks]).T

    @cached_property
    def _slowdowns(self) -> Floats:
        """Slowdown of every rank, shape (1 + breakpoints, workers)."""
        rng = np.random.default_rng(self.seed)
        slowdowns = 1 + 0.1 * rng.random((1 + self.breakpoints, self.workers))
        slowdowns[:, 5::16] *= 1.8
        return slowdowns

    @property
    def trace(self) -> tuple[dict[str, float | str], ...]:
        """Rows of the trace: the slowdown of every rank from each breakpoint on."""
        every = 1.5 * COMPUTE * self.rounds / (1 + self.breakpoints)
        return tuple(
            {"time": k * every, "node": rank, "resource": "gpu", "kind": "slowdown", "value": value}
            for k, row in enumerate(self._slowdowns.tolist())
            for rank, value in enumerate(row)
        )


def _by_rank(steps: Floats) -> list[list[float]]:
    """A list per rank; the numbers that ranks need at about the same time are close in memory."""
    return list(map(list, zip(*steps.tolist(), strict=True)))


class KorelReviews:
    """The korel policy for the other engines: step times by its plan, and the views it reviews.

    Every rank takes one step per update.
    """

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
        """End of the rank's next step, in the precision that the plan gives the rank."""
        stretch = self._stretch[rank][self._in_amp[rank]]
        end = finish(start, self._works[rank](), stretch)
        self._last[rank] = end - start
        return end

    def seconds(self, rank: int, start: float) -> float:
        """Duration of the rank's next step."""
        return self.end(rank, start) - start

    def review(self, version: int, now: float) -> None:
        """Let the policy plan again, after an update with the gradients of all ranks."""
        times, amp, n = self._times, self._amp, len(self._last)
        times[:, :-1], amp[:, :-1] = times[:, 1:], amp[:, 1:]
        times[:, -1], amp[:, -1] = self._last, self._in_amp
        steps = np.full(n, version)
        view = View(n, version, version * n, now, steps, times, amp, hints=self._hints)
        plan = self._policy.plan(view)
        if plan is not self._plan:
            self._plan = plan
            precision = plan.resolved(n).precision
            assert isinstance(precision, tuple)
            self._in_amp = [own is Precision.AMP for own in precision]
