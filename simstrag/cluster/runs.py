"""Cluster studies in a folder: all policies, placers, managers and seeds, each run kept as it ends.

A folder holds `cluster.json`, which lists the runs, `runs/`, with a file for each finished run, and
the tables made of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simstrag.cluster.constants import Constants
from simstrag.cluster.managers import load_manager
from simstrag.cluster.measured_constants import constants_of
from simstrag.cluster.simulate import require_interval, simulate_cluster
from simstrag.cluster.study import ClusterStudy, mix_name
from simstrag.cluster.utilisation import UTILISATION
from simstrag.documents.file_io import path_of, refuse_file, write_atomically
from simstrag.errors import InputError
from simstrag.experiments.cluster_backends import load_backend
from simstrag.experiments.kept_runs import KeptRuns, Report, needs, outcome
from simstrag.experiments.paired_statistics import Array, Estimate, mean, ratio_of_times
from simstrag.experiments.runner import attribution, key_of
from simstrag.policies import load
from simstrag.rendering import html_fragment
from simstrag.runs.run import plain, provenance

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "simstrag-cluster/1"
MARKER = "cluster.json"
OF_RUNS = ("jobs", "shares", "delays", "utilisation", "nodes")
"""Tables with rows of every run."""
TABLES = tuple(f"{name}.csv" for name in ("summary", *OF_RUNS))


class PlannedClusterRun(NamedTuple):
    """One run of a cluster study; mix: the number of its mix of policies."""

    key: str
    mix: int
    policies: str
    placer: str
    seed: int
    manager: str = "none"


@dataclass(frozen=True, slots=True)
class ClusterResults:
    """The runs of a cluster study in its folder.

    study: the keys of the study.
    provenance: versions and digests of the program.
    made: `by` and `at`: who began it and when; `job`: the name of the study's file, if it has one.
    """

    folder: Path
    runs: tuple[PlannedClusterRun, ...]
    study: Mapping[str, Any]
    provenance: Mapping[str, Any]
    made: Mapping[str, str]

    @classmethod
    def read(cls, folder: str | Path) -> ClusterResults:
        """From its folder, finished or not.  Raises `InputError` where it holds no such study."""
        folder = path_of(folder, "a cluster study")
        try:
            data = json.loads((folder / MARKER).read_text(encoding="utf-8"))
            if data.get("format") != FORMAT:
                raise InputError(f"{folder / MARKER}: not a cluster study: no format {FORMAT}")
            runs = tuple(PlannedClusterRun(*run) for run in data["runs"])
            return cls(folder, runs, data["study"], data["provenance"], data["made"])
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{folder}: not a cluster study: {reason}") from None
        except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise InputError(f"{folder / MARKER}: not a cluster study: {error}") from None

    def __str__(self) -> str:
        """How many runs are finished, and the mean completion times in a few lines."""
        summary, text = self.summary(), self.kept.describe()
        if summary.empty:
            return text
        names = [*summary]
        shown = summary[[*names[: names.index("seeds")], *SHOWN]]
        return f"{text}\n{shown.round(3).to_string(index=False)}"

    def _repr_html_(self) -> str:
        return html_fragment(self)

    @property
    def kept(self) -> KeptRuns[PlannedClusterRun]:
        """Its runs in its folder."""
        return KeptRuns(self.folder, self.runs)

    def table(self, name: str) -> pd.DataFrame:
        """The rows of all finished runs of one of `OF_RUNS`."""
        import pandas as pd

        rows = [
            {**_about(run), **row}
            for run, kept in self.kept.outcomes().items()
            for row in kept.get(name, ())
        ]
        return pd.DataFrame(rows)

    def summary(self) -> pd.DataFrame:
        """A row for each mix of policies, placer and manager: means over seeds, 95 % intervals.

        ratio: of the mean completion time to that of the first row, of the seeds of both rows.
        """
        import pandas as pd

        by: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = {}
        for run, kept in self.kept.outcomes().items():
            if not kept["error"]:
                key = run.policies, run.placer, run.manager
                by.setdefault(key, {})[run.seed] = kept["summary"]

        def times(runs: Mapping[int, Mapping[str, Any]], seeds: Iterable[int]) -> Array:
            return np.array([_number(runs[seed]["mean_completion_time"]) for seed in seeds])

        rows = []
        for (policies, placer, manager), found in by.items():
            first = next(iter(by.values()))
            both = [seed for seed in first if seed in found]
            change = ratio_of_times(times(found, both), times(first, both)) if both else UNKNOWN
            rows.append({
                "policies": policies, "placer": placer, "manager": manager, "seeds": len(found),
                **_interval("mean_completion_time", mean(times(found, found))),
                **_interval("ratio", change),
                **{name: float(np.mean([_number(each.get(name)) for each in found.values()]))
                   for name in MEANS},
            })  # fmt: skip
        return pd.DataFrame(rows)

    def write(self) -> None:
        """Write the tables of all runs that have ended; each file atomically."""
        frames = {"summary": self.summary()}
        frames |= {name: self.table(name) for name in OF_RUNS}
        for name, frame in frames.items():
            if name != "delays" or len(frame):
                write_atomically(self.folder / f"{name}.csv", partial(_write, frame))


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
    jobs: int | None = None,
    backend: str = "processes",
    address: str | None = None,
    shard: tuple[int, int] | None = None,
    on_progress: Report | None = None,
) -> ClusterResults:
    """Run a cluster study under all its policies, placers, managers and seeds, into a folder.

    study: a `ClusterStudy`, its keys, or the path of a YAML file.
    jobs: processes, all cores by default; 1 is this process.
    backend: processes, dask or ray.  address: the cluster's address.
    shard: (i, k) computes the i-th of k parts, from 1 on.
    on_progress: called as (done, total, what).

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
    folder = Path(folder)
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise InputError(f"shard {shard[0]}/{shard[1]}: must be 1/k to k/k")
    refuse_file(folder)
    if folder.exists() and not (folder / MARKER).exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: holds other files; choose a folder that does not exist yet")
    report = on_progress or (lambda done, total, what: None)
    whole = _start(study, folder, made)
    runs = whole.runs if shard is None else whole.runs[shard[0] - 1 :: shard[1]]
    part = replace(whole, runs=runs)
    backend_of_runs = load_backend(backend, address, jobs)
    try:
        part.kept.compute(
            backend_of_runs, _run, partial(_calls, study), report, describe,
            whole.write if shard is None else None,
        )  # fmt: skip
    finally:
        backend_of_runs.shut_down()
    if len(whole.kept.outcomes()) == len(whole.runs):
        whole.write()
    return part


def _start(study: ClusterStudy, folder: Path, made: Mapping[str, str]) -> ClusterResults:
    """Write the list of runs; tables and the report of another study in the folder are removed."""
    origin = study.digest
    combinations = itertools.product(
        enumerate(study.policies), study.placers, study.managers, study.seed_list
    )
    runs = [
        PlannedClusterRun(
            key_of(origin, f"{placer} {manager}", mix_name(mix), seed, _weights(study, mix)), k,
            mix_name(mix), placer, seed, manager,
        )
        for (k, mix), placer, manager, seed in combinations
    ]  # fmt: skip
    with contextlib.suppress(InputError):
        before = ClusterResults.read(folder)
        if {run.key for run in before.runs} <= {run.key for run in runs}:
            made = before.made
        else:  # what is shown of another study
            for name in (*TABLES, "report.html"):
                (folder / name).unlink(missing_ok=True)
    text = json.dumps({
        "format": FORMAT, "made": made, "study": study.declared,
        "provenance": dict(provenance()), "runs": runs,
    }, default=str)  # fmt: skip
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    write_atomically(folder / MARKER, lambda part: part.write_text(text, encoding="utf-8"))
    return ClusterResults.read(folder)


def _weights(study: ClusterStudy, mix: str | Mapping[str, str]) -> str | None:
    """The digests of the weights that policies read from files; None if none does.

    Raises `InputError` for weights that do not fit the study.
    """
    for spec in study.specs(mix):
        require_interval(study, spec)
    found = [getattr(load(spec), "weights", "") for spec in study.specs(mix)]
    return "".join(found) or None


def _calls(
    study: ClusterStudy, runs: list[PlannedClusterRun]
) -> Iterator[tuple[PlannedClusterRun, tuple[Any, ...]]]:
    needed, constants = needs(), None
    for run in runs:
        if constants is None and load_manager(run.manager).asked:
            constants = constants_of(study)
        yield run, (study, study.policies[run.mix], run.placer, run.seed, run.manager, constants,
                    needed)  # fmt: skip


def _run(
    study: ClusterStudy, mix: Any, placer: str, seed: int, manager: str,
    constants: Mapping[str, Constants] | None, needed: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """One run, on any machine: its tables or its error, as JSON."""

    def compute() -> dict[str, Any]:
        run = simulate_cluster(study, mix, placer, seed, manager=manager, constants=constants)
        done: dict[str, Any] = plain(asdict(run))
        return done

    return outcome(needed, compute)


def _about(run: PlannedClusterRun) -> dict[str, Any]:
    return {
        "policies": run.policies, "placer": run.placer, "manager": run.manager, "seed": run.seed,
    }  # fmt: skip


def describe(run: PlannedClusterRun) -> str:
    """A run in a line; the manager only where jobs ask one."""
    managed = "" if run.manager == "none" else f"{run.manager}, "
    return f"{run.policies}, {run.placer}, {managed}seed {run.seed}"


def _write(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False)


def _number(value: float | None) -> float:
    """A number of a file, where None stands for NaN."""
    return math.nan if value is None else value


def _interval(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
