"""The runs of a comparison: computed in parallel, cached as they finish, counted and reported."""

from __future__ import annotations

import contextlib
import datetime
import functools
import getpass
import hashlib
import inspect
import json
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag import policies
from simstrag.documents.file_io import path_of, write_atomically
from simstrag.engine.excerpt import ranks_to_show
from simstrag.engine.real_training import task_source
from simstrag.engine.simulate import check, simulate
from simstrag.errors import InputError, SimstragError
from simstrag.experiments.barrier_waits import barrier_waits
from simstrag.experiments.cluster_backends import load_backend
from simstrag.processes.pool import REASON, TRIES, LostCall, compute
from simstrag.runs.run import Run, provenance
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import with_value

BASELINE = "bsp"
LEVELS = 101
"""Points of a progress curve."""
VARIANTS = 8
"""Variants of a scenario that a process keeps; the runs of one follow each other."""
NOTE = "finished-runs.txt"
REQUESTED = ("policies", "seeds", "placeholders")
"""Keys of a scenario that do not affect a single run."""
NOTE_TEXT = """\
Finished runs of a comparison that was interrupted. The same command goes on from here, also with
other policies or seeds, as long as all else of the scenario, its trace, its profile and the program
are the same; it removes its runs when it is done.
"""


class RunTask(NamedTuple):
    """One run of a comparison.

    variant: contended, clean, or `key=value` of a constant.
    again: further values of c_tau at which the run is repeated if any gradient was stale.
    """

    variant: str
    policy: str
    seed: int
    keep_steps: bool
    again: tuple[float, ...] = ()


class RunResult(NamedTuple):
    """The results of a run that a comparison keeps.

    row: its summary.
    curve: (variant, policy, seed, progress, time).
    run: the run itself, if its steps are kept.
    times: (c_tau, seconds to the target) of each repetition.
    warned: the policy's warnings, by their place in its file.
    waits: of bsp, seconds that the other ranks waited for each rank.
    evaluations: of a real learner: (variant, policy, seed, time, updates, samples, accuracy, loss).
    """

    row: dict[str, Any]
    curve: list[tuple[str, str, int, float, float]]
    run: Run | None
    times: list[tuple[float, float]]
    warned: Mapping[str, str]
    waits: list[float]
    evaluations: list[tuple[Any, ...]]


class Runner:
    """Computes the runs of one comparison or sensitivity analysis; a context manager.

    jobs: processes; all cores by default.
    report: called as (done, total, what).
    cache: where finished runs are looked up and kept.
    """

    def __init__(
        self,
        scenario: Scenario,
        jobs: int | None,
        report: Callable[[int, int, str], None] | None,
        cache: RunCache | None,
    ) -> None:
        self._report, self._cache = report, cache
        self._backend = load_backend("processes", jobs=jobs)
        self._shared = self._backend.share(pickle.dumps(scenario))
        self._tasks: list[RunTask] = []
        self._done = 0
        self._ahead = 0
        self._warned = set[tuple[str, str]]()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *failure: object) -> None:
        self._backend.shut_down()

    def results(self, tasks: list[RunTask], ahead: int = 0) -> Iterator[tuple[RunTask, RunResult]]:
        """Results in the order of the tasks.

        ahead: number of runs still to come in later calls; part of the reported total.
        Raises `SimstragError` if the worker process died on every attempt at a run.
        """
        self._tasks += tasks
        self._ahead = ahead
        cached = {} if self._cache is None else self._cache.read_all(tasks)
        if cached:
            self._count(len(cached), "found finished")
        missing = [task for task in tasks if task not in cached]
        calls = [(task, (self._shared, task, self._cache)) for task in missing]
        computed = compute(self._backend, _run_task, calls)
        results = dict(cached)
        for task in tasks:
            while task not in results:
                finished, result = next(computed)
                if isinstance(result, LostCall):
                    lost = f"a process ended {TRIES} times before its run did: {REASON}"
                    raise SimstragError(lost)
                results[finished] = result
            if task not in cached:
                name, _, value = task.variant.partition("=")
                where = f"{name} = {float(value):.4g}, " if value else ""
                self._count(1, f"{where}{task.policy}, seed {task.seed}")
            self._warn(task.policy, results[task].warned)
            yield task, results[task]

    def _warn(self, policy: str, warned: Mapping[str, str]) -> None:
        """Warn once of each place at which runs of a policy did."""
        for place, line in warned.items():
            if (policy, place) not in self._warned:
                self._warned.add((policy, place))
                warnings.warn_explicit(line, UserWarning, "simstrag", 0)

    def _count(self, runs: int, what: str) -> None:
        self._done += runs
        if self._report is not None:
            self._report(self._done, len(self._tasks) + self._ahead, what)

    def describe_kept(self) -> list[str]:
        """A sentence on the runs that an interrupt leaves; none if no run is kept."""
        count = 0 if self._cache is None else self._cache.count(self._tasks)
        if self._cache is None or not count:
            return []
        return [f"{count} of {len(self._tasks)} runs are finished and kept in {self._cache.folder}"]


def prepare(
    scenario: Scenario | str | Path,
    names: str | Sequence[str] | None,
    seeds: int | Sequence[int] | None,
) -> Scenario:
    """The scenario with each policy once, as it was first spelled, checked before anything runs.

    Warns of each other spelling of a policy.
    """
    scenario = Scenario.given(scenario)
    if scenario.updates is not None:
        raise InputError(
            "compare needs equal work, and an update is N gradients for bsp but one for asgd: "
            "instead of updates give samples, target_progress or target_accuracy"
        )
    changes: dict[str, Any] = {} if seeds is None else {"seeds": seeds}
    firsts: dict[str, str] = {}
    names = () if names is None else policies.specs(names)
    for name in names or scenario.policies:
        first = firsts.setdefault(policies.spec(policies.load(name)), name)
        if name != first:
            warnings.warn(f"{name} is {first}; compared once", UserWarning, stacklevel=3)
    changes["policies"] = tuple(firsts.values())
    scenario = scenario.replaced(**changes)
    for name in scenario.policies:
        with policies.collect_warnings(name):  # its runs warn again
            policies.declared_lane(policies.load(name), name)
            check(scenario, name, scenario.seed_list[0])  # reads and checks trace and profile too
    return scenario


def _run_task(shared: bytes, task: RunTask, cache: RunCache | None) -> RunResult:
    scenario, varied = _scenario_of(shared, "contended"), _scenario_of(shared, task.variant)
    value = "=" in task.variant
    ranks = None
    if task.keep_steps:  # the same ranks in the clean control, to look at side by side
        ranks = ranks_to_show(scenario.timing(task.seed).contention, scenario.workers)
    with policies.collect_warnings(task.policy) as warned:
        run = simulate(varied, task.policy, task.seed, record_updates=False, excerpt=ranks)
    row = {"policy": run.policy, "seed": task.seed, **run.scalars}
    row["staleness_by_rank"] = " ".join(
        "" if value is None else f"{value:.6g}" for value in run.summary["staleness_by_rank"]
    )
    curve = [] if value else _curve(run, task.variant)
    evaluations = []
    if not value and run.evaluations is not None:
        own = (task.variant, run.policy, run.seed)
        evaluations = [(*own, *each) for each in zip(*run.evaluations.values(), strict=True)]
    times = []
    if (run.summary["effective_staleness"] or 0) > 0:
        for c_tau in task.again:
            again = _scenario_of(shared, f"learner.c_tau={c_tau!r}")
            with policies.collect_warnings(task.policy):
                repeated = simulate(again, task.policy, task.seed, record_updates=False)
            times.append((c_tau, repeated.summary["time_to_target"]))
    waits: list[float] = []
    if task.policy == BASELINE and not value:
        waits = barrier_waits(varied, task.seed).tolist()
    example = run if task.keep_steps else None
    result = RunResult(row, curve, example, times, warned, waits, evaluations)
    if cache is not None:
        cache.keep(task, result)
    return result


@functools.lru_cache(maxsize=VARIANTS)
def _scenario_of(shared: bytes, variant: str) -> Scenario:
    """The scenario of a variant of the pickled one."""
    if variant == "contended":
        scenario: Scenario = pickle.loads(shared)
        return scenario
    scenario, (name, _, value) = _scenario_of(shared, "contended"), variant.partition("=")
    return with_value(scenario, name, float(value)) if value else scenario.without_contention()


def _curve(run: Run, variant: str) -> list[tuple[str, str, int, float, float]]:
    """When the run passed evenly spaced levels of progress; empty where progress is unknown."""
    if run.summary["progress"] is None:
        return []
    progress = np.array([0.0, *run.updates["progress"]])
    time = np.array([0.0, *run.updates["time"]])
    levels = np.linspace(0.0, progress[-1], LEVELS)
    times = np.interp(levels, progress, time)
    pairs = zip(levels.tolist(), times.tolist(), strict=True)
    return [(variant, run.policy, run.seed, *pair) for pair in pairs]


# -- the cache ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunCache:
    """A folder of finished runs, each under a name made of all that its numbers depend on.

    That is its policy and seed, the scenario with its trace and profile, the sources of this
    package, of the policy and of a real learner's task, and the versions of the libraries: where
    any of them has changed, the run is done again.  The other requested policies and seeds do not
    count.  The first finished run makes the folder.

    origin: digest of the scenario.
    requested: the policies and seeds that the scenario of each run states.
    """

    folder: Path
    origin: str
    requested: Mapping[str, Any]

    @classmethod
    def of(cls, folder: str | Path, scenario: Scenario) -> RunCache:
        """The cache of a comparison.  Raises `InputError` for a folder with other files."""
        folder = path_of(folder, "a folder for finished runs")
        if folder.exists() and not (folder / NOTE).exists() and any(folder.iterdir()):
            raise InputError(
                f"{folder}: finished runs are kept there, but it holds something else; "
                "move it away, or choose another --out"
            )
        declared = scenario.model_dump(mode="json", exclude_unset=True)
        requested = {key: declared[key] for key in REQUESTED if key in declared}
        return cls(folder, digest_of_scenario(scenario), requested)

    def read_all(self, tasks: Iterable[RunTask]) -> dict[RunTask, RunResult]:
        """The results of those tasks that are kept and can be read."""
        kept = ((task, self._read(task)) for task in tasks)
        return {task: result for task, result in kept if result is not None}

    def _read(self, task: RunTask) -> RunResult | None:
        path, run = self._path(task), None
        try:
            kept: Mapping[str, Any] = json.loads(path.with_suffix(".json").read_text("utf-8"))
            if task.keep_steps:
                run = Run.read(path)
        except (OSError, ValueError):
            return None
        if run is not None:  # its scenario states the policies and seeds of this comparison
            rest = {key: value for key, value in run.scenario.items() if key not in REQUESTED}
            run = replace(run, scenario={**rest, **self.requested})
        curve, times, evaluations = (
            [tuple(pair) for pair in kept[name]] for name in ("curve", "times", "evaluations")
        )
        return RunResult(kept["row"], curve, run, times, kept["warned"], kept["waits"], evaluations)

    def keep(self, task: RunTask, result: RunResult) -> None:
        """Write a finished run, whole or not at all.  Raises `InputError` where that fails."""
        path = self._path(task)
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
            _write(self.folder / NOTE, NOTE_TEXT)
            if result.run is not None:
                result.run.write(path)
            kept = {name: value for name, value in result._asdict().items() if name != "run"}
            _write(path.with_suffix(".json"), json.dumps(kept))
        except OSError as error:
            folder = self.folder.with_name(self.folder.name.removesuffix(".partial"))
            raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None

    def count(self, tasks: Iterable[RunTask]) -> int:
        """Number of `tasks` whose results are kept."""
        return sum(self._path(task).with_suffix(".json").exists() for task in tasks)

    def clear(self) -> None:
        """Remove all runs of this scenario, requested or not; also the folder if it is empty."""
        shutil.rmtree(self._runs, ignore_errors=True)
        if self.folder.exists() and {entry.name for entry in self.folder.iterdir()} <= {NOTE}:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, task: RunTask) -> Path:
        digest = digest_of_policy(task.policy)
        return self._runs / key_of(self.origin, task.variant, task.policy, task.seed, digest)

    @property
    def _runs(self) -> Path:
        """The folder of this scenario's runs; the cache may also hold runs of other scenarios."""
        return self.folder / self.origin[:16]


def digest_of_scenario(scenario: Scenario) -> str:
    """A digest of all that runs under a scenario depend on, but policies and seeds."""
    declared = scenario.model_dump(mode="json", exclude_unset=True)
    files = (scenario.inputs.trace, scenario.inputs.profile)
    return digest([
        {key: value for key, value in declared.items() if key not in REQUESTED},
        [None if file is None else file.sha256 for file in files],
        dict(program()), _digest_of_task(scenario),
    ])  # fmt: skip


def _digest_of_task(scenario: Scenario) -> list[str]:
    """What a real learner depends on: torch's version, and the file of a task of the user's own."""
    if scenario.learner.task is None:
        return []
    source = task_source(scenario)
    return [metadata.version("torch"), "" if source is None else _digest_of_file(source)]


def key_of(origin: str, variant: str, policy: str, seed: int, source: str | None) -> str:
    """The name of one run; origin, source: digests of its scenario and of its policy's file."""
    return digest([origin, variant, policy, seed, source])[:24]


def digest_of_policy(policy: str) -> str | None:
    """A digest of a policy's files as they are now; None for a policy without a file."""
    loaded = policies.load(policy)
    source = inspect.getsourcefile(type(loaded))
    weights: str = getattr(loaded, "weights", "")
    return None if source is None else _digest_of_file(Path(source)) + weights


@functools.cache
def program() -> Mapping[str, Any]:
    """The program: versions and commit as a run states them, and a digest of this package.

    >>> {"simstrag", "numpy", "commit", "sources"} <= program().keys()
    True
    """
    files = sorted(Path(__file__).parents[1].rglob("*"))
    sources = [file for file in files if file.suffix in (".py", ".c", ".h", ".npz")]
    return {**provenance(), "sources": digest([_digest_of_file(path) for path in sources])}


def attribution(of: str | Path | None) -> dict[str, str]:
    """Who writes results, when, and the job's name: that of the file of the scenario or study."""
    made = {} if of is None else {"job": Path(of).stem}
    # a user without a name, as in a container, or on Windows without its variable USERNAME
    with contextlib.suppress(KeyError, OSError, ImportError):
        made["by"] = getpass.getuser()
    return made | {"at": datetime.datetime.now().astimezone().isoformat(" ", "minutes")}


def digest(parts: list[Any]) -> str:
    """The SHA-256 of values that JSON can state."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
