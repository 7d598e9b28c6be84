"""Successive halving over seeds: the candidates that may be the best get more runs.

Every candidate runs under two seeds.  Then those stay that are in the better half, and those of the
other half that no paired t test shows to be slower than the best; the seeds double.  It ends with
the scenario's seeds, or with as many candidates as a comparison takes.  Better is what has a better
place in worst regret, or in mean time at any cost of staleness that is tried.

Source: K. Jamieson, A. Talwalkar, "Non-stochastic best arm identification and hyperparameter
optimization", AISTATS 2016, for the halving; the paired test is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from simstrag.arrays import Floats
from simstrag.experiments.criterion import MEAN, Criterion
from simstrag.experiments.runner import BASELINE

FINALISTS = 8
"""The most candidates that are compared under all seeds, bsp apart."""
ALIKE = 0.01
"""Policies whose difference is not shown to be above this share of the time count as alike."""
FIRST = 2
"""Seeds of the first round, the fewest with which a difference can be tested."""
UNKNOWN = "its samples may be worth less, and no target is declared"
"""Why a candidate with stale or otherwise changed gradients is left out of a run of given work."""


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """One candidate in the search.

    seeds: under how many it was run.
    seconds: its mean time, or its quantile.
    regret: the worst additional time over the best candidate, as a share, over the costs of
        staleness; in the round in which the candidate was left out, or the last.
    left_out: why it was no finalist; empty for a finalist.
    """

    policy: str
    seeds: int
    seconds: float
    regret: float
    left_out: str = ""


class CandidateRun(NamedTuple):
    """One run of a candidate.

    seconds: by cost of staleness; infinite where it missed the target.
    incomparable: why its time is not of equal work; empty where it is.
    """

    policy: str
    seed: int
    seconds: Mapping[float, float]
    incomparable: str = ""


@dataclass(slots=True)
class Search:
    """Finds finalists among candidates.

    seeds: all that there are.
    costs: of staleness, under which a candidate with stale gradients is judged; the scenario's own
        first.
    compute: runs candidates under seeds.
    by: what times are compared by.
    """

    seeds: Sequence[int]
    costs: Sequence[float]
    compute: Callable[[Sequence[tuple[str, int]]], Iterable[CandidateRun]]
    by: Criterion = MEAN
    trials: dict[str, CandidateResult] = field(default_factory=dict)
    _times: dict[tuple[str, int], Mapping[float, float]] = field(default_factory=dict)

    @property
    def _own(self) -> float:
        return self.costs[0]

    @property
    def ordered(self) -> tuple[CandidateResult, ...]:
        """All trials: finalists first, then by regret; what cannot be compared is last."""
        return tuple(sorted(self.trials.values(), key=_place))

    def run(self, candidates: Sequence[str]) -> list[str]:
        """The finalists, bsp first; candidates: with bsp."""
        alive, count = list(candidates), FIRST
        every = self.seeds
        while True:
            seeds = every[:count]
            alive = self._comparable(alive, seeds)
            means = {policy: self._means(policy, seeds) for policy in alive}
            regrets = _regrets(means)
            order = self._order(means, regrets)
            for policy in order:
                seconds = means[policy][self._own]
                self.trials[policy] = CandidateResult(policy, len(seeds), seconds, regrets[policy])
            last = len(seeds) == len(every)
            if last or len(alive) <= FINALISTS + 1:
                break
            alive = self._better(order, means, seeds)
            count *= 2
        kept = [BASELINE, *[p for p in order if p != BASELINE][:FINALISTS]]
        for policy in order:
            if policy not in kept:
                self._leave_out(policy, f"{FINALISTS} others have less regret, or are faster")
        return kept

    def _order(
        self, means: Mapping[str, Mapping[float, float]], regrets: Mapping[str, float]
    ) -> list[str]:
        """The candidates by their best place: in worst regret, or in mean time at any cost."""
        orders = [sorted(means, key=regrets.__getitem__)]
        orders += [sorted(means, key=lambda p: means[p][cost]) for cost in self.costs]
        places = {p: min(order.index(p) for order in orders) for p in means}
        return sorted(means, key=lambda p: (places[p], regrets[p]))

    def _comparable(self, policies: Sequence[str], seeds: Sequence[int]) -> list[str]:
        """Run what is missing; the candidates whose times can be compared."""
        missing = [(p, seed) for seed in seeds for p in policies if (p, seed) not in self._times]
        unknown = {}
        for run in self.compute(missing):
            self._times[run.policy, run.seed] = run.seconds
            if run.incomparable:
                unknown[run.policy] = run.incomparable
        for policy, reason in unknown.items():
            seconds = self._means(policy, seeds)[self._own]
            self.trials[policy] = CandidateResult(policy, len(seeds), seconds, math.nan, reason)
        return [policy for policy in policies if policy not in unknown]

    def _means(self, policy: str, seeds: Sequence[int]) -> dict[float, float]:
        """Mean seconds at each cost of staleness, or a quantile."""
        return {cost: self.by.of(self._seconds(policy, seeds, cost)) for cost in self.costs}

    def _seconds(self, policy: str, seeds: Sequence[int], cost: float) -> Floats:
        return np.array([self._times[policy, seed][cost] for seed in seeds])

    def _better(
        self, order: Sequence[str], means: Mapping[str, Mapping[float, float]], seeds: Sequence[int]
    ) -> list[str]:
        """The better half, and what is not shown to be slower than the best."""
        half = math.ceil(len(order) / 2)
        kept = {BASELINE, *order[:half]}
        leaders = {cost: min(order, key=lambda policy: means[policy][cost]) for cost in self.costs}
        for policy in order[half:]:
            if policy == BASELINE:
                continue
            if all(self._is_slower(policy, leaders[cost], seeds, cost) for cost in leaders):
                self._leave_out(policy, f"left out after {len(seeds)} seeds")
            else:
                kept.add(policy)
        return [policy for policy in order if policy in kept]

    def _is_slower(self, policy: str, other: str, seeds: Sequence[int], cost: float) -> bool:
        """Whether a paired test shows a policy to be slower than another, by `ALIKE` or more.

        One that misses a target which the other reaches is slower.
        """
        own, others = (self._seconds(p, seeds, cost) for p in (policy, other))
        if np.isfinite(others).all() and not np.isfinite(own).all():
            return True  # it missed the target
        return self.by.difference(own, others).low > ALIKE * self.by.of(others)

    def _leave_out(self, policy: str, reason: str) -> None:
        self.trials[policy] = replace(self.trials[policy], left_out=reason)


def alters(run: Mapping[str, Any]) -> bool:
    """Whether the samples of a run may be worth less than those of bsp, or an unknown amount."""
    return bool(run["progress_unknown"]) or (run["effective_staleness"] or 0) > 0


def _place(trial: CandidateResult) -> tuple[bool, bool, float]:
    unknown = math.isnan(trial.regret)
    return bool(trial.left_out), unknown, 0.0 if unknown else trial.regret


def _regrets(means: Mapping[str, Mapping[float, float]]) -> dict[str, float]:
    """The worst additional time over the best candidate, as a share, over the costs."""
    best: dict[float, float] = {}
    for of_policy in means.values():
        for cost, seconds in of_policy.items():
            best[cost] = min(seconds, best.get(cost, math.inf))
    return {
        policy: max(
            seconds / best[cost] - 1 if math.isfinite(seconds) else math.inf
            for cost, seconds in of_policy.items()
        )
        for policy, of_policy in means.items()
    }
