"""The result of a comparison as values: estimates per policy, and their paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from simstrag.experiments import paired_statistics
from simstrag.experiments.comparison import BASELINE, Comparison, costs_of_staleness
from simstrag.experiments.paired_statistics import NEGLIGIBLE, Estimate, exact, within
from simstrag.experiments.run_spread import RunSpread, predict_run
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import uses

TIMES = {"time_to_target": "time to target", "makespan": "makespan"}
"""The times of a ranking, and their names; the first that a comparison has decides."""
MADE = (
    "makespan", "time_to_target", "updates", "samples", "started", "applied", "dropped", "aborted",
    "mean_staleness", "throughput", "amp_share", "rebatched_share", "cut_share",
)  # fmt: skip
"""Two policies made the same runs if these columns are identical under every seed."""
WIDEST = 2.0
"""An interval of M wider than twice the delay comes of a delay that is nearly 0 in some seeds."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy; mappings go from a name of `TIMES` to an estimate.

    difference, speedup, mitigation: against bsp through an all-reduce.
    place: the best and the worst possible place by paired differences of the deciding time; None
        where it missed the target accuracy under any seed.
    other: columns of the ranking.
    """

    policy: str
    architecture: str
    time: Mapping[str, Estimate]
    difference: Mapping[str, Estimate]
    speedup: Mapping[str, Estimate]
    mitigation: Mapping[str, Estimate]
    place: tuple[int, int] | None
    other: Mapping[str, float]

    def uses(self, section: str) -> bool:
        """Whether its updates spend time of a section of the scenario."""
        return uses({"architecture": self.architecture}, section)


@dataclass(frozen=True, slots=True)
class Standings:
    """All policies, best mean first; baseline and clean: bsp under the trace and without it."""

    comparison: Comparison
    times: tuple[str, ...]
    policies: tuple[Standing, ...]
    baseline: Mapping[str, Estimate]
    clean: Mapping[str, Estimate]
    clean_speedup: Mapping[str, Estimate]
    clean_difference: Mapping[str, Estimate]

    @property
    def scenario(self) -> Scenario:
        return self.comparison.scenario

    def of(self, policy: str) -> Standing:
        """The standing of a policy that was compared."""
        return next(p for p in self.policies if p.policy == policy)

    @property
    def others(self) -> list[Standing]:
        """All policies but bsp."""
        return [p for p in self.policies if p.policy != BASELINE]

    @property
    def seeds(self) -> int:
        return len(self.scenario.seed_list)

    @property
    def unasked(self) -> tuple[str, ...]:
        """bsp where it is no policy of the comparison, and was run as the baseline alone."""
        return () if BASELINE in self.comparison.policies else (BASELINE,)

    @property
    def decides(self) -> str:
        """The name of the time that decides."""
        return self.times[0]

    @property
    def delay(self) -> float:
        """The delay of bsp by contention, as a share of its clean time."""
        clean = self.clean[self.decides].value
        return (self.baseline[self.decides].value - clean) / clean

    @property
    def is_untested(self) -> bool:
        """Whether other values were simulated only under seeds that the trace does not delay."""
        seeds, delays = self.comparison.search_seeds, self.comparison.delays
        return (
            bool(seeds)
            and self.scenario.inputs.trace is not None
            and sum(abs(delays[seed]) for seed in seeds) < NEGLIGIBLE * len(seeds)
        )

    @property
    def replays(self) -> bool:
        """Whether the trace replays recorded durations, which give no mitigation."""
        trace = self.scenario.inputs.trace
        return trace is not None and trace.replays

    def uses(self, section: str) -> bool:
        """Whether updates of any policy spend time of a section of the scenario."""
        return any(p.uses(section) for p in self.policies)

    def has_mitigation(self, p: Standing, name: str) -> bool:
        """Whether M says something: bsp by definition, and intervals up to `WIDEST`."""
        found = p.mitigation[name]
        if p.policy == BASELINE or math.isnan(found.value):
            return not math.isnan(found.value)
        return self.seeds < 2 or found.high - found.low <= WIDEST

    @property
    def grain(self) -> float:
        """Seconds of one update of bsp, the granularity of a run's end."""
        column = self.comparison.column
        return float(column(BASELINE, "makespan").mean() / column(BASELINE, "updates").mean())

    @property
    def spread(self) -> bool:
        """Whether seeds differ; without noise on a fixed trace and without training they do not."""
        column = self.comparison.column
        return self.scenario.learner.is_real or any(
            np.ptp(column(p.policy, n)) > 0 for p in self.policies for n in self.times
        )

    @property
    def certain(self) -> bool:
        """Whether nothing is random, so that one seed suffices."""
        return self.scenario.certain

    def one_run(self, policy: str) -> RunSpread:
        """Where one run of a policy ends in nine of ten cases, by the deciding time."""
        return predict_run(self.comparison.column(policy, self.decides), self.certain)

    def same(self, first: str, second: str) -> bool:
        """Whether two policies made the same runs."""
        column, known = self.comparison.column, self.comparison.runs
        through = {p.policy: p.architecture for p in self.policies}
        ways = {through.get(name, "all-reduce") for name in (first, second)}
        return len(ways) == 1 and all(
            np.array_equal(column(first, name), column(second, name), equal_nan=True)
            for name in MADE
            if name in known
        )

    @property
    def twins(self) -> list[list[str]]:
        """The policies that made the same runs as another, in groups."""
        groups: dict[str, list[str]] = {}  # by their first policy
        for p in self.policies:
            first = next((name for name in groups if self.same(name, p.policy)), p.policy)
            groups.setdefault(first, []).append(p.policy)
        return [group for group in groups.values() if len(group) > 1]

    @property
    def unknown(self) -> dict[str, str]:
        """The policies of unknown progress, with the reason."""
        known = self.comparison.runs.dropna(subset="progress_unknown")
        why = dict(zip(known["policy"], known["progress_unknown"], strict=True))
        return {p.policy: why[p.policy] for p in self.policies if p.policy in why}

    @property
    def incomparable(self) -> dict[str, str]:
        """The policies whose deciding time is not of the same learning as bsp's, with the reason.

        Of a real learner: those that missed the target under any seed, or without a target those
        whose final accuracy is not shown to be less than `learner.margin` below bsp's.
        """
        learner = self.scenario.learner
        if learner.is_real:
            found = {p.policy: self._lags(p.policy) for p in self.others}
            return {name: why for name, why in found.items() if why}
        if self.comparison.has_target:
            return {}
        unknown = {
            name: f"the worth of its samples is unknown, because {why}"
            for name, why in self.unknown.items()
        }
        stale = "its gradients are stale, so its samples may be worth less"
        return dict.fromkeys(self.stale, stale) | unknown

    def _lags(self, policy: str) -> str:
        """Why a policy is not shown to make the real learner learn as well; empty if it does."""
        column = self.comparison.column
        if diverged := int(np.isfinite(column(policy, "diverged")).sum()):
            return f"training diverged under {diverged} of {self.seeds} seeds"
        if self.comparison.has_target:
            reached = int(np.isfinite(column(policy, "time_to_target")).sum())
            if reached == self.seeds:
                return ""
            return f"the target accuracy was reached under {reached} of {self.seeds} seeds"
        margin = self.scenario.learner.margin
        if as_accurate(self.accuracy_gap(policy), margin) == "yes":
            return ""
        return too_inaccurate(margin)

    @property
    def possible_accuracies(self) -> tuple[float, float]:
        """The limits of an accuracy: 0 and 1, but for a score that a model has beyond them.

        An R² may be below 0, and is so before training.
        """
        known = self.comparison.evaluations["accuracy"]
        return -math.inf if known.min() < 0 else 0.0, math.inf if known.max() > 1 else 1.0

    def accuracy(self, policy: str) -> Estimate:
        """The mean of final accuracies, with the part of its interval that is possible."""
        own = self.comparison.column(policy, "accuracy")
        return within(self.gap(own, np.zeros(self.seeds)), *self.possible_accuracies)

    def accuracy_gap(self, policy: str) -> Estimate:
        """The mean paired difference of final accuracies, policy - bsp, likewise."""
        column, (low, high) = self.comparison.column, self.possible_accuracies
        gap = self.gap(column(policy, "accuracy"), column(BASELINE, "accuracy"))
        return within(gap, low - high, high - low)

    @property
    def stale(self) -> list[str]:
        """The policies with stale gradients."""
        return [p.policy for p in self.policies if p.other["effective_staleness"] > 0]

    def mean(self, times: Any) -> Estimate:
        """The mean of times over seeds."""
        return exact(_suffices(self.scenario), paired_statistics.mean(times))

    def gap(self, times: Any, others: Any) -> Estimate:
        """The mean paired difference of times over seeds, times - others."""
        found = paired_statistics.difference(times, others)
        return exact(_suffices(self.scenario), found, float(np.mean(others)))

    def between(self, first: str, second: str, name: str | None = None) -> Estimate:
        """The mean paired difference of two policies in seconds, first - second."""
        name = name or self.decides
        column = self.comparison.column
        return self.gap(column(first, name), column(second, name))

    def known_mean(self, policy: str, key: str, variant: str = "contended") -> float:
        """The mean of a column over the seeds where it is known; NaN where no seed has it."""
        if key not in self.comparison.runs:
            return math.nan
        column = self.comparison.column(policy, key, variant)
        values = [v for v in column if not math.isnan(v)]
        return sum(values) / len(values) if values else math.nan

    @property
    def costs(self) -> tuple[float, ...]:
        """The costs of staleness c_tau with a time to target, the declared one included."""
        if self.scenario.progress_target is None:
            return ()
        scenario = self.scenario
        return tuple(sorted({*costs_of_staleness(scenario), scenario.learner.c_tau}))

    def at_cost(self, policy: str, c_tau: float) -> Any:
        """Times to target of one policy over seeds under a cost of staleness."""
        if c_tau == self.scenario.learner.c_tau:
            return self.comparison.column(policy, "time_to_target")
        table = self.comparison.sensitivity
        rows = table[(table["policy"] == policy) & (table["c_tau"] == c_tau)]
        return rows.sort_values("seed")["time_to_target"].to_numpy(dtype=np.float64)


def faster(difference: Estimate) -> bool:
    """Whether a paired difference shows the first to be faster: its whole interval is below 0."""
    return not math.isnan(difference.high) and difference.high < 0


def as_accurate(gap: Estimate, margin: float) -> str:
    """Whether an interval shows that an accuracy is not less than another by the margin.

    gap: the paired difference of the accuracies.

    >>> as_accurate(Estimate(-0.001, -0.004, 0.002), margin=0.005)
    'yes'
    """
    if math.isnan(gap.low):
        return "not shown"
    return "yes" if gap.low > -margin else "no" if gap.high < -margin else "not shown"


def too_inaccurate(margin: float) -> str:
    """Why a policy that is not shown to be as accurate as bsp is not compared by its time."""
    return f"final accuracy is not shown to be within {100 * margin:g} points of bsp's"


def saved_share(speedup: Estimate) -> Estimate:
    """The share of the baseline's time that a speed-up saves; an end at 0 gives none.

    >>> saved_share(Estimate(2.0, 1.0, 4.0))
    Estimate(value=0.5, low=0.0, high=0.75)
    """
    return Estimate(*(1 - 1 / x if x > 0 else math.nan for x in speedup))


def leads(times: Mapping[str, Any], suffices: bool) -> dict[str, set[str]]:
    """The policies that each policy is shown to be faster than, by paired differences.

    times: of each policy, over the same seeds.
    suffices: whether there is one seed and it suffices.

    >>> even = np.array([1.0, 1.1])
    >>> leads({"a": even, "b": even, "c": even + 1}, suffices=False)
    {'a': {'c'}, 'b': {'c'}, 'c': set()}
    """
    return {
        a: {
            b
            for b, other in times.items()
            if a != b
            and faster(exact(suffices, paired_statistics.difference(own, other), other.mean()))
        }
        for a, own in times.items()
    }


def places(leads: Mapping[str, set[str]]) -> dict[str, tuple[int, int]]:
    """The best and the worst possible place of each policy.

    >>> places({"a": {"c"}, "b": {"c"}, "c": set()})
    {'a': (1, 2), 'b': (1, 2), 'c': (3, 3)}
    """
    return {
        name: (1 + sum(name in behind for behind in leads.values()), len(leads) - len(own))
        for name, own in leads.items()
    }


def standings(comparison: Comparison) -> Standings:
    """Compute the values that the tables, charts and sentences of a report show."""
    times = tuple(name for name in TIMES if name == "makespan" or comparison.has_target)
    if comparison.has_target and (
        comparison.scenario.sample_target is None or comparison.scenario.learner.is_real
    ):
        times = ("time_to_target",)  # the run ends there: the makespan is the same number
    suffices = _suffices(comparison.scenario)
    column, sure = comparison.column, partial(exact, suffices)
    ranking = comparison.ranking
    known = {name: column(name, times[0]) for name in ranking["policy"]}
    known = {name: own for name, own in known.items() if not np.isnan(own).any()}
    place = places(leads(known, suffices))
    found = []
    for row in ranking.to_dict(orient="records"):
        policy, estimate = str(row["policy"]), partial(_of, row)
        found.append(
            Standing(
                policy,
                str(row["architecture"]),
                {name: sure(estimate(name)) for name in times},
                {name: sure(estimate(f"{name}_difference"), row[name]) for name in times},
                {name: sure(estimate(f"{name}_speedup")) for name in times},
                {name: sure(estimate(f"{name}_mitigation"), 1.0) for name in times},
                place.get(policy),
                {str(k): float(v) for k, v in row.items() if not isinstance(v, str)},
            )
        )
    bsp = {name: column(BASELINE, name) for name in times}
    clean = {name: column(BASELINE, name, "clean") for name in times}
    both = {name: (clean[name], bsp[name]) for name in times}
    gaps = {name: paired_statistics.difference(*pair) for name, pair in both.items()}
    return Standings(
        comparison,
        times,
        tuple(found),
        {name: sure(paired_statistics.mean(bsp[name])) for name in times},
        {name: sure(paired_statistics.mean(clean[name])) for name in times},
        {name: sure(paired_statistics.speedup(*pair)) for name, pair in both.items()},
        {name: sure(gap, bsp[name].mean()) for name, gap in gaps.items()},
    )


def _suffices(scenario: Scenario) -> bool:
    """Whether there is one seed and it suffices."""
    return len(scenario.seed_list) < 2 and scenario.certain


def _of(row: Mapping[Any, Any], key: str) -> Estimate:
    return Estimate(*(float(row[key + end]) for end in ("", "_low", "_high")))
