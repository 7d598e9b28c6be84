"""What each policy would have given a recorded job: simulated on the scenario of its record."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import BASELINE, Comparison
from simstrag.policies import declared_lane, load
from simstrag.whatif.job_scenario import JobScenario

ROUNDING = 1e-9
"""Relative difference of two times that is none."""
READINGS = ("device", "host")
"""The part of a step that each reading takes as slowed."""


@dataclass(frozen=True, slots=True)
class PolicyOutlook:
    """What a policy would have given the job, under each reading.

    lane: how much it changes training, as it declares it: A, B, C, or None.
    seconds: of a step, which is one batch of every replica.
    slowdowns: S that is left: these over the ideal step.
    won_back: share of what stragglers cost; NaN where they cost nothing, 0 within rounding of bsp.
    amp_share: of the steps that were in reduced precision.
    """

    policy: str
    lane: str | None
    seconds: tuple[float, ...]
    slowdowns: tuple[float, ...]
    won_back: tuple[float, ...]
    amp_share: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class PoliciesOnRecord:
    """Policies compared on the scenario of a record.

    job: the scenario under each reading.
    comparisons: one of each reading.
    replayed, ideal: seconds of a mean step in the replay of the record.
    """

    job: JobScenario
    comparisons: tuple[Comparison, ...]
    replayed: float
    ideal: float

    @property
    def host_shares(self) -> tuple[float, ...]:
        """The host's share of the contention in each reading."""
        return tuple(each.contention.host_share for each in self.job.readings)

    @functools.cached_property
    def outlooks(self) -> tuple[PolicyOutlook, ...]:
        """One of each policy, the quickest first; of two readings the slower counts."""
        found = (self._outlook(policy) for policy in self.comparisons[0].policies)
        return tuple(sorted(found, key=lambda each: max(each.seconds)))

    @property
    def bsp_error(self) -> float:
        """Largest relative distance of S under bsp from S of the replay; rounding alone."""
        (bsp,) = (each for each in self.outlooks if each.policy == BASELINE)
        return max(abs(seconds / self.replayed - 1) for seconds in bsp.seconds)

    @functools.cached_property
    def warnings(self) -> tuple[str, ...]:
        """Those of all readings, each once, whatever the count of numbers in it.

        One that is not of every reading says of which it is.
        """
        found: dict[str, list[int]] = {}
        shown: dict[str, str] = {}
        for k, each in enumerate(self.comparisons):
            for line in each.warnings:
                key = line.partition(" numbers ")[2] or line
                found.setdefault(key, []).append(k)
                shown[key] = line
        every = len(self.comparisons)
        return tuple(
            line
            if len(found[key]) == every
            else f"if the {READINGS[found[key][0]]} was slowed, {line}"
            for key, line in shown.items()
        )

    @property
    def document(self) -> dict[str, Any]:
        """The contents of `policies` in `--json`."""
        return {
            "communication_seconds": self.job.communication,
            "bsp_over_replay": 1 + self.bsp_error,
            "host_share": list(self.host_shares),
            "ranking": [
                {"policy": each.policy, "lane": each.lane, "seconds_per_step": list(each.seconds),
                 "slowdown": list(each.slowdowns), "won_back": list(each.won_back),
                 "amp_share": list(each.amp_share)}
                for each in self.outlooks
            ],
            "warnings": list(self.warnings),
        }  # fmt: skip

    def _outlook(self, policy: str) -> PolicyOutlook:
        steps = self.job.durations.shape[1]
        seconds, amp = (
            tuple(float(each.column(policy, name).mean()) for each in self.comparisons)
            for name in ("makespan", "amp_share")
        )
        seconds = tuple(each / steps for each in seconds)
        return PolicyOutlook(
            policy, declared_lane(load(policy), policy), seconds,
            tuple(each / self.ideal for each in seconds), tuple(map(self._won_back, seconds)), amp,
        )  # fmt: skip

    def _won_back(self, seconds: float) -> float:
        lost, saved = self.replayed - self.ideal, self.replayed - seconds
        if not lost:
            return math.nan
        return 0.0 if abs(saved) < ROUNDING * self.replayed else saved / lost


def compare_policies(
    job: JobScenario, replayed: float, ideal: float, jobs: int | None = None
) -> PoliciesOnRecord:
    """Simulate the policies of a job's scenario under each reading.

    replayed, ideal: seconds of a mean step in the replay of the record.
    jobs: processes; all cores by default.
    """
    found: Sequence[Comparison] = [compare(reading, jobs=jobs) for reading in job.readings]
    return PoliciesOnRecord(job, tuple(found), replayed, ideal)
