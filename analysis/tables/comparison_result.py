"""The result of a comparison as values: estimates per policy, and their paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from simstrag.experiments import paired_statistics
from simstrag.experiments.compare import BASELINE, C_TAUS, Comparison
from simstrag.experiments.paired_statistics import NEGLIGIBLE, Estimate
from simstrag.scenario.scenario import Scenario

__all__ = ["NEGLIGIBLE", "TIMES", "Standing", "Standings", "faster", "standings"]

TIMES = {"time_to_target": "time to target", "makespan": "makespan"}
"""The times of a ranking, and their names; the first that a comparison has decides."""
MADE = (
    "makespan", "time_to_target", "updates", "samples", "started", "applied", "dropped", "aborted",
    "mean_staleness", "throughput", "amp_share", "rebatched_share", "cut_share",
)  # fmt: skip
"""The columns that are equal, to the last digit and under every seed, for equal runs."""
NOISE = 1e-9
"""A difference of times below this share of the time is rounding."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy; mappings go from a name of `TIMES` to an estimate.

    difference, speedup, mitigation: against bsp through an all-reduce.
    place: the best and the worst possible place by paired differences of the deciding time.
    other: columns of the ranking.
    """

    policy: str
    architecture: str
    time: Mapping[str, Estimate]
    difference: Mapping[str, Estimate]
    speedup: Mapping[str, Estimate]
    mitigation: Mapping[str, Estimate]
    place: tuple[int, int]
    other: Mapping[str, float]


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
    def seeds(self) -> int:
        return len(self.comparison.scenario.seed_list)

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
    def grain(self) -> float:
        """Seconds of one update of bsp, the granularity of a run's end."""
        updates = self.comparison.column(BASELINE, "updates")
        return float(self.comparison.column(BASELINE, "makespan").mean() / updates.mean())

    @property
    def spread(self) -> bool:
        """Whether seeds differ; without noise on a fixed trace they do not."""
        columns = (
            self.comparison.column(p.policy, name) for p in self.policies for name in self.times
        )
        return any(float(np.ptp(column)) > 0 for column in columns)

    @property
    def certain(self) -> bool:
        """Whether nothing is random, so that one seed suffices."""
        return _certain(self.comparison.scenario)

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
        groups: list[list[str]] = []
        for p in self.policies:
            group = next((g for g in groups if self.same(g[0], p.policy)), None)
            if group is None:
                groups.append([p.policy])
            else:
                group.append(p.policy)
        return [group for group in groups if len(group) > 1]

    @property
    def unknown(self) -> dict[str, str]:
        """The policies of unknown progress, with the reason."""
        known = self.comparison.runs.dropna(subset="progress_unknown")
        why = dict(zip(known["policy"], known["progress_unknown"], strict=True))
        return {p.policy: why[p.policy] for p in self.policies if p.policy in why}

    @property
    def stale(self) -> list[str]:
        """The policies with stale gradients."""
        return [p.policy for p in self.policies if p.other["effective_staleness"] > 0]

    def mean(self, times: Any) -> Estimate:
        """The mean of times over seeds."""
        return _sure(self.comparison.scenario, paired_statistics.mean(times))

    def gap(self, times: Any, others: Any) -> Estimate:
        """The mean paired difference of times over seeds, times - others."""
        found = paired_statistics.difference(times, others)
        return _settled(_sure(self.comparison.scenario, found), float(np.mean(others)))

    def between(self, first: str, second: str, name: str | None = None) -> Estimate:
        """The mean paired difference of two policies in seconds, first - second."""
        name = name or self.decides
        column = self.comparison.column
        return self.gap(column(first, name), column(second, name))

    @property
    def costs(self) -> tuple[float, ...]:
        """The costs of staleness c_tau with a time to target, the declared one included."""
        return tuple(sorted({*C_TAUS, self.comparison.scenario.learner.c_tau}))

    def at_cost(self, policy: str, c_tau: float) -> Any:
        """Times to target of one policy over seeds under a cost of staleness."""
        if c_tau == self.comparison.scenario.learner.c_tau:
            return self.comparison.column(policy, "time_to_target")
        table = self.comparison.sensitivity
        rows = table[(table["policy"] == policy) & (table["c_tau"] == c_tau)]
        return rows.sort_values("seed")["time_to_target"].to_numpy(dtype=np.float64)


def faster(difference: Estimate) -> bool:
    """Whether a paired difference shows the first to be faster: its whole interval is below 0."""
    return not math.isnan(difference.high) and difference.high < 0


def standings(comparison: Comparison) -> Standings:
    """Compute the values that the tables, charts and sentences of a report show."""
    times = tuple(name for name in TIMES if name == "makespan" or comparison.has_target)
    if comparison.has_target and comparison.scenario.sample_target is None:
        times = ("time_to_target",)  # the run ends there: the makespan is the same number
    column, sure = comparison.column, partial(_sure, comparison.scenario)
    ranking = comparison.ranking
    names = list(ranking["policy"])
    deciding = {name: column(name, times[0]) for name in names}
    lead = {
        (a, b): _settled(sure(paired_statistics.difference(deciding[a], deciding[b])),
        deciding[b].mean()) for a in names for b in names if a != b
    }  # fmt: skip
    found = []
    for row in ranking.to_dict(orient="records"):
        policy = str(row["policy"])
        ahead = sum(faster(lead[other, policy]) for other in names if other != policy)
        behind = sum(faster(lead[policy, other]) for other in names if other != policy)
        found.append(
            Standing(
                policy,
                str(row["architecture"]),
                {name: sure(_of(row, name)) for name in times},
                {name: _settled(sure(_of(row, f"{name}_difference")), row[name]) for name in times},
                {name: sure(_of(row, f"{name}_speedup")) for name in times},
                {name: _settled(sure(_of(row, f"{name}_mitigation")), 1.0) for name in times},
                (1 + ahead, len(names) - behind),
                {str(k): float(v) for k, v in row.items() if not isinstance(v, str)},
            )
        )
    bsp = {name: column(BASELINE, name) for name in times}
    clean = {name: column(BASELINE, name, "clean") for name in times}
    return Standings(
        comparison,
        times,
        tuple(found),
        {name: sure(paired_statistics.mean(bsp[name])) for name in times},
        {name: sure(paired_statistics.mean(clean[name])) for name in times},
        {name: sure(paired_statistics.speedup(clean[name], bsp[name])) for name in times},
        {
            name: _settled(
                sure(paired_statistics.difference(clean[name], bsp[name])), bsp[name].mean()
            )
            for name in times
        },
    )


def _certain(scenario: Scenario) -> bool:
    shifted = scenario.trace is not None and scenario.trace_per_seed == "shift"
    return scenario.inputs.step.draw is None and not shifted


def _sure(scenario: Scenario, e: Estimate) -> Estimate:
    """An estimate; its interval has no width where one seed suffices."""
    one = len(scenario.seed_list) < 2 and _certain(scenario)
    return Estimate(e.value, e.value, e.value) if one else e


def _settled(e: Estimate, whole: float) -> Estimate:
    """A difference without the rounding of sums as large as `whole`."""
    return Estimate(*(0.0 if abs(x) <= NOISE * whole else x for x in e))


def _of(row: Mapping[Any, Any], key: str) -> Estimate:
    return Estimate(*(float(row[key + end]) for end in ("", "_low", "_high")))
