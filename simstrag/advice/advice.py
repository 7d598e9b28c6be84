"""Advice for one job as values: the choice, how sure it is, what to measure, what a trial costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simstrag.advice.halving import ALIKE, CandidateResult
from simstrag.analysis.derived.decision import MODEL_ERROR, OWN, Decision, State
from simstrag.analysis.text.answer import Answer
from simstrag.experiments.comparison import BASELINE, Comparison
from simstrag.experiments.paired_statistics import Array, quantile, ratio

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
    gpu_hours: of all of them, each as long as the scenario's.
    """

    runs: int
    gpu_hours: float


@dataclass(frozen=True)
class Advice:
    """Advice for one scenario.

    comparison, answer: of the finalists.
    trials: every candidate that ran, the least regret first.
    excluded: why a candidate was not run, by its spec.
    sentences: what to do, how sure that is, what would change it, and what a trial costs.
    """

    comparison: Comparison
    answer: Answer
    trials: tuple[CandidateResult, ...]
    excluded: Mapping[str, str]
    sentences: tuple[str, ...] = ()

    @property
    def decision(self) -> Decision:
        """The decision of the comparison."""
        return self.answer.decision

    @cached_property
    def choice(self) -> str:
        """The spec of the policy to run, if what is assumed holds.

        Of the finalists that are at most `NEAR` behind the fastest, the one with the least worst
        regret over what is assumed; of those that are as good, the one that changes training least.
        It is bsp where no gain is shown, or where the largest is below `MODEL_ERROR`.
        """
        d, own = self.decision, self.decision.states[OWN]
        shown = [p for p in d.candidates if p != BASELINE]
        if not shown:
            return BASELINE
        least = min(own[p] for p in shown)
        near = [p for p in shown if own[p] <= (1 + NEAR) * least]
        limit = min(d.regrets[p].worst for p in near) + ALIKE
        good = [p for p in near if d.regrets[p].worst <= limit]
        return min(good, key=lambda p: (d.effects[p].lane, d.regrets[p].worst))

    @property
    def safe(self) -> str:
        """The finalist with the least worst regret over what is assumed, as `compare` chooses."""
        return self.decision.safe

    @cached_property
    def alike(self) -> tuple[str, ...]:
        """The other finalists that are not shown to differ from the choice by more than `ALIKE`."""
        s = self.decision.s
        own = s.comparison.column(self.choice, s.decides).mean()
        found = []
        for policy in self.decision.states[OWN]:
            gap = s.between(policy, self.choice)
            if policy != self.choice and not (gap.low > ALIKE * own or gap.high < -ALIKE * own):
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
        s = self.decision.s
        own = s.comparison.column(self.choice, s.decides)
        names = [p for p in self.decision.states[OWN] if p != self.choice]
        others = [s.comparison.column(p, s.decides) for p in names]
        if s.certain and s.seeds < 2:
            return max([0.0, *(float(own[0] / times[0]) - 1 for times in others)])
        share = 2 * 0.05 / max(1, len(others))
        ends = [ratio(own, times, share).high - 1 for times in others]
        return max([0.0, *ends]) if not any(map(math.isnan, ends)) else math.nan

    @cached_property
    def assumption(self) -> Assumption | None:
        """The assumed constant at which the choice falls behind most; None below `MODEL_ERROR`."""
        worst: tuple[float, State, str] | None = None
        for state, times in self.decision.states.items():
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
        """The cost of seeing the gain; None where nothing is to change, or seeds are too few."""
        s, scenario = self.decision.s, self.comparison.scenario
        if self.choice == BASELINE:
            return None
        own, bsp = (s.comparison.column(p, s.decides) for p in (self.choice, BASELINE))
        runs = 1 if s.certain else _runs(own, bsp)
        if runs is None:
            return None
        hours = runs * float(own.mean() + bsp.mean()) * scenario.gpus / 3600
        return Attempt(runs, hours)

    @property
    def lines(self) -> tuple[str, str]:
        """The two lines that run the choice on real ranks: one of the script, one of the shell."""
        scenario = self.comparison.scenario
        return (
            f'trainer = simstrag.ddp.wrap(model, optimizer, policy="{self.choice}", '
            f"batch={scenario.learner.batch})",
            f"simstrag ddp train.py --ranks {scenario.workers}",
        )

    def to_dict(self) -> dict[str, Any]:
        """The advice for JSON."""
        return {
            "choice": self.choice,
            "alike": self.alike,
            "regret": self.regret,
            "measure_first": self.assumption and self.assumption._asdict(),
            "attempt": self.attempt and self.attempt._asdict(),
            "lines": self.lines,
            "sentences": self.sentences,
            "answer": self.answer.to_dict(),
            "trials": [
                {slot: getattr(t, slot) for slot in CandidateResult.__slots__} for t in self.trials
            ],
            "excluded": self.excluded,
        }

    def __str__(self) -> str:
        return "\n".join([*self.comparison.warnings, *self.sentences, *self.lines])

    def _repr_html_(self) -> str:
        return self.comparison._repr_html_()


def _runs(own: Array, others: Array) -> int | None:
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
