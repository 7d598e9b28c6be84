"""Which policy to run a job under: a search over policies and parameters, then a comparison."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from simstrag.advice.advice import Advice
from simstrag.advice.advice_text import sentences
from simstrag.advice.candidates import candidates
from simstrag.advice.halving import CandidateResult, Search
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.runner import RunCache, Runner, prepare
from simstrag.policy import LANES
from simstrag.scenario.scenario import Scenario


def advise(
    scenario: Scenario | str | Path,
    policies: Sequence[str] | None = None,
    *,
    change: str = LANES[-1],
    seeds: int | Sequence[int] | None = None,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    keep: str | Path | None = None,
) -> Advice:
    """Search the policy for a scenario.

    scenario: a `Scenario` or the path of a YAML file; its own policies do not count.
    policies: the candidates; by default those of `candidates.grid`.
    change: how much training may change, the last lane that is tried: A, B or C.
    seeds: instead of the scenario's.
    jobs, on_progress, keep: as of `compare`; finished runs of the search are kept, too.

    Raises `InputError` as `compare` does.

    >>> scenario = Scenario(
    ...     workers=4, target_progress=40, step={"compute": 0.1}, seeds=1,
    ...     trace=[{"time": 0, "node": 0, "resource": "step", "kind": "slowdown", "value": 2.0}],
    ... )
    >>> advise(scenario, ["drain", "lb_bsp"], jobs=1).choice
    'lb_bsp'
    """
    first = prepare(scenario, [BASELINE], seeds)
    found = candidates(first, policies, change)
    case = first.replaced(policies=found.specs)
    with tempfile.TemporaryDirectory() as folder:
        cache = RunCache.of(folder if keep is None else keep, case)
        with Runner(case, jobs, on_progress, cache) as runner:
            search = Search(case, runner)
            finalists = search.run(found.specs)
        comparison = compare(case, finalists, jobs=jobs, on_progress=on_progress, keep=cache.folder)
    ordered = sorted(search.trials.values(), key=_place)
    advice = Advice(comparison, comparison.answer, tuple(ordered), found.excluded)
    return replace(advice, sentences=tuple(sentences(advice)))


def _place(trial: CandidateResult) -> tuple[bool, bool, float]:
    """Finalists first, then by regret; what cannot be compared is last."""
    unknown = math.isnan(trial.regret)
    return bool(trial.left_out), unknown, 0.0 if unknown else trial.regret
