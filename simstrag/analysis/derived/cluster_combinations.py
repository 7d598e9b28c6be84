"""What each combination of a cluster study gave, paired with the first one over jobs and seeds.

A combination is one value of each column that a study varies beside the seed: the mix of policies,
the placer, and others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simstrag.analysis.derived.ranking import leads, places
from simstrag.arrays import Floats
from simstrag.cluster.runs import COLUMNS, ClusterResults, by_combination
from simstrag.cluster.utilisation import UTILISATION
from simstrag.errors import InputError
from simstrag.experiments.paired_statistics import Estimate, mean, ratio_of_times

SECONDS = (
    "arrival", "start", "end", "queueing", "completion_time", "run_time", "alone", "time_to_target",
)  # fmt: skip


ROUNDING = 9
"""Decimal places of a share beyond which it is rounding of times."""
UNMANAGED = "none"
"""The manager that changes nothing; others are compared with it."""


class Managed(NamedTuple):
    """What a manager did under a combination, over all seeds.

    granted, refused: requests.
    donors: jobs that lost seconds to its delays, and how many: `lost`, each at most the share
        `most` of its completion time.
    delays: times in which it delayed a job; `over` of them took more per iteration than it said.
    against: the combination of the same policies and placer without a manager, if it was run.
    change: by which share of that one's the mean completion time is longer; NaN without it.
    """

    granted: int
    refused: int
    donors: int
    lost: float
    most: float
    delays: int
    over: int
    against: str
    change: Estimate


class Effect(NamedTuple):
    """The jobs of a workload under a combination.

    jobs: how many there are over all seeds.
    time: their mean completion time.
    change: by which share of that under the first combination it is longer, paired over seeds.
    sooner, later: jobs that ended earlier and later than under the first combination.
    """

    workload: str
    policy: str
    jobs: int
    time: Estimate
    change: Estimate
    sooner: int
    later: int
    queueing: float
    slowdown: float

    @property
    def pays(self) -> bool:
        """Whether it is shown to take longer than under the first combination."""
        return self.change.low > 0

    @property
    def profits(self) -> bool:
        """Whether it is shown to take less time."""
        return self.change.high < 0


@dataclass(frozen=True, slots=True, eq=False)
class Combination:
    """One combination: means over seeds, of the jobs that ended under every combination.

    values: by column.
    name: its values in the columns that vary, such as `asgd (packed)`.
    time: the mean completion time.
    change: by which share of the first combination's it is longer.
    place: the best and the worst possible place by mean completion time.
    waited: the share of all completion time in which jobs waited for devices.
    shared: the share of all run time that the same jobs alone would not have taken.
    held: the share of all devices that jobs held, until the last of them ended.
    used: shares of what nodes have that jobs used, by column of `UTILISATION`; NaN without a limit.
    managed: what its manager did; None where jobs ask none.
    """

    values: Mapping[str, str]
    name: str
    time: Estimate
    change: Estimate
    place: tuple[int, int]
    p95: float
    makespan: float
    waited: float
    shared: float
    held: float
    used: Mapping[str, float]
    managed: Managed | None
    effects: tuple[Effect, ...]

    @property
    def policies(self) -> dict[str, str]:
        """The policy of each workload."""
        return {effect.workload: effect.policy for effect in self.effects}


@dataclass(frozen=True, slots=True, eq=False)
class Combinations:
    """All combinations of a study that have runs, in its order.

    varied: the columns that name a combination: those with several values, or all.
    seeds: those that ended under every combination.
    behind: the names of combinations that the best one is shown to be faster than.
    missing: runs that have not ended.  failed: the errors of others.
    left_out: jobs that did not end under every combination, over all seeds.
    jobs: a row per job of every finished run.
    first_runs: the tables of the first seed's run under each combination.
    """

    results: ClusterResults
    every: tuple[Combination, ...]
    varied: tuple[str, ...]
    seeds: tuple[int, ...]
    behind: frozenset[str]
    missing: int
    failed: Mapping[str, str]
    left_out: int
    jobs: pd.DataFrame
    first_runs: Mapping[str, Mapping[str, Any]]

    @property
    def first(self) -> Combination:
        """The combination that all others are compared with."""
        return self.every[0]

    @property
    def ranking(self) -> list[Combination]:
        """All combinations, the shortest mean completion time first."""
        return sorted(self.every, key=lambda one: one.time.value)

    @property
    def best(self) -> Combination:
        """The one with the shortest mean completion time."""
        return self.ranking[0]

    @property
    def contenders(self) -> list[Combination]:
        """The best one, and those that it is not shown to be faster than."""
        return [one for one in self.ranking if one.name not in self.behind]

    @property
    def shown(self) -> list[Combination]:
        """Those of which a run is drawn: the best, and the first.

        Where these are one: that, and the one under which sharing nodes cost most.
        """
        costly = max(self.every, key=lambda one: one.shared)
        other = costly if self.best is self.first else self.first
        return [self.best] if self.best is other else [self.best, other]

    def table(self, one: Combination, name: str) -> pd.DataFrame:
        """The rows of the drawn run of a combination: `jobs`, `shares` or `nodes`."""
        rows = self.first_runs[one.name].get(name, ())
        return _frame(rows) if name == "jobs" else pd.DataFrame(rows)

    @property
    def workloads(self) -> list[str]:
        """Names of the workloads, in the order of the study."""
        return [effect.workload for effect in self.first.effects]


def combinations(results: ClusterResults) -> Combinations:
    """The combinations of a study, finished or not.

    Seeds that have not ended under every combination are left out, and combinations without any
    finished run.  Raises `InputError` where nothing is left.
    """
    outcomes = results.outcomes()
    runs = by_combination(outcomes)
    every_seed = dict.fromkeys(run.seed for run in results.runs) if runs else ()
    seeds = [seed for seed in every_seed if all(seed in of for of in runs.values())]
    if not seeds:
        raise InputError(f"{results.folder}: no seed has ended under every combination yet")
    several = [k for k in range(len(COLUMNS)) if len({key[k] for key in runs}) > 1]
    varied = several or [*range(len(COLUMNS))]
    values = {_name(*(_word(COLUMNS[k], key[k]) for k in varied)): key for key in runs}
    names = {key: name for name, key in values.items()}
    found = {name: [runs[key][seed] for seed in seeds] for name, key in values.items()}
    tables = {name: [_frame(kept["jobs"]) for kept in of] for name, of in found.items()}
    by_seed = zip(*tables.values(), strict=True)
    ended = [np.all([np.isfinite(t["completion_time"]) for t in of], axis=0) for of in by_seed]
    if not all(one.any() for one in ended):
        raise InputError(f"{results.folder}: under some combination and seed no job has ended")
    counted = {
        name: [table[kept] for table, kept in zip(of, ended, strict=True)]
        for name, of in tables.items()
    }
    times = {name: _means(of, "completion_time") for name, of in counted.items()}
    ahead = leads(times, suffices=False)
    place = places(ahead)
    first, best = next(iter(found)), min(times, key=lambda name: times[name].mean())
    every = []
    for name, of in counted.items():
        alike = dict(zip(COLUMNS, values[name], strict=True)) | {"manager": UNMANAGED}
        against = names.get(tuple(alike.values()), "")
        change = _change(times[name], times[against or name])
        summaries, whole = pd.DataFrame([kept["summary"] for kept in found[name]]), pd.concat(of)
        used = summaries.reindex(columns=[*UTILISATION]).astype(float)
        every.append(
            Combination(
                values=dict(zip(COLUMNS, values[name], strict=True)),
                name=name,
                time=mean(times[name]),
                change=_change(times[name], times[first]),
                place=place[name],
                p95=float(np.mean([table["completion_time"].quantile(0.95) for table in of])),
                makespan=float(np.mean([table["end"].max() for table in of])),
                waited=float(whole["queueing"].sum() / whole["completion_time"].sum()),
                shared=round(float(1 - whole["alone"].sum() / whole["run_time"].sum()), ROUNDING),
                held=_held(results, tables[name]),
                used=dict(zip(UTILISATION, used.mean().tolist(), strict=True)),
                managed=_managed(found[name], against, change),
                effects=tuple(_effects(of, counted[first])),
            )
        )  # fmt: skip
    jobs = [
        {**dict(zip(COLUMNS, key, strict=True)), "seed": seed, **row}
        for key, of_seeds in runs.items()
        for seed, kept in of_seeds.items()
        for row in kept["jobs"]
    ]
    return Combinations(
        results=results,
        every=tuple(every),
        varied=tuple(COLUMNS[k] for k in varied),
        seeds=tuple(seeds),
        behind=frozenset(ahead[best]),
        missing=len(results.runs) - len(outcomes),
        failed={str(run): kept["error"] for run, kept in outcomes.items() if kept["error"]},
        left_out=sum(int((~one).sum()) for one in ended),
        jobs=_frame(jobs),
        first_runs={name: of[0] for name, of in found.items()},
    )


def _name(first: str, *others: str) -> str:
    """A combination in a sentence.

    >>> _name("asgd", "packed"), _name("asgd")
    ('asgd (packed)', 'asgd')
    """
    return f"{first} ({', '.join(others)})" if others else first


def _word(column: str, value: str) -> str:
    """A value in the name of a combination; those of managers are words of other columns, too."""
    return f"manager {value}" if column == "manager" else value


def _effects(of: list[pd.DataFrame], first: list[pd.DataFrame]) -> list[Effect]:
    """Each workload's jobs, compared with the same jobs under the first combination."""
    found = []
    for workload in dict.fromkeys(name for table in first for name in table["workload"]):
        pairs = [
            (own[own["workload"] == workload], base[base["workload"] == workload])
            for own, base in zip(of, first, strict=True)
        ]
        pairs = [(own, base) for own, base in pairs if len(own)]
        own, base = (list(side) for side in zip(*pairs, strict=True))
        whole, others = pd.concat(own), pd.concat(base)
        times = _means(own, "completion_time")
        later = whole["completion_time"].to_numpy() - others["completion_time"].to_numpy()
        found.append(
            Effect(
                workload, "/".join(dict.fromkeys(whole["policy"])), len(whole), mean(times),
                _change(times, _means(base, "completion_time")), int((later < 0).sum()),
                int((later > 0).sum()), float(whole["queueing"].mean()),
                float(whole["slowdown"].mean()),
            )
        )  # fmt: skip
    return found


def _change(times: Floats, others: Floats) -> Estimate:
    return Estimate(*(x - 1 for x in ratio_of_times(times, others)))


def _means(tables: list[pd.DataFrame], name: str) -> Floats:
    """The mean of a column under each seed."""
    return np.array([table[name].mean() for table in tables])


def _managed(runs: Sequence[Mapping[str, Any]], against: str, change: Estimate) -> Managed | None:
    if runs[0].get("manager", UNMANAGED) == UNMANAGED:
        return None
    jobs = pd.concat([pd.DataFrame(kept["jobs"]) for kept in runs])
    delays = [row for kept in runs for row in kept["delays"]]
    return Managed(
        int(jobs["granted"].sum()), int(jobs["refused"].sum()), int((jobs["lost"] > 0).sum()),
        float(jobs["lost"].sum()), float(jobs["lost_share"].max()), len(delays),
        sum(not row["within_grant"] for row in delays), against,
        change if against else Estimate(math.nan, math.nan, math.nan),
    )  # fmt: skip


def _frame(rows: Any) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    times = [name for name in (*SECONDS, "slowdown") if name in table]
    return table.astype(dict.fromkeys(times, float))


def _held(results: ClusterResults, tables: list[pd.DataFrame]) -> float:
    study = results.study
    devices = sum(kind.get("count", 1) * kind["gpus"] for kind in study["nodes"])
    slots = devices * study.get("workers_per_gpu", 1)
    return float(np.mean([
        (table["workers"] * table["run_time"]).sum() / (slots * table["end"].max())
        for table in tables
    ]))  # fmt: skip
