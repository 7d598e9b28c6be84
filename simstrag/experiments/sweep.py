"""Sweeps: every point, policy and seed of a study, each run kept as it finishes.

A folder of a sweep holds `sweep.json`, which lists the runs, `runs/`, with a file for each finished
run, and the tables made of them.  It can be read while another process computes.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simstrag.documents.file_io import write_atomically
from simstrag.errors import InputError
from simstrag.experiments.cluster_backends import open_backend
from simstrag.experiments.kept_runs import KeptStudy, Report
from simstrag.experiments.runner import (
    attribution,
    digest_of_policy,
    digest_of_scenario,
    key_of,
)
from simstrag.experiments.study import GridPoint, Study, text_of
from simstrag.runs.run import plain

if TYPE_CHECKING:
    import pandas as pd

    from simstrag.scenario.scenario import Scenario


class Planned(NamedTuple):
    """One run of a study.

    key: the file name, a digest of everything that the run depends on.
    """

    key: str
    point: int
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Sweep(KeptStudy[Planned]):
    """A sweep in its folder: all of it, or one shard.

    points: the values of each point of the grid.
    times: the column of the time that ranks the policies, of each point.
    certain: whether nothing is random, of each point.
    """

    points: tuple[Mapping[str, Any], ...]
    times: tuple[str, ...]
    certain: tuple[bool, ...]

    WHAT = "sweep"
    FORMAT = "simstrag-sweep/2"
    MARKER = "sweep.json"
    TABLES = ("results.csv", "results.parquet")
    RUN = Planned

    def frame(self) -> pd.DataFrame:
        """A row for each run that has ended so far, in the order of the study.

        point: the number of its point, then a column for each key of the grid, policy, seed,
        error (missing where there was none), and the numbers of its summary.
        """
        import pandas as pd

        rows = [self._row(run, kept) for run, kept in self.outcomes().items()]
        table = pd.DataFrame(rows, columns=None if rows else [*self._head, "error"])
        kinds = dict.fromkeys(["policy", "error", *self._texts], "string")
        return table.astype(kinds)

    def describe_run(self, run: Planned) -> str:
        """Policy, seed and point of a run, in words."""
        where = "".join(f", {k}={text_of(v)}" for k, v in self.points[run.point].items())
        return f"{run.policy}, seed {run.seed}{where}"

    def write(self) -> None:
        """Write the tables of all runs that have ended; each file atomically."""
        table = self.frame()
        text, binary = (self.folder / name for name in self.TABLES)
        write_atomically(text, partial(table.to_csv, index=False))
        write_atomically(binary, partial(table.to_parquet, index=False))

    @property
    def _head(self) -> list[str]:
        return ["point", *(self.points[0] if self.points else ()), "policy", "seed"]

    @property
    def _texts(self) -> list[str]:
        """The keys of the grid whose values are not all numbers."""
        return [
            key
            for key in (self.points[0] if self.points else ())
            if not all(type(values[key]) in (int, float) for values in self.points)
        ]

    def _row(self, run: Planned, kept: Mapping[str, Any]) -> dict[str, Any]:
        texts, values = self._texts, self.points[run.point]
        shown = {key: text_of(value) if key in texts else value for key, value in values.items()}
        about = {"policy": run.policy, "seed": run.seed, "error": kept["error"]}
        return {"point": run.point, **shown, **about, **kept["summary"]}


def sweep(
    study: Study | Mapping[str, Any] | str | Path,
    folder: str | Path,
    *,
    seeds: int | Sequence[int] | None = None,
    jobs: int | None = None,
    backend: str = "processes",
    address: str | None = None,
    shard: tuple[int, int] | None = None,
    on_progress: Report | None = None,
) -> Sweep:
    """Run every policy under every seed at every point of a study, and keep each run in a folder.

    study: a `Study`, its keys, or the path of a YAML file.
    seeds: instead of the study's.
    jobs: processes, all cores by default; 1 is this process.
    backend: processes, dask or ray.
    address: the cluster's address.
    shard: (i, k) computes the i-th of k parts, from 1 on.
    on_progress: called as (done, total, what).

    Finished runs in the folder are not computed again; failed ones are.  A run that fails does not
    stop the others: `frame()` has its error.  The same runs make the same tables, `results.csv` and
    `results.parquet`, to the last byte, wherever they were computed.
    Raises `InputError` before anything runs where a scenario is invalid, and where a cluster cannot
    be reached or has another program.  On Ctrl-C, the `KeyboardInterrupt` says how many runs are
    kept.

    >>> import tempfile
    >>> case = {"workers": 4, "samples": 10_000, "step": {"compute": 0.1}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = sweep({"scenario": case, "grid": {"workers": [4, 8]}}, folder, jobs=1)
    ...     print(done.frame()[["point", "workers", "policy", "makespan"]].round(3))
       point  workers policy  makespan
    0      0        4    bsp       2.0
    1      1        8    bsp       1.0
    """
    made = attribution(study if isinstance(study, (str, Path)) else None)
    if not isinstance(study, Study):
        study = Study.of(study) if isinstance(study, Mapping) else Study.read(study)
    study = study.under(seeds)
    folder, report = Sweep.check(folder, shard), on_progress or (lambda *_: None)
    with open_backend(backend, address, jobs) as pool:
        report(0, 0, "reading")
        points = study.points()
        whole = _begin(study, points, folder, made, shard)
        return whole.compute_shard(shard, pool, _run, partial(_calls, pool.share, points), report)


def _begin(
    study: Study, points: tuple[GridPoint, ...], folder: Path, made: Mapping[str, str],
    shard: tuple[int, int] | None,
) -> Sweep:  # fmt: skip
    """Write the marker of a sweep.  Raises `InputError` where two points are the same."""
    sources = {name: digest_of_policy(name) for name in points[0].scenario.policies}
    runs, firsts = [], dict[str, GridPoint]()
    for point in points:
        origin = digest_of_scenario(point.scenario)
        if (first := firsts.setdefault(origin, point)) is not point:
            raise InputError(f"grid: {first} and {point} are the same scenario; name it once")
        for policy, source in sources.items():
            for seed in point.scenario.seed_list:
                key = key_of(origin, "contended", policy, seed, source)
                runs.append(Planned(key, point.number, policy, seed))
    targets = (point.scenario.has_target for point in points)
    return Sweep.begin(
        folder, runs, study.declared(), made, shard,
        points=[point.values for point in points],
        times=["time_to_target" if target else "makespan" for target in targets],
        certain=[point.scenario.certain for point in points],
    )  # fmt: skip


def _calls(
    share: Callable[[bytes], Any], points: tuple[GridPoint, ...], runs: list[Planned]
) -> Iterator[tuple[Planned, tuple[Any, ...]]]:
    """The arguments of `_run` for each run; data that points share are sent once if possible."""
    shared: dict[int, Any] = {}
    for run in runs:
        point = points[run.point]
        if id(point.shared) not in shared:
            shared[id(point.shared)] = share(zlib.compress(pickle.dumps(point.shared), 1))
        changes = pickle.dumps(point.changes)
        yield run, (shared[id(point.shared)], changes, run.policy, run.seed)


def _run(shared: bytes, changes: bytes, policy: str, seed: int) -> dict[str, Any]:
    """One run, on any machine: its summary and what it can be made again from, as JSON."""
    from simstrag.engine.simulate import require_gain, simulate
    from simstrag.policies import collect_warnings

    scenario = _scenario_of(shared, changes)
    require_gain(scenario, policy)
    with collect_warnings(policy) as warned:
        run = simulate(scenario, policy, seed, record_updates=False)
    rest = {"provenance": run.provenance, "warnings": [*run.warnings, *warned.values()]}
    about = {"policy": policy, "seed": seed}
    return {**about, "summary": run.scalars, **plain(rest)}


@lru_cache(maxsize=2)
def _scenario_of(shared: bytes, changes: bytes) -> Scenario:
    """The scenario of a point; runs of one point follow each other."""
    return _shared(shared).replaced(**pickle.loads(changes))


@lru_cache(maxsize=2)
def _shared(shared: bytes) -> Scenario:
    """A scenario with the trace and profile of many points."""
    scenario: Scenario = pickle.loads(zlib.decompress(shared))
    return scenario
