"""Which policy to run a job under: a search over policies and parameters, then a comparison."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from simstrag.advice.advice import Advice
from simstrag.advice.candidates import candidates
from simstrag.advice.halving import UNKNOWN, CandidateRun, Search, alters
from simstrag.contract.policy import LANES
from simstrag.engine.simulate import simulate
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import BASELINE, costs_of_staleness
from simstrag.experiments.criterion import Criterion
from simstrag.experiments.runner import RunCache, Runner, RunTask, prepare
from simstrag.scenario.beyond_measured import beyond_measured
from simstrag.scenario.scenario import Scenario

LAUNCHING_SEEDS = 3
"""Seeds of the runs that say what launching costs."""


def advise(
    scenario: Scenario | str | Path,
    policies: str | Sequence[str] | None = None,
    *,
    change: str = LANES[-1],
    seeds: int | Sequence[int] | None = None,
    quantile: float | None = None,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    keep: str | Path | None = None,
) -> Advice:
    """Search the policy for a scenario.

    scenario: a `Scenario` or the path of a YAML file; its own policies do not count.
    policies: the candidates; by default those of `candidates.grid`; a plain string is one.
    change: how much training may change, the last lane that is tried: A, B or C.
    seeds: instead of the scenario's.
    quantile: of the time of one run, by which to choose instead of the mean, such as 0.9.
    jobs, on_progress, keep: as of `compare`; finished runs of the search are kept, too.

    Raises `InputError` as `compare` does.

    >>> scenario = Scenario(
    ...     workers=4, target_progress=40, step={"compute": 0.1}, seeds=1,
    ...     trace=[{"time": 0, "node": 0, "resource": "step", "kind": "slowdown", "value": 2.0}],
    ... )
    >>> advise(scenario, ["drain", "lb_bsp"], jobs=1).choice
    'lb_bsp'
    """
    by = Criterion(quantile)
    first = prepare(scenario, [BASELINE], seeds)
    found = candidates(first, policies, change)
    case = first.replaced(policies=found.specs)
    with tempfile.TemporaryDirectory() as folder:
        cache = RunCache.of(folder if keep is None else keep, case)
        with Runner(case, jobs, on_progress, cache) as runner:
            costs = dict.fromkeys([case.learner.c_tau, *_costs(case)])
            rows: list[Mapping[str, Any]] = []
            compute = partial(_compute, case, runner, rows)
            search = Search(case.seed_list, tuple(costs), compute, by)
            finalists = search.run(found.specs)
        comparison = compare(case, finalists, jobs=jobs, on_progress=on_progress, keep=cache.folder)
    beyond = tuple(map(str, beyond_measured(case, rows)))
    return Advice.of(comparison, search.ordered, found.excluded, beyond, _unlaunched(case), by)


def _unlaunched(scenario: Scenario) -> tuple[float, ...]:
    """Seconds of bsp if launching took no time, of the first seeds; none for a serial step."""
    if not scenario.inputs.step.overlaps or scenario.learner.is_real:
        return ()
    case = scenario.without_launching()
    name = "time_to_target" if scenario.has_target else "makespan"
    seeds = scenario.seed_list[:LAUNCHING_SEEDS]
    runs = (simulate(case, BASELINE, seed, record_updates=False) for seed in seeds)
    return tuple(_or_inf(run.summary[name]) for run in runs)


def _costs(scenario: Scenario) -> tuple[float, ...]:
    return () if scenario.progress_target is None else costs_of_staleness(scenario)


def _compute(
    scenario: Scenario,
    runner: Runner,
    rows: list[Mapping[str, Any]],
    missing: Sequence[tuple[str, int]],
) -> Iterator[CandidateRun]:
    """Run policies under seeds, where gradients are stale at each cost of staleness.

    rows: receives the summaries.
    """
    own, time = scenario.learner.c_tau, "time_to_target" if scenario.has_target else "makespan"
    again = tuple(cost for cost in _costs(scenario) if cost != own)
    tasks = [RunTask("contended", policy, seed, False, again) for policy, seed in missing]
    for task, result in runner.results(tasks, ahead=len(tasks)):
        rows.append(row := result.row)
        known = scenario.has_target or scenario.learner.is_real
        seconds = dict.fromkeys((own, *again), _or_inf(row[time]))
        seconds |= {cost: _or_inf(repeated) for cost, repeated in result.times}
        yield CandidateRun(
            task.policy, task.seed, seconds, UNKNOWN if not known and alters(row) else ""
        )


def _or_inf(seconds: float | None) -> float:
    """Seconds; infinite for a target that was missed."""
    return math.inf if seconds is None else float(seconds)
