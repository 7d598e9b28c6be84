"""Compares policies under one scenario: the same seeds, noise and contention for each of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag import metrics, policies
from simstrag.engine import check, simulate
from simstrag.errors import InputError
from simstrag.finished import Finished, Outcome, Task
from simstrag.run import Run, plain, write_directory
from simstrag.scenario import Scenario
from simstrag.summary import BEYOND_WARNING, beyond_warning, unknown_warning

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["C_TAUS", "Comparison", "compare", "prepared", "processes_end"]

C_TAUS = (0.5, 1.0, 4.0)
"""What a stale sample may cost: tuned learning rate, theory, momentum left untuned."""
BASELINE = "bsp"
TABLES = ("comparison", "controls", "sensitivity", "curves")
LEVELS = 101
"""Points of a progress curve."""
OF_RUN = (
    "samples", "mean_staleness", "effective_staleness", "deviation", "goodput", "throughput",
    "efficiency", "amp_share", "rebatched_share", "switches", "efficacy_stops", "probes",
    "precision", "recall", "beyond_trace",
)  # fmt: skip
"""What the ranking shows of a run's summary, as the mean over seeds."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies compared; tables are DataFrames, times in seconds.

    runs: one row per policy and seed, columns as in `run.json`.  controls: the same columns for the
    clean control (`variant` clean: bsp without contention) and for bsp where it was not asked for.
    sensitivity: policy, seed, c_tau, time_to_target.
    curves: variant, policy, seed, progress, time: when a run passed evenly spaced levels.
    examples: the first seed's `Run` of each policy, with its steps; "clean" is the clean control.
    """

    scenario: Scenario
    runs: pd.DataFrame
    controls: pd.DataFrame
    sensitivity: pd.DataFrame
    curves: pd.DataFrame
    examples: dict[str, Run] = field(repr=False)

    @property
    def policies(self) -> list[str]:
        """Policies as they were written, in the order asked for."""
        return list(dict.fromkeys(self.runs["policy"]))

    @property
    def has_target(self) -> bool:
        """Whether the scenario declares a target, so that there is a time to it."""
        return self.scenario.progress_target is not None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What some run of a policy warns of."""
        worst = self.runs.groupby("policy", sort=False)["beyond_trace"].max()
        beyond = [
            f"{policy}: {beyond_warning(share)}"
            for policy, share in worst.items()
            if share > BEYOND_WARNING
        ]
        unknown = self.runs[["policy", "progress_unknown"]].dropna().drop_duplicates("policy")
        return (
            *beyond,
            *(f"{p}: {unknown_warning(why)}" for p, why in unknown.itertuples(index=False)),
        )

    def column(self, policy: str, name: str, variant: str = "contended") -> Any:
        """One column of one policy over seeds, as an array in the order of the scenario's seeds."""
        import pandas as pd

        table = pd.concat([self.runs, self.controls]) if len(self.controls) else self.runs
        rows = table[(table["policy"] == policy) & (table["variant"] == variant)]
        return rows.sort_values("seed")[name].to_numpy(dtype=np.float64)

    def architecture(self, policy: str) -> str:
        """Through what the updates of a policy came, under any of the seeds."""
        found = self.runs.loc[self.runs["policy"] == policy, "architecture"]
        return " + ".join(dict.fromkeys(word for text in found for word in text.split(" + ")))

    @property
    def ranking(self) -> pd.DataFrame:
        """One row per policy, fastest first: by time to target if there is one, else by makespan.

        Estimates have columns `x`, `x_low`, `x_high`, the ends of a 95 % interval.
        """
        import pandas as pd

        times = ["makespan", *(["time_to_target"] if self.has_target else [])]
        rows = []
        for policy in self.policies:
            row: dict[str, Any] = {
                "policy": policy,
                "architecture": self.architecture(policy),
            }
            for name in times:
                own, bsp = self.column(policy, name), self.column(BASELINE, name)
                clean = self.column(BASELINE, name, "clean")
                estimates = {
                    name: metrics.mean(own),
                    f"{name}_difference": metrics.difference(own, bsp),
                    f"{name}_speedup": metrics.speedup(own, bsp),
                    f"{name}_mitigation": self._mitigation(own, bsp, clean),
                }
                for key, estimate in estimates.items():
                    row |= {
                        key: estimate.value,
                        f"{key}_low": estimate.low,
                        f"{key}_high": estimate.high,
                    }
            for name in OF_RUN:
                if name in self.runs:
                    values = self.column(policy, name)
                    known = values[~np.isnan(values)]
                    row[name] = float(known.mean()) if len(known) else float("nan")
            rows.append(row)
        return pd.DataFrame(rows).sort_values(times[-1], kind="stable").reset_index(drop=True)

    def _mitigation(self, own: Any, bsp: Any, clean: Any) -> metrics.Estimate:
        """Undefined where recorded durations are replayed: there is no clean run of those."""
        trace = self.scenario.inputs.trace
        if trace is not None and trace.replays:
            return metrics.Estimate(math.nan, math.nan, math.nan)
        return metrics.mitigation(own, bsp, clean)

    def write(self, folder: str | Path, command: str | None = None) -> Path:
        """Write tables, inputs, example runs and the report to a folder, whole or not at all.

        command: what the report says was typed; by default how to make it again from the folder.
        """
        from simstrag.analysis.report import render

        def fill(target: Path) -> None:
            self.scenario.write(target)
            for name in TABLES:
                table = self.runs if name == "comparison" else getattr(self, name)
                table.to_csv(target / f"{name}.csv", index=False)
            self.ranking.to_csv(target / "ranking.csv", index=False)
            for name, run in self.examples.items():
                run.write(target / "examples" / _file_name(name))
            names = {name: _file_name(name) for name in self.examples}
            (target / "examples.json").write_text(json.dumps(names, indent=2), encoding="utf-8")
            (target / "report.html").write_text(render(self, command), encoding="utf-8")

        return write_directory(Path(folder), "comparison.csv", fill)

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """From a folder that `write` wrote. Raises `InputError` where it is none."""
        import pandas as pd

        folder = Path(folder)
        try:
            names = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
            tables = {name: pd.read_csv(folder / f"{name}.csv") for name in TABLES}
        except (OSError, ValueError) as error:
            raise InputError(f"{folder}: not a comparison: {error}") from None
        return cls(
            Scenario.read(folder / "scenario.yaml"), tables["comparison"], tables["controls"],
            tables["sensitivity"], tables["curves"],
            {name: Run.read(folder / "examples" / file) for name, file in names.items()},
        )  # fmt: skip

    def _repr_html_(self) -> str:
        from simstrag.analysis.tables import ranking_html

        return str(ranking_html(self))


def compare(
    scenario: Scenario | str | Path,
    policies: Sequence[str] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    keep: str | Path | None = None,
) -> Comparison:
    """Run every policy under every seed, and the clean control, and compare them.

    scenario: a `Scenario` or the path of a YAML file.  policies, seeds: instead of the scenario's.
    jobs: processes, all cores by default.  on_progress: called as (done, total, what).
    keep: a folder for runs as they finish; those of the same comparison that are there already are
    not done again. Where Ctrl-C ends it, the `KeyboardInterrupt` says how many are there.
    Raises `InputError` where the scenario cannot be compared: `updates:` is no equal work.

    >>> scenario = Scenario(workers=4, samples=4 * 128 * 20, step={"compute": 0.1})
    >>> list(compare(scenario, ["bsp", "asgd"], jobs=1).runs["policy"])
    ['bsp', 'asgd']
    """
    scenario = prepared(scenario, policies, seeds)
    work = _Work(scenario, jobs, on_progress, None if keep is None else Finished.of(keep, scenario))
    try:
        return _compared(scenario, work)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*work.left()) from None
    finally:
        work.end()


def _compared(scenario: Scenario, work: _Work) -> Comparison:
    import pandas as pd

    names = list(scenario.policies)
    first = scenario.seed_list[0]
    asked = dict.fromkeys([*names, BASELINE])
    tasks = [Task("contended", p, s, s == first) for p in asked for s in scenario.seed_list]
    tasks += [Task("clean", BASELINE, s, s == first) for s in scenario.seed_list]
    rows, curves, examples = [], [], {}
    for task, outcome in work.outcomes(tasks):
        rows.append({"variant": task.variant, **outcome.row})
        curves += outcome.curve
        if outcome.run is not None:
            examples["clean" if task.variant == "clean" else task.policy] = outcome.run
    table = pd.DataFrame(rows)
    is_run = (table["variant"] == "contended") & table["policy"].isin(names)
    runs = table[is_run].reset_index(drop=True)
    return Comparison(
        scenario,
        runs,
        table[~is_run].reset_index(drop=True),
        _sensitivity(scenario, runs, work),
        pd.DataFrame(curves, columns=["variant", "policy", "seed", "progress", "time"]),
        {name: examples[name] for name in (*asked, "clean")},
    )


class _Work:
    """The runs of one comparison: done, found finished, counted and reported."""

    def __init__(
        self,
        scenario: Scenario,
        jobs: int | None,
        report: Callable[[int, int, str], None] | None,
        finished: Finished | None,
    ) -> None:
        self._scenario = scenario
        self._jobs = jobs or os.cpu_count() or 1
        self._report = report
        self._finished = finished
        self._tasks: list[Task] = []
        self._done = 0

    def outcomes(self, tasks: list[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Outcomes in the order of the tasks, whatever the order they were computed in."""
        self._tasks += tasks
        found = self._found(tasks)
        if found:
            self._step(len(found), "found finished")
        computed = self._computed([task for task in tasks if task not in found])
        for task in tasks:
            if task in found:
                yield task, found[task]
                continue
            outcome = next(computed)
            self._step(1, f"{task.policy}, seed {task.seed}")
            yield task, outcome

    def _found(self, tasks: list[Task]) -> dict[Task, Outcome]:
        if self._finished is None:
            return {}
        kept = ((task, self._finished.read(task)) for task in tasks)
        return {task: outcome for task, outcome in kept if outcome is not None}

    def _computed(self, tasks: list[Task]) -> Iterator[Outcome]:
        import joblib

        jobs = max(min(self._jobs, len(tasks)), 1)
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)
        one = joblib.delayed(_outcome)
        return iter(parallel(one(self._scenario, task, self._finished) for task in tasks))

    def end(self) -> None:
        processes_end(self._jobs)

    def _step(self, runs: int, what: str) -> None:
        self._done += runs
        if self._report is not None:
            self._report(self._done, len(self._tasks), what)

    def left(self) -> list[str]:
        """What Ctrl-C leaves, in words; nothing where no run is kept."""
        count = 0 if self._finished is None else self._finished.count(self._tasks)
        if self._finished is None or not count:
            return []
        return [
            f"{count} of {len(self._tasks)} runs are finished and kept in {self._finished.folder}"
        ]


def processes_end(jobs: int) -> None:
    """Let the processes go: kept ones would go on with the policies they once imported."""
    from joblib.externals.loky import get_reusable_executor

    if jobs > 1:
        get_reusable_executor().shutdown()


def prepared(
    scenario: Scenario | str | Path, names: Sequence[str] | None, seeds: int | Sequence[int] | None
) -> Scenario:
    """The scenario with each policy once, as it was written, checked before anything runs."""
    if not isinstance(scenario, Scenario):
        scenario = Scenario.read(scenario)
    if scenario.updates is not None:
        raise InputError(
            "compare needs equal work, and an update is N gradients for bsp but one for asgd: "
            "instead of updates give samples, target_progress or target_accuracy"
        )
    changes: dict[str, Any] = {} if seeds is None else {"seeds": seeds}
    by_meaning = {policies.spec(policies.load(name)): name for name in names or scenario.policies}
    changes["policies"] = tuple(by_meaning.values())
    scenario = scenario.replaced(**changes)
    for name in scenario.policies:
        check(scenario, name, scenario.seed_list[0])  # reads and checks trace and profile too
    return scenario


def _outcome(scenario: Scenario, task: Task, finished: Finished | None) -> Outcome:
    if task.variant == "clean":
        scenario = scenario.replaced(trace=None)
    elif isinstance(task.variant, float):
        learner = scenario.learner.model_copy(update={"c_tau": task.variant})
        scenario = scenario.replaced(learner=learner)
    run = simulate(scenario, task.policy, task.seed, record_steps=task.keep_steps)
    scalars = {k: v for k, v in plain(run.summary).items() if not isinstance(v, list)}
    row = {"policy": run.policy, "seed": task.seed, **scalars}
    row["staleness_by_rank"] = " ".join(
        "" if value is None else f"{value:.6g}" for value in run.summary["staleness_by_rank"]
    )
    curve = [] if isinstance(task.variant, float) else _curve(run, str(task.variant))
    outcome = Outcome(row, curve, run if task.keep_steps else None)
    if finished is not None:
        finished.keep(task, outcome)
    return outcome


def _curve(run: Run, variant: str) -> list[tuple[str, str, int, float, float]]:
    """When the run passed evenly spaced levels of progress; nothing where that is unknown."""
    if run.summary["progress"] is None:
        return []
    progress = np.array([0.0, *run.updates["progress"]])
    time = np.array([0.0, *run.updates["time"]])
    levels = np.linspace(0.0, progress[-1], LEVELS)
    times = np.interp(levels, progress, time)
    return [
        (variant, run.policy, run.seed, float(p), float(t))
        for p, t in zip(levels, times, strict=True)
    ]


def _sensitivity(scenario: Scenario, runs: pd.DataFrame, work: _Work) -> pd.DataFrame:
    """Time to target under other costs of staleness, from real re-runs.

    A run without stale gradients makes the same progress whatever they cost, and is not repeated.
    """
    import pandas as pd

    columns = ["policy", "seed", "c_tau", "time_to_target"]
    if scenario.progress_target is None:
        return pd.DataFrame(columns=columns)
    stale = runs["effective_staleness"] > 0
    tasks: list[Task] = []
    rows: list[tuple[str, int, float, float]] = []
    for c_tau in C_TAUS:
        known = ~stale | (c_tau == scenario.learner.c_tau)
        for policy, seed, time in runs[known][["policy", "seed", "time_to_target"]].itertuples(
            index=False
        ):
            rows.append((policy, seed, c_tau, time))
        for policy, seed in runs[~known][["policy", "seed"]].itertuples(index=False):
            tasks.append(Task(c_tau, policy, int(seed), False))
    for task, outcome in work.outcomes(tasks):
        time = outcome.row["time_to_target"]
        rows.append((task.policy, task.seed, float(task.variant), time))
    return pd.DataFrame(rows, columns=columns)


def _file_name(policy: str) -> str:
    return "".join(c if c.isalnum() or c in "._-=" else "_" for c in policy)
