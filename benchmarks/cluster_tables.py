"""What jobs of `examples/cluster.yaml` gain and lose: by manager, by policy, by interval.

    python -m benchmarks.cluster_tables [managers] [policies] [interval] [--seeds N] [--write]

Makes docs/measured/cluster-*.txt: mean completion times with 95 % intervals, paired over seeds.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag.cluster.measured_constants import constants_of, measure_all
from simstrag.cluster.simulate import ClusterRun, simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.documents.yaml_file import read_mapping
from simstrag.experiments.paired_statistics import Estimate, mean, ratio_of_times

EXAMPLE = Path("examples/cluster.yaml")
PLACERS = ("packed", "star", "random", "spread")
POLICY_PLACERS = ("packed", "spread")
POLICIES = ("asgd", "korel", "star_h", "cgp")
INTERVALS = (2.0, 1.0, 0.5, 0.25)
DEVICE_GAIN = 2.0
"""Assumed: by how much reduced precision shortens the device's part of a step, for korel."""
ON = {"node": 3, "resource": "host", "kind": "slowdown"}
OTHERS = [ON | {"time": 60 * k, "value": 3.0 if k % 2 else 1.0} for k in range(10)]
"""A tenant on one node: 60 s off, 60 s on, as STAR's launchers throttle a worker."""
COUNTED = ("granted", "refused", "delays", "over_grant")
Mix = str | Mapping[str, str]
ClusterRuns = list[ClusterRun]


def study(**changes: Any) -> ClusterStudy:
    """The example, with other keys."""
    return ClusterStudy.of(read_mapping(EXAMPLE, "cluster study", "") | changes)


def run(case: ClusterStudy, mix: Mix, placer: str, seeds: int, **more: Any) -> ClusterRuns:
    """Under each seed, without the same jobs alone."""
    return [
        simulate_cluster(case, mix, placer, seed, alone=False, record=False, **more)
        for seed in range(seeds)
    ]


def times(runs: ClusterRuns, of: Callable[[Mapping[str, Any]], bool] = lambda row: True) -> Any:
    """The mean completion time of some jobs, of each run."""
    return np.array([
        np.mean([row["completion_time"] for row in one.jobs if of(row)]) for one in runs
    ])  # fmt: skip


def managers(seeds: int) -> Iterator[Table]:
    """Managers, and whose constants, by placer; and with a tenant that makes stragglers."""
    case = study()
    measured, star = measure_all(case), constants_of(study(constants="star"))
    kinds = {
        "none": ("none", measured), "refuse": ("refuse", measured), "star": ("star", measured),
        "star, its own table": ("star", star),
    }  # fmt: skip
    for title, shown, policy, placers in (
        ("All jobs use asgd, no other load", case, "asgd", PLACERS),
        ("The same, with a tenant on a node", study(trace=OTHERS), "asgd", PLACERS[-1:]),
        ("All jobs use star_h, with the tenant", study(trace=OTHERS), "star_h", PLACERS[-1:]),
    ):
        rows = []
        for placer in placers:
            first = None
            for name, (manager, constants) in kinds.items():
                runs = run(shown, policy, placer, seeds, manager=manager, constants=constants)
                found = times(runs)
                first = found if first is None else first
                total = [sum(one.summary[k] for one in runs) for k in COUNTED]
                worst = max(one.summary["largest_lost_share"] for one in runs)
                straggling = np.mean([one.summary["stragglers"] for one in runs])
                rows.append((
                    placer, name, show_seconds(mean(found)),
                    show_change(ratio_of_times(found, first)),
                    f"{straggling:.0f}", *map(str, total), f"{100 * worst:.1f} %",
                ))  # fmt: skip
        header = (
            "placer", "manager", "completion, s", "against none", "stragglers", *COUNTED,
            "lost at most",
        )  # fmt: skip
        yield Table(title, header, rows)


def policies(seeds: int) -> Iterator[Table]:
    """Who profits and pays when all jobs use a policy, or those of one workload alone."""
    for placer in POLICY_PLACERS:
        header = (
            "policy", "all jobs use it", "workloads when all use it",
            "a workload that alone uses it", "the others meanwhile",
        )  # fmt: skip
        title = f"Placer {placer}, against bsp (all-reduce) for all jobs"
        yield Table(title, header, [*_of_policies(placer, seeds)])


def _of_policies(placer: str, seeds: int) -> Iterator[tuple[str, ...]]:
    case = _with_precision()
    names = tuple(case.workloads)
    base = run(case, "bsp", placer, seeds)
    for policy in POLICIES:
        everyone = run(case, policy, placer, seeds)
        by = {name: _change_of(base, everyone, [name]) for name in names}
        own, others = {}, {}
        for name in names:
            alone = run(case, {name: policy}, placer, seeds)
            own[name] = _change_of(base, alone, [name])
            others[name] = _change_of(base, alone, [other for other in names if other != name])
        whole = show_change(_change_of(base, everyone, names))
        yield policy, whole, _split(by), _split(own), _split(others)


def intervals(seeds: int) -> Iterator[Table]:
    """Mean completion times where shares are renegotiated more often."""
    rows = []
    for mix in study().policies:
        found = [
            times(run(study(interval=interval), mix, "packed", seeds)) for interval in INTERVALS
        ]
        name = mix if isinstance(mix, str) else "star_h for four, bsp for six"
        cells = [f"{own.mean():.2f}" for own in found]
        finer = [abs(b.mean() / a.mean() - 1) for a, b in itertools.pairwise(found)]
        rows.append((name, *cells, *(f"{share:.2%}" for share in finer)))
    header = (
        "policies", *(f"{interval:g} s" for interval in INTERVALS), "2 to 1 s", "1 to 0.5 s",
        "0.5 to 0.25 s",
    )  # fmt: skip
    yield Table("Mean completion times by interval, in seconds, and how they change", header, rows)


def _with_precision() -> ClusterStudy:
    """The example with an assumed gain of reduced precision."""
    data = read_mapping(EXAMPLE, "cluster study", "")
    for workload in data["workloads"].values():
        step = workload["scenario"]["step"]
        share = step["host_share"]
        step["amp_ratio"] = 1 / (share + (1 - share) / DEVICE_GAIN)
    return ClusterStudy.of(data)


def _change_of(base: ClusterRuns, runs: ClusterRuns, workloads: Sequence[str]) -> Estimate:
    """By which ratio the jobs of some workloads take longer."""
    own, others = (times(each, lambda row: row["workload"] in workloads) for each in (runs, base))
    return ratio_of_times(own, others)


def _split(changes: Mapping[str, Estimate]) -> str:
    """How many profit and pay, and the smallest and largest change.

    >>> _split({"a": Estimate(0.9, 0.8, 0.95), "b": Estimate(1.1, 0.9, 1.2)})
    '1 profits, 0 pay (-10 % to +10 %)'
    """
    profit = sum(each.high < 1 for each in changes.values())
    pay = sum(each.low > 1 for each in changes.values())
    values = [each.value - 1 for each in changes.values()]
    verbs = "profits" if profit == 1 else "profit", "pays" if pay == 1 else "pay"
    span = f"{100 * min(values):+.0f} % to {100 * max(values):+.0f} %"
    return f"{profit} {verbs[0]}, {pay} {verbs[1]} ({span})"


def show_seconds(found: Estimate) -> str:
    """A time with its interval."""
    return f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})"


def show_change(found: Estimate) -> str:
    """A ratio as a change, with its interval."""
    value, low, high = (100 * (each - 1) for each in found)
    return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


TABLES = {"managers": managers, "policies": policies, "interval": intervals}


def main() -> None:
    """Print the tables that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=[])
    parser.add_argument("--seeds", type=int, default=5)
    add_write(parser)
    options = parser.parse_args()
    for name in options.tables or TABLES:
        found = [*TABLES[name](options.seeds)]
        show(found)
        if options.write:
            keep_tables(f"cluster-{name}", found, describe_machine())


if __name__ == "__main__":
    main()
