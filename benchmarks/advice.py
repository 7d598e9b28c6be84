"""The regret of advice: how far it falls behind an exhaustive search on moments not looked at.

    python -m benchmarks.advice [--public FOLDER] [--write]

Traces and scenarios are those of `benchmarks.regret`.  `advise` searches under the scenario's own
seeds; then every candidate runs under ten others, which begin at other moments and have other
noise.  `--write` replaces the table of docs/measured/advice.txt.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.regret import FOLDER, HELD_OUT, each_trace
from benchmarks.results import report
from benchmarks.tables import Table
from simstrag.advice.advise import advise
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.runner import Runner, RunTask
from simstrag.scenario.scenario import Scenario


class Outcome(NamedTuple):
    """Advice on one trace, judged.

    candidates: how many an exhaustive search runs; runs: how many the advice took.
    best: of the exhaustive search.
    gap: how far bsp is behind the best.
    regret, safe_regret: of the choice, and of the safe choice.
    bound: the largest regret that the advice did not exclude.
    """

    name: str
    candidates: int
    runs: int
    choice: str
    safe: str
    best: str
    gap: float
    regret: float
    safe_regret: float
    bound: float


def judge(name: str, scenario: Scenario) -> Outcome:
    """The outcome of advice on one scenario."""
    advice = advise(scenario)
    specs = list(dict.fromkeys([t.policy for t in advice.trials]))
    case = scenario.replaced(policies=specs, seeds=HELD_OUT)
    tasks = [RunTask("contended", spec, seed, False) for spec in specs for seed in HELD_OUT]
    seconds: dict[str, list[float]] = {spec: [] for spec in specs}
    with Runner(case, None, None, None) as runner:
        for task, result in runner.results(tasks):
            seconds[task.policy].append(result.row["time_to_target"])
    means = {spec: float(np.mean(times)) for spec, times in seconds.items()}
    best = min(means, key=means.__getitem__)
    behind = {spec: mean / means[best] - 1 for spec, mean in means.items()}
    return Outcome(
        name, len(specs), sum(t.seeds for t in advice.trials), advice.choice, advice.safe, best,
        behind[BASELINE], behind[advice.choice], behind[advice.safe], advice.regret,
    )  # fmt: skip


def table(outcomes: Sequence[Outcome]) -> Table:
    """The table of docs/measured/advice.txt."""
    header = (
        "trace", "candidates", "choice", "best", "bsp behind the best", "regret of the choice",
        "regret not excluded", "safe choice", "its regret",
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = [
        (
            o.name, str(o.candidates), f"`{o.choice}`", f"`{o.best}`", f"{o.gap:.1%}",
            f"{o.regret:.1%}", f"{o.bound:.1%}", f"`{o.safe}`", f"{o.safe_regret:.1%}",
        )
        for o in outcomes
    ]  # fmt: skip
    for what, of in (("mean", np.mean), ("worst", max)):
        columns = ([o.gap for o in outcomes], [o.regret for o in outcomes])
        gap, regret = (f"{float(of(column)):.1%}" for column in columns)
        safe = f"{float(of([o.safe_regret for o in outcomes])):.1%}"
        rows.append((what, "", "", "", gap, regret, "", "", safe))
    return Table("Regret of advice by trace", header, rows)


def measure(public: Path | None) -> Iterator[Outcome]:
    """The outcome of every trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from each_trace(public, judge)


if __name__ == "__main__":
    report(__doc__, "advice", measure, table, public=FOLDER)
