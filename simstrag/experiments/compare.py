"""Compares policies under one scenario: each has the same seeds, noise and contention."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simstrag.errors import InputError
from simstrag.experiments.comparison import TABLES, Comparison, costs_of_staleness
from simstrag.experiments.runner import BASELINE, RunCache, Runner, RunResult, RunTask, prepare
from simstrag.experiments.sensitivity import HALVINGS, Trials, choose_seeds, thresholds, variant
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import assumed, uncertain

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compare"]

SEARCH_SEEDS = 5
"""Seeds of the search for thresholds, which then costs about as much as the comparison."""
COARSE = 2
"""Halvings of the search that every comparison does: its ends decide, not the exact threshold."""


def compare(
    scenario: Scenario | str | Path,
    policies: str | Sequence[str] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    sensitivity: bool | None = None,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    keep: str | Path | None = None,
) -> Comparison:
    """Run every policy under every seed, and the clean control, and compare them.

    scenario: a `Scenario` or the path of a YAML file.
    policies, seeds: they replace the scenario's; a plain string is one policy.
    sensitivity: by default every constant that decides the answer, `varied_constants.assumed`, is
        also simulated at its extremes, under the five seeds of `sensitivity.choose_seeds`, which
        meet the contention that all seeds meet.  True: every assumed or fitted constant, and more
        exactly the value at which another policy leads.  False: none, which is also the default of
        a real learner, as every value is a training of its own.
    jobs: processes, all cores by default.
    on_progress: called as (done, total, what).
    keep: a folder for runs as they finish; finished runs of the same comparison there are not
        repeated.  On Ctrl-C, the `KeyboardInterrupt` says how many are there.
    Raises `InputError` for a scenario that ends after a number of `updates:`, because one update is
    N gradients under bsp but one under asgd.  Warns of a policy in two spellings and compares it
    once, under the first.

    >>> scenario = Scenario(workers=4, samples=4 * 128 * 20, step={"compute": 0.1})
    >>> list(compare(scenario, ["bsp", "asgd"], jobs=1).runs["policy"])
    ['bsp', 'asgd']
    """
    scenario = prepare(scenario, policies, seeds)
    cache = None if keep is None else RunCache.of(keep, scenario)
    search, comparison = _search(scenario, sensitivity), None
    with Runner(scenario, jobs, on_progress, cache) as runner:
        try:
            comparison = _compare(scenario, runner, 0 if search is None else search.runs(scenario))
            return comparison if search is None else _with_thresholds(comparison, runner, search)
        except KeyboardInterrupt:
            complete = "" if comparison is None else ", all of the comparison itself among them"
            kept = (f"{text}{complete}" for text in runner.describe_kept())
            raise KeyboardInterrupt(*kept) from None


class _Search(NamedTuple):
    """A search for thresholds: its constants, the number of its seeds, the steps of bisection."""

    constants: list[str]
    seeds: int
    halvings: int

    def runs(self, scenario: Scenario) -> int:
        """About how many runs it takes: all policies at both ends of each constant."""
        return 2 * len(self.constants) * len(scenario.policies) * self.seeds


def count_runs(
    scenario: Scenario, names: Sequence[str], seeds: int | None, sensitivity: bool | None
) -> int:
    """About how many runs of each policy a comparison takes, those of the search included."""
    case = scenario.replaced(policies=list(names), **({} if seeds is None else {"seeds": seeds}))
    search, own = _search(case, sensitivity), len(case.seed_list)
    return own if search is None else own + search.runs(case) // len(names)


def _search(scenario: Scenario, sensitivity: bool | None) -> _Search | None:
    """The search that is asked for; None for none."""
    if scenario.learner.is_real and not sensitivity:
        return None  # every value is a training of its own
    constants = uncertain(scenario) if sensitivity else assumed(scenario)
    constants = constants if len(scenario.policies) > 1 else []
    if not (sensitivity or (sensitivity is None and constants)):
        return None
    seeds = min(len(scenario.seed_list), SEARCH_SEEDS)
    return _Search(constants, seeds, HALVINGS if sensitivity else COARSE)


def _compare(scenario: Scenario, runner: Runner, ahead: int) -> Comparison:
    """The comparison without thresholds; ahead: runs to come."""
    names = list(scenario.policies)
    seeds = scenario.seed_list
    first = seeds[0]
    asked = dict.fromkeys([*names, BASELINE])
    again: tuple[float, ...] = ()
    if scenario.progress_target is not None:
        costs = costs_of_staleness(scenario)
        again = tuple(c_tau for c_tau in costs if c_tau != scenario.learner.c_tau)
    tasks = [RunTask("contended", p, s, s == first, again) for p in asked for s in seeds]
    tasks += [RunTask("clean", BASELINE, s, s == first) for s in seeds]
    rows, curves, waiting, evaluations, examples = [], [], [], [], {}
    times: dict[tuple[str, int, float], float] = {}
    # Seed by seed, so that the runs finished so far say how long the others take; bsp first, so
    # that a target which it misses is said soon.
    ordered = sorted(tasks, key=lambda task: (seeds.index(task.seed), task.policy != BASELINE))
    finished = {}
    for task, result in runner.results(ordered, ahead):
        finished[task] = result
        if task.policy == BASELINE:
            _check_target(scenario, task, result)
    for task in tasks:
        result = finished[task]
        rows.append({"variant": task.variant, **result.row})
        curves += result.curve
        evaluations += result.evaluations
        waiting += [(task.variant, task.seed, *wait) for wait in enumerate(result.waits)]
        times |= {(task.policy, task.seed, c_tau): seconds for c_tau, seconds in result.times}
        if result.run is not None:
            examples["clean" if task.variant == "clean" else task.policy] = result.run
    import pandas as pd  # here, so that the first run does not wait for it

    table = pd.DataFrame(rows)
    is_run = (table["variant"] == "contended") & table["policy"].isin(names)
    runs = table[is_run].reset_index(drop=True)
    return Comparison(
        scenario,
        runs,
        table[~is_run].reset_index(drop=True),
        _sensitivity(scenario, runs, times),
        pd.DataFrame(curves, columns=list(TABLES["curves"])),
        pd.DataFrame(waiting, columns=list(TABLES["waiting"])),
        pd.DataFrame(evaluations, columns=list(TABLES["evaluations"])),
        {name: examples[name] for name in (*asked, "clean")},
    )


def _check_target(scenario: Scenario, task: RunTask, result: RunResult) -> None:
    """Raise `InputError` where bsp, to which all are compared, missed the target accuracy."""
    row = result.row
    if not (scenario.learner.is_real and scenario.has_target) or row["time_to_target"] is not None:
        return
    if row["diverged"] is not None:
        after = f"its training diverged after {row['diverged']:.4g} s"
    else:
        after = f"its accuracy after samples: {scenario.samples} was {row['accuracy']:.3g}"
    contention = "bsp without contention" if task.variant == "clean" else "bsp"
    raise InputError(
        f"{contention} missed target_accuracy {scenario.target_accuracy:g} under seed {task.seed}; "
        f"{after}: raise samples, lower the target, or tune learner.optimizer"
    )


def _sensitivity(
    scenario: Scenario, runs: pd.DataFrame, times: Mapping[tuple[str, int, float], float]
) -> pd.DataFrame:
    """Time to target under other costs of staleness; times: seconds of the repeated runs.

    A run without stale gradients makes the same progress whatever they cost, and was not repeated.
    """
    import pandas as pd

    columns = ["policy", "seed", "c_tau", "time_to_target"]
    if scenario.progress_target is None:
        return pd.DataFrame(columns=columns)
    known = runs[columns[:2] + columns[3:]].itertuples(index=False)
    rows = [
        (policy, seed, c_tau, times.get((policy, seed, c_tau), time))
        for c_tau, (policy, seed, time) in itertools.product(costs_of_staleness(scenario), known)
    ]
    return pd.DataFrame(rows, columns=columns)


def _with_thresholds(comparison: Comparison, runner: Runner, search: _Search) -> Comparison:
    """The comparison with its thresholds; the runs that it has already are not repeated."""
    scenario, runs = comparison.scenario, comparison.runs.to_dict("records")
    by_run: dict[tuple[str, int], Any] = {(row["policy"], row["seed"]): row for row in runs}
    known = {
        RunTask(variant("learner.c_tau", c_tau), policy, seed, False): time
        for policy, seed, c_tau, time in comparison.sensitivity.itertuples(index=False)
    }
    seeds = choose_seeds(comparison.delays, search.seeds)
    trials = Trials(scenario, runner, by_run, seeds, known)
    found = thresholds(trials, search.constants, search.halvings)
    return replace(comparison, thresholds=found.table, extremes=found.extremes)
