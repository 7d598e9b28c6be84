"""The runs behind a comparison: done in parallel, kept as they finish, counted and reported."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simstrag import policies
from simstrag.engine.excerpt import ranks_to_show
from simstrag.engine.simulate import check, simulate
from simstrag.errors import InputError
from simstrag.experiments.cache import Finished, Outcome, Task
from simstrag.processes.pool import cores, shut_down, spread
from simstrag.runs.run import Run, plain
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.uncertain_constants import with_value

__all__ = ["LEVELS", "Work", "prepared"]

LEVELS = 101
"""Points of a progress curve."""


class Work:
    """The runs of one comparison: done, found finished, counted and reported."""

    def __init__(
        self,
        scenario: Scenario,
        jobs: int | None,
        report: Callable[[int, int, str], None] | None,
        finished: Finished | None,
    ) -> None:
        self._scenario = scenario
        self._jobs = jobs or cores()
        self._report = report
        self._finished = finished
        self._tasks: list[Task] = []
        self._done = 0
        self._ahead = 0

    def outcomes(self, tasks: list[Task], ahead: int = 0) -> Iterator[tuple[Task, Outcome]]:
        """Outcomes in the order of the tasks, whatever the order they were computed in.

        ahead: how many more runs are known to follow these, for whoever reports the time left.
        """
        self._tasks += tasks
        self._ahead = ahead
        found = self._found(tasks)
        if found:
            self._step(len(found), "found finished")
        computed = self._computed([task for task in tasks if task not in found])
        for task in tasks:
            if task in found:
                yield task, found[task]
                continue
            outcome = next(computed)
            self._step(1, _said(task))
            yield task, outcome

    def _found(self, tasks: list[Task]) -> dict[Task, Outcome]:
        if self._finished is None:
            return {}
        kept = ((task, self._finished.read(task)) for task in tasks)
        return {task: outcome for task, outcome in kept if outcome is not None}

    def _computed(self, tasks: list[Task]) -> Iterator[Outcome]:
        import joblib

        one = joblib.delayed(_outcome)
        calls = (one(self._scenario, task, self._finished) for task in tasks)
        return spread(calls, max(min(self._jobs, len(tasks)), 1))

    def end(self) -> None:
        """Let the processes go."""
        shut_down(self._jobs)

    def _step(self, runs: int, what: str) -> None:
        self._done += runs
        if self._report is not None:
            self._report(self._done, len(self._tasks) + self._ahead, what)

    def left(self) -> list[str]:
        """What Ctrl-C leaves, in words; nothing where no run is kept."""
        count = 0 if self._finished is None else self._finished.count(self._tasks)
        if self._finished is None or not count:
            return []
        return [
            f"{count} of {len(self._tasks)} runs are finished and kept in {self._finished.folder}"
        ]


def _said(task: Task) -> str:
    name, _, value = str(task.variant).partition("=")
    where = f"{name} = {float(value):.4g}, " if value else ""
    return f"{where}{task.policy}, seed {task.seed}"


def prepared(
    scenario: Scenario | str | Path, names: Sequence[str] | None, seeds: int | Sequence[int] | None
) -> Scenario:
    """The scenario with each policy once, as it was first written, checked before anything runs.

    Warns of each other spelling of a policy.
    """
    if not isinstance(scenario, Scenario):
        scenario = Scenario.read(scenario)
    if scenario.updates is not None:
        raise InputError(
            "compare needs equal work, and an update is N gradients for bsp but one for asgd: "
            "instead of updates give samples, target_progress or target_accuracy"
        )
    changes: dict[str, Any] = {} if seeds is None else {"seeds": seeds}
    changes["policies"] = _once(names or scenario.policies)
    scenario = scenario.replaced(**changes)
    for name in scenario.policies:
        check(scenario, name, scenario.seed_list[0])  # reads and checks trace and profile too
    return scenario


def _once(names: Sequence[str]) -> tuple[str, ...]:
    """The first spelling of each policy."""
    by_meaning: dict[str, str] = {}
    for name in names:
        first = by_meaning.setdefault(policies.spec(policies.load(name)), name)
        if name != first:
            warnings.warn(f"{name} is {first}; compared once", UserWarning, stacklevel=4)
    return tuple(by_meaning.values())


def _outcome(scenario: Scenario, task: Task, finished: Finished | None) -> Outcome:
    asked = scenario
    if task.variant == "clean":
        scenario = scenario.without_contention()
    elif task.variant != "contended":
        name, _, value = str(task.variant).partition("=")
        scenario = with_value(scenario, name, float(value))
    ranks = _shown(asked, task.seed) if task.keep_steps else None
    run = simulate(scenario, task.policy, task.seed, record_updates=False, excerpt=ranks)
    scalars = {k: v for k, v in plain(run.summary).items() if not isinstance(v, list)}
    row = {"policy": run.policy, "seed": task.seed, **scalars}
    row["staleness_by_rank"] = " ".join(
        "" if value is None else f"{value:.6g}" for value in run.summary["staleness_by_rank"]
    )
    curve = [] if "=" in str(task.variant) else _curve(run, str(task.variant))
    times = _times_again(asked, task) if (run.summary["effective_staleness"] or 0) > 0 else []
    outcome = Outcome(row, curve, run if task.keep_steps else None, times)
    if finished is not None:
        finished.keep(task, outcome)
    return outcome


def _shown(scenario: Scenario, seed: int) -> list[int]:
    """Whose steps are kept of very many; the same in the clean control, to be looked at beside."""
    return ranks_to_show(scenario.timing(seed).contention, scenario.workers)


def _times_again(scenario: Scenario, task: Task) -> list[tuple[float, float]]:
    """Under other costs of staleness, from real re-runs."""
    found = []
    for c_tau in task.again:
        varied = with_value(scenario, "learner.c_tau", c_tau)
        found.append(
            (
                c_tau,
                simulate(varied, task.policy, task.seed, record_updates=False).summary[
                    "time_to_target"
                ],
            )
        )
    return found


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
