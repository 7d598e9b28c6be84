"""Sensitivity: which constant changes the best policy, and at what value, found by running again.

One constant at a time is made smaller and larger, with all else and all seeds equal.  Where another
policy then has the better mean time, the value at which it takes over is enclosed by bisection on a
logarithmic scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simstrag.arrays import Floats
from simstrag.documents.suggestions import choices
from simstrag.errors import InputError
from simstrag.experiments import paired_statistics
from simstrag.experiments.runner import Runner, RunTask, prepare
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import (
    DERIVED,
    FACTORS,
    OWN_FACTORS,
    QUANTITIES,
    bounds,
    feels,
    is_step_of_profile,
    kind_of,
    value_of,
)

if TYPE_CHECKING:
    import pandas as pd

RunSummaries = Mapping[tuple[str, int], Mapping[str, Any]]
"""The summary of each run of the unchanged scenario, by policy and seed."""

ROUNDING = 1e-9
"""Means that differ by a smaller share count as equal."""
HALVINGS = 5
"""Steps of the bisection."""
COLUMNS = (
    "quantity", "value", "unit", "kind", "direction", "tried", "leader", "rival", "holds_at",
    "turns_at", "shown", "seeds",
)  # fmt: skip


def sensitivity(
    scenario: Scenario | str | Path,
    policies: str | Sequence[str] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    quantities: str | Sequence[str] | None = None,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """How far each constant may be off before another policy has the best mean time.

    policies, seeds: they replace the scenario's.
    quantities: keys of `QUANTITIES`, a plain string being one; by default all that are not 0 in
        the scenario.
    jobs: processes, all cores by default.
    on_progress: called as (done, total, what).

    The time is that to the target if one is declared, else the makespan.
    Returns two rows per quantity, one for smaller and one for larger values, with the columns
    quantity, value, unit, kind: the constant in force; kind is measured, fitted or assumed.
    direction, tried: smaller or larger, and the outermost value tried.
    leader, rival: rival is empty if the leader is ahead at `tried`.
    holds_at, turns_at: the last value at which the leader leads, the first at which the rival does.
    shown: whether the lead of the rival at `tried` exceeds its 95 % interval, over all seeds of
        the scenario.
    seeds: number of seeds of the search: all, or in a comparison those of `choose_seeds`.

    Raises `InputError` for what cannot be varied.

    >>> scenario = Scenario(
    ...     workers=4, target_progress=5, step={"compute": 0.1}, server={"service": 0.02},
    ...     trace=[{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}],
    ... )
    >>> table = sensitivity(scenario, ["bsp", "asgd"], quantities=["server.service"], jobs=1)
    >>> table[["direction", "leader", "rival"]]
      direction leader rival
    0   smaller   asgd
    1    larger   asgd   bsp
    """
    scenario = prepare(scenario, policies, seeds)
    chosen = _chosen(scenario, quantities)
    with Runner(scenario, jobs, on_progress, None) as runner:
        tasks = [
            RunTask("contended", p, s, False) for p in scenario.policies for s in scenario.seed_list
        ]
        rows = {(task.policy, task.seed): done.row for task, done in runner.results(tasks)}
        return thresholds(Trials(scenario, runner, rows, scenario.seed_list), chosen).table


def _chosen(scenario: Scenario, given: Any) -> list[str]:
    names = [given] if isinstance(given, str) or not isinstance(given, Iterable) else [*given]
    names = [] if given is None else names
    for name in names:
        if name not in tuple(QUANTITIES):
            raise InputError(f"'{name}' cannot be varied; {choices(name, QUANTITIES)}")
        if not value_of(scenario, name):
            if is_step_of_profile(scenario, name):
                raise InputError(f"{name} is the profile's: state it in the scenario to vary it")
            if kind_of(scenario, name) == DERIVED:
                raise InputError(f"{name} follows from server.link: state it to vary it alone")
            raise InputError(f"{name} is 0, not stated or without effect here: nothing to multiply")
    return names or [name for name in QUANTITIES if value_of(scenario, name)]


class ConstantTrial(NamedTuple):
    """One constant at another value, for some policies."""

    quantity: str
    value: float
    policies: Sequence[str]


@dataclass(slots=True)
class Trials:
    """Runs trials, each run once.

    rows: the runs of the unchanged scenario.
    known: seconds of runs under another value.
    """

    scenario: Scenario
    runner: Runner
    rows: RunSummaries
    seeds: Sequence[int]
    known: dict[RunTask, float] = field(default_factory=dict)

    @property
    def base(self) -> dict[str, Floats]:
        """Seconds of each policy over seeds, in the unchanged scenario."""
        return {
            policy: np.array([self._seconds(self.rows[policy, seed]) for seed in self.seeds])
            for policy in self.scenario.policies
        }

    def times(self, trials: Sequence[ConstantTrial], ahead: int = 0) -> list[dict[str, Floats]]:
        """Seconds of each policy over seeds, for each trial; ahead: calls like this to come."""
        tasks = dict.fromkeys(task for trial in trials for task in self._tasks(trial))
        missing = [task for task in tasks if task not in self.known]
        for task, done in self.runner.results(missing, ahead * len(missing)):
            self.known[task] = self._seconds(done.row)
        return [self._found(trial) for trial in trials]

    def _tasks(self, trial: ConstantTrial) -> list[RunTask]:
        """The runs that depend on the constant."""
        return [
            RunTask(variant(trial.quantity, trial.value), policy, seed, False)
            for policy in trial.policies
            for seed in self.seeds
            if feels(self.scenario, self.rows[policy, seed], trial.quantity)
        ]

    def _found(self, trial: ConstantTrial) -> dict[str, Floats]:
        times = {policy: of.copy() for policy, of in self.base.items() if policy in trial.policies}
        for task in self._tasks(trial):
            times[task.policy][self.seeds.index(task.seed)] = self.known[task]
        return times

    def _seconds(self, row: Mapping[str, Any]) -> float:
        """The time that decides; infinite for a target accuracy that was missed."""
        seconds = row["time_to_target" if self.scenario.has_target else "makespan"]
        return math.inf if seconds is None else float(seconds)


def choose_seeds(delays: Mapping[int, float], n: int) -> tuple[int, ...]:
    """The seeds of a search: `n` that meet the contention that all seeds meet.

    delays: of every seed, the share by which contention delays bsp; finite.

    In order of their delays, the seeds are divided into n groups of equal size.  Of each group the
    seed is taken with which the delays taken so far add up closest to the means of their groups; of
    equal ones the first.  Every setting and every policy has these seeds.

    >>> choose_seeds({0: 0.0, 1: 0.4, 2: 0.0, 3: 0.0, 4: 0.3, 5: 0.0}, 2)
    (0, 4)
    """
    order = sorted(delays, key=delays.__getitem__)
    chosen: list[int] = []
    missing = 0.0
    for part in np.array_split(order, n):
        group = part.tolist()
        missing += sum(delays[seed] for seed in group) / len(group)
        chosen.append(min(group, key=lambda seed: abs(delays[seed] - missing)))
        missing -= delays[chosen[-1]]
    return tuple(seed for seed in delays if seed in chosen)


def variant(quantity: str, value: float) -> str:
    """The name of runs under another value of a constant."""
    return f"{quantity}={float(value)!r}"


@dataclass(slots=True)
class Edge:
    """One constant in one direction, from its value to the outermost value tried.

    rivals: the policies ahead of the leader there.
    rival: the first of them to take over.
    """

    quantity: str
    value: float
    tried: float
    rivals: list[str] = field(default_factory=list)
    rival: str = ""
    shown: bool = False
    holds_at: float = math.nan
    turns_at: float = math.nan

    @property
    def middle(self) -> float:
        return math.copysign(math.sqrt(self.holds_at * self.turns_at), self.value)

    def narrow(self, times: Mapping[str, Floats], leader: str) -> None:
        """Keep the half in which the leader changes; times: seconds at the middle."""
        ahead = _ahead(times, leader)
        if ahead:
            self.turns_at, self.rival = self.middle, ahead[0]
        else:
            self.holds_at = self.middle


class ThresholdSearch(NamedTuple):
    """The table that `sensitivity` describes, and the times at the outermost values.

    extremes: quantity, value, policy, seed, seconds.
    """

    table: pd.DataFrame
    extremes: pd.DataFrame


EXTREMES = ("quantity", "value", "policy", "seed", "seconds")


def thresholds(
    trials: Trials, quantities: Sequence[str], halvings: int = HALVINGS
) -> ThresholdSearch:
    """The thresholds of some constants, for runs of the unchanged scenario that are there.

    halvings: steps of the bisection.
    """
    import pandas as pd

    leader, every_policy = best(trials.base), trials.scenario.policies
    edges = [edge for name in quantities for edge in _edges(trials.scenario, name)]
    outermost = trials.times([ConstantTrial(e.quantity, e.tried, every_policy) for e in edges])
    for edge, times in zip(edges, outermost, strict=True):
        edge.rivals = _ahead(times, leader)
        if edge.rivals:
            edge.holds_at, edge.turns_at, edge.rival = edge.value, edge.tried, edge.rivals[0]
    turned = [edge for edge in edges if edge.rivals]
    for k in range(halvings):
        middles = [ConstantTrial(e.quantity, e.middle, [leader, *e.rivals]) for e in turned]
        found = trials.times(middles, ahead=halvings - 1 - k)
        for edge, times in zip(turned, found, strict=True):
            edge.narrow(times, leader)
    every_seed = replace(trials, seeds=trials.scenario.seed_list)
    ends = [ConstantTrial(e.quantity, e.tried, [leader, e.rival]) for e in turned]
    for edge, times in zip(turned, every_seed.times(ends), strict=True):
        edge.shown = paired_statistics.difference(times[edge.rival], times[leader]).high < 0
    table = pd.DataFrame([_row(trials, edge, leader) for edge in edges], columns=list(COLUMNS))
    extremes = [
        (edge.quantity, edge.tried, policy, seed, seconds)
        for edge, times in zip(edges, outermost, strict=True)
        for policy, own in times.items()
        for seed, seconds in zip(trials.seeds, own.tolist(), strict=True)
    ]
    return ThresholdSearch(table, pd.DataFrame(extremes, columns=list(EXTREMES)))


def best(times: Mapping[str, Floats]) -> str:
    """The policy with the best mean; the first of equal ones.

    >>> best({"bsp": np.array([3.0, 5.0]), "asgd": np.array([2.0, 4.0])})
    'asgd'
    """
    return min(times, key=lambda policy: float(times[policy].mean()))


def _ahead(times: Mapping[str, Floats], leader: str) -> list[str]:
    """Policies with a better mean than the leader's by more than rounding, the best first."""
    mean = {policy: float(of.mean()) for policy, of in times.items()}
    limit = mean[leader] * (1 - ROUNDING)
    return sorted((p for p in mean if mean[p] < limit), key=mean.__getitem__)


def _edges(scenario: Scenario, name: str) -> list[Edge]:
    """Both directions, unless a constant is at its bound already."""
    value = value_of(scenario, name)
    low, high = bounds(scenario, name)
    factors = OWN_FACTORS.get(name, FACTORS)
    smaller, larger = sorted(min(max(value * factor, low), high) for factor in factors)
    ends = ([smaller] if smaller < value else []) + ([larger] if larger > value else [])
    return [Edge(name, value, end) for end in ends]


def _row(trials: Trials, edge: Edge, leader: str) -> tuple[Any, ...]:
    direction = "larger" if edge.tried > edge.value else "smaller"
    kind = kind_of(trials.scenario, edge.quantity)
    return (
        edge.quantity, edge.value, QUANTITIES[edge.quantity], kind, direction, edge.tried, leader,
        edge.rival, edge.holds_at, edge.turns_at, edge.shown, len(trials.seeds),
    )  # fmt: skip
