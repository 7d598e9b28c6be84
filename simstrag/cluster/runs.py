"""Cluster studies in a folder: all policies, placers, managers and seeds, each run kept as it ends.

A folder holds `cluster.json`, which lists the runs, `runs/`, with a file for each finished run, and
the tables made of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simstrag.arrays import Floats
from simstrag.cluster.constants import Constants
from simstrag.cluster.managers import load_manager
from simstrag.cluster.measured_constants import constants_of
from simstrag.cluster.simulate import require_interval, simulate_cluster
from simstrag.cluster.study import ClusterStudy, mix_name
from simstrag.cluster.utilisation import UTILISATION
from simstrag.documents.file_io import write_atomically
from simstrag.experiments.cluster_backends import open_backend
from simstrag.experiments.kept_runs import KeptStudy, Report
from simstrag.experiments.paired_statistics import Estimate, mean, ratio_of_times
from simstrag.experiments.runner import attribution, digest, digest_of_policy, key_of
from simstrag.runs.run import plain

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("policies", "placer", "manager")
"""What makes a combination: a run has a seed beside these."""
OF_RUNS = ("jobs", "shares", "delays", "utilisation", "nodes")
"""Tables with rows of every run."""


class PlannedClusterRun(NamedTuple):
    """One run of a cluster study; mix: the number of its mix of policies."""

    key: str
    mix: int
    policies: str
    placer: str
    seed: int
    manager: str = "none"

    def __str__(self) -> str:
        """In a line; the manager only where jobs ask one."""
        managed = "" if self.manager == "none" else f"{self.manager}, "
        return f"{self.policies}, {self.placer}, {managed}seed {self.seed}"


@dataclass(frozen=True, slots=True)
class ClusterResults(KeptStudy[PlannedClusterRun]):
    """The runs of a cluster study in its folder."""

    WHAT = "cluster study"
    FORMAT = "simstrag-cluster/1"
    MARKER = "cluster.json"
    TABLES = tuple(f"{name}.csv" for name in ("summary", *OF_RUNS))
    RUN = PlannedClusterRun

    def __str__(self) -> str:
        """How many runs are finished, and the mean completion times in a few lines."""
        summary, text = self.summary(), self.describe_kept()
        if summary.empty:
            return text
        names = [*summary]
        shown = summary[[*names[: names.index("seeds")], *SHOWN]]
        return f"{text}\n{shown.round(3).to_string(index=False)}"

    def table(self, name: str) -> pd.DataFrame:
        """The rows of all finished runs of one of `OF_RUNS`."""
        import pandas as pd

        rows = [
            {**{key: getattr(run, key) for key in (*COLUMNS, "seed")}, **row}
            for run, kept in self.outcomes().items()
            for row in kept.get(name, ())
        ]
        return pd.DataFrame(rows)

    def summary(self) -> pd.DataFrame:
        """A row for each mix of policies, placer and manager: means over seeds, 95 % intervals.

        ratio: of the mean completion time to that of the first row, of the seeds of both rows.
        """
        import pandas as pd

        def numbers(runs: Mapping[int, Mapping[str, Any]], name: str) -> Floats:
            return np.array([_number(kept["summary"].get(name)) for kept in runs.values()])

        rows, every = [], by_combination(self.outcomes())
        for combination, found in every.items():
            first, time = next(iter(every.values())), "mean_completion_time"
            both = [seed for seed in first if seed in found]
            own, base = ({seed: of[seed] for seed in both} for of in (found, first))
            change = ratio_of_times(numbers(own, time), numbers(base, time)) if both else UNKNOWN
            rows.append({
                **dict(zip(COLUMNS, combination, strict=True)), "seeds": len(found),
                **_interval(time, mean(numbers(found, time))), **_interval("ratio", change),
                **{name: float(np.mean(numbers(found, name))) for name in MEANS},
            })  # fmt: skip
        return pd.DataFrame(rows)

    def write(self) -> None:
        """Write the tables of all runs that have ended; each file atomically."""
        frames = {"summary": self.summary()}
        frames |= {name: self.table(name) for name in OF_RUNS}
        for name, frame in frames.items():
            if name != "delays" or len(frame):
                write_atomically(self.folder / f"{name}.csv", partial(frame.to_csv, index=False))


def by_combination(
    outcomes: Mapping[PlannedClusterRun, Mapping[str, Any]],
) -> dict[tuple[str, ...], dict[int, Mapping[str, Any]]]:
    """What is kept of the finished runs of each combination, by seed."""
    found: dict[tuple[str, ...], dict[int, Mapping[str, Any]]] = {}
    for run, kept in outcomes.items():
        if not kept["error"]:
            key = tuple(getattr(run, name) for name in COLUMNS)
            found.setdefault(key, {})[run.seed] = kept
    return found


SHOWN = ("mean_completion_time", "ratio", "mean_slowdown")
"""Columns of the summary that `print` shows beside those that name a combination."""
UNKNOWN = Estimate(math.nan, math.nan, math.nan)
MEANS = (
    "p95_completion_time", "makespan", "mean_queueing", "mean_slowdown", "jobs", "finished",
    "stragglers", "granted", "refused", "donors", "lost", "largest_lost_share", "delays",
    "over_grant", *UTILISATION,
)  # fmt: skip
"""Columns of the summary that are means over seeds."""


def cluster(
    study: ClusterStudy | Mapping[str, Any] | str | Path,
    folder: str | Path,
    *,
    seeds: int | Sequence[int] | None = None,
    jobs: int | None = None,
    backend: str = "processes",
    address: str | None = None,
    shard: tuple[int, int] | None = None,
    on_progress: Report | None = None,
) -> ClusterResults:
    """Run a cluster study under all its policies, placers, managers and seeds, into a folder.

    study: a `ClusterStudy`, its keys, or the path of a YAML file.
    seeds: instead of the study's.
    jobs, backend, address, shard, on_progress: as of `simstrag.sweep`.

    Finished runs in the folder are not computed again.  Raises `InputError` before anything runs
    where the study is invalid.  On Ctrl-C, the `KeyboardInterrupt` says how many runs are kept.

    >>> import tempfile
    >>> case = {
    ...     "nodes": [{"gpus": 4, "cores": 8}],
    ...     "workloads": {"small": {"scenario": {"step": {"compute": 0.1}}}},
    ...     "jobs": [{"workload": "small", "workers": 4, "samples": 25_600, "count": 2}],
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = cluster(case, folder, jobs=1)
    ...     print(done.table("jobs")[["name", "queueing", "completion_time"]].round(3))
          name  queueing  completion_time
    0  small-0       0.0              5.0
    1  small-1       5.0             10.0
    """
    made = attribution(study if isinstance(study, (str, Path)) else None)
    if not isinstance(study, ClusterStudy):
        study = ClusterStudy.of(study) if isinstance(study, Mapping) else ClusterStudy.read(study)
    if seeds is not None:
        study = study.replaced(seeds=seeds)
    folder, report = ClusterResults.check(folder, shard), on_progress or (lambda *_: None)
    with open_backend(backend, address, jobs) as pool:
        whole = ClusterResults.begin(folder, _plan(study), study.declared, made, shard)
        return whole.compute_shard(shard, pool, _run, partial(_calls, study), report)


def _plan(study: ClusterStudy) -> Iterator[PlannedClusterRun]:
    """Every run of a study."""
    origin = study.digest
    for (k, mix), placer, manager, seed in itertools.product(
        enumerate(study.policies), study.placers, study.managers, study.seed_list
    ):
        name, sources = mix_name(mix), _sources(study, mix)
        key = key_of(origin, f"{placer} {manager}", name, seed, sources)
        yield PlannedClusterRun(key, k, name, placer, seed, manager)


def _sources(study: ClusterStudy, mix: str | Mapping[str, str]) -> str:
    """A digest of the files of all policies of a mix: their sources and their weights.

    Raises `InputError` for weights that do not fit the study.
    """
    specs = study.specs(mix)
    for spec in specs:
        require_interval(study, spec)
    return digest([digest_of_policy(spec) for spec in specs])


def _calls(
    study: ClusterStudy, runs: list[PlannedClusterRun]
) -> Iterator[tuple[PlannedClusterRun, tuple[Any, ...]]]:
    constants = None
    for run in runs:
        if constants is None and load_manager(run.manager).asked:
            constants = constants_of(study)
        mix = study.policies[run.mix]
        yield run, (study, mix, run.placer, run.seed, run.manager, constants)


def _run(
    study: ClusterStudy, mix: Any, placer: str, seed: int, manager: str,
    constants: Mapping[str, Constants] | None,
) -> dict[str, Any]:  # fmt: skip
    """One run, on any machine: its tables as JSON."""
    run = simulate_cluster(study, mix, placer, seed, manager=manager, constants=constants)
    tables: dict[str, Any] = plain(asdict(run))
    return tables


def _number(value: float | None) -> float:
    """A number of a file, where None stands for NaN."""
    return math.nan if value is None else value


def _interval(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
