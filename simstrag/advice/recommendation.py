"""What a search recommends, from the times of its finalists: the choice, and how sure it is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simstrag.advice.halving import ALIKE, CandidateResult
from simstrag.arrays import Floats
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.decision import MODEL_ERROR, OWN, Choice, PolicyDecision, Setting, choose
from simstrag.experiments.paired_statistics import Estimate, exact, quantile
from simstrag.rendering import answer

POWER, MOST_RUNS = 0.9, 1000
"""The probability with which a trial shows the simulated gain; beyond so many runs, no trial."""
NEAR = 0.03
"""The choice is at most this share behind the fastest finalist, if what is assumed holds."""


class Assumption(NamedTuple):
    """A constant on which the choice hangs: at `value`, another policy is better.

    regret: how far the choice is behind it there, as a share of its time.
    """

    constant: str
    value: float
    rival: str
    regret: float


class Attempt(NamedTuple):
    """What it takes to see the gain of the choice over bsp in real runs.

    runs: of each; so many that a Welch test at 95 % shows the simulated gain in nine of ten trials,
        if real runs scatter as the seeds do.  A cluster gives no two runs the same contention, so
        they are not paired.
    gpu_hours: of all of them, each as long as a simulated one.
    """

    runs: int
    gpu_hours: float


@dataclass(frozen=True, kw_only=True)
class Recommendation(PolicyDecision, ABC):
    """The choice among several finalists.

    certain: whether nothing is random.
    trials: every candidate that ran, the least regret first.
    excluded: why a candidate was not run, by its spec.
    beyond: what any candidate took from a profile beyond the range that was measured.
    """

    certain: bool = False
    trials: tuple[CandidateResult, ...]
    excluded: Mapping[str, str]
    beyond: tuple[str, ...] = ()

    @property
    def times(self) -> Mapping[str, Floats]:
        """Seconds of each finalist under each seed."""
        return self.samples[OWN]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What no sentence says and a reader must know of the runs."""
        return ()

    @property
    @abstractmethod
    def lines(self) -> tuple[str, ...]:
        """The lines that run the choice."""

    @abstractmethod
    def hours(self, policy: str) -> float:
        """Mean GPU-hours of a run."""

    @property
    def seeds(self) -> int:
        """Number of seeds of each finalist."""
        return len(self.times[BASELINE])

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """What to do, how sure that is, what would change it, and what a trial costs."""
        return tuple(answer(self))

    @property
    def outside(self) -> float:
        """The error of each interval: 5 % over all candidates that were tried against bsp.

        The finalists are the best of these under the same seeds, so what one interval excludes one
        of many excludes by luck (Bonferroni's correction).
        """
        return 0.05 / max(1, sum(not math.isnan(trial.regret) for trial in self.trials) - 1)

    def gap(self, policy: str, other: str) -> Estimate:
        """The paired difference in seconds, with the interval of `outside`."""
        own, others = self.times[policy], self.times[other]
        found = self.by.difference(own, others, self.outside)
        return exact(self.certain and self.seeds < 2, found, float(others.mean()))

    @cached_property
    def shown(self) -> set[str]:
        """The finalists shown to be faster than bsp."""
        return {name for name in self.times if self.gap(name, BASELINE).high < 0}

    @cached_property
    def selection(self) -> Choice:
        """The choice if what is assumed holds, of the finalists at most `NEAR` behind the fastest.

        It is bsp where no gain is shown, or where the largest is below `MODEL_ERROR`.
        """
        own = self.states[OWN]
        shown = [p for p in self.candidates if p != BASELINE] or [BASELINE]
        least = min(own[p] for p in shown)
        near = [p for p in shown if own[p] <= (1 + NEAR) * least]
        return choose(self.samples, near, self.lane_of, self.by)

    @property
    def choice(self) -> str:
        """The spec of the policy to run, if what is assumed holds."""
        return self.selection.policy

    @cached_property
    def alike(self) -> tuple[str, ...]:
        """The other finalists that are not shown to differ from the choice by more than `ALIKE`."""
        limit, found = ALIKE * self.states[OWN][self.choice], []
        for policy in self.times:
            gap = self.gap(policy, self.choice)
            if policy != self.choice and not (gap.low > limit or gap.high < -limit):
                found.append(policy)
        return tuple(found)

    @cached_property
    def regret(self) -> float:
        """The additional time over the best finalist that the seeds do not exclude, as a share.

        What was left out before is not in it.

        The upper ends of one-sided 95 % intervals of the ratio to each finalist, with Bonferroni's
        correction; 0 where the choice leads each of them.  NaN for a single seed that does not
        suffice.
        """
        own = self.times[self.choice]
        others = [times for policy, times in self.times.items() if policy != self.choice]
        if self.certain and self.seeds < 2:
            return max([0.0, *(float(own[0] / times[0]) - 1 for times in others)])
        share = 2 * 0.05 / max(1, len(others))
        ends = [self.by.ratio(own, times, share).high - 1 for times in others]
        return max([0.0, *ends]) if not any(map(math.isnan, ends)) else math.nan

    @cached_property
    def assumption(self) -> Assumption | None:
        """The assumed constant at which the choice falls behind most; None below `MODEL_ERROR`."""
        worst: tuple[float, Setting, str] | None = None
        for state, times in self.states.items():
            rival = min(times, key=times.__getitem__)
            behind = times.get(self.choice, math.nan) / times[rival] - 1
            if state[0] and behind >= MODEL_ERROR and (worst is None or behind > worst[0]):
                worst = behind, state, rival
        if worst is None:
            return None
        behind, (constant, value), rival = worst
        return Assumption(constant, value, rival, behind)

    @cached_property
    def attempt(self) -> Attempt | None:
        """The cost of seeing a mean gain; None where nothing is to change, or seeds are too few."""
        if self.choice == BASELINE or self.by.quantile is not None:
            return None
        runs = 1 if self.certain else _runs(self.times[self.choice], self.times[BASELINE])
        if runs is None:
            return None
        return Attempt(runs, runs * (self.hours(self.choice) + self.hours(BASELINE)))

    def to_dict(self) -> dict[str, Any]:
        """The advice for JSON."""
        return {
            "choice": self.choice,
            "by": {
                "quantile": self.by.quantile,
                "seeds_needed": self.by.seeds,
                "seconds": self.states[OWN],
            },
            "safe": self.safe,
            "alike": self.alike,
            "regret": self.regret,
            "measure_first": self.assumption and self.assumption._asdict(),
            "attempt": self.attempt and self.attempt._asdict(),
            "lines": self.lines,
            "sentences": self.sentences,
            "trials": [
                {slot: getattr(t, slot) for slot in CandidateResult.__slots__} for t in self.trials
            ],
            "excluded": self.excluded,
        }

    def __str__(self) -> str:
        return "\n".join([*self.warnings, *self.sentences, *self.lines])


def _runs(own: Floats, others: Floats) -> int | None:
    """The runs of each with which Welch's test shows the means to differ, with a power of 90 %.

    None where the first mean is not below the other, or there are too few to know the spread.
    """
    gain = float(np.mean(others) - np.mean(own))
    if len(own) < 2 or not gain > 0:
        return None
    first, second = (float(np.var(times, ddof=1)) for times in (own, others))
    runs = 2
    while runs < MOST_RUNS:
        error = math.sqrt((first + second) / runs)
        freedom = 2.0 * (runs - 1)
        if first + second > 0:
            freedom = (runs - 1) * (first + second) ** 2 / (first**2 + second**2)
        if (quantile(freedom) + quantile(freedom, 2 * (1 - POWER))) * error < gain:
            return runs
        runs += 1
    return None
