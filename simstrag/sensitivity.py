"""Which constant turns a ranking over, and at what value: found by running anew, never rescaled.

One constant at a time is made smaller and larger, all else and the luck being equal.  Where another
policy has the best mean, the value at which it takes over is enclosed by halving on a logarithmic
scale, with the two policies concerned.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag import metrics
from simstrag.comparison import prepared, processes_end
from simstrag.engine import simulate
from simstrag.errors import InputError
from simstrag.names import nearest
from simstrag.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FACTORS", "QUANTITIES", "sensitivity"]

Floats = npt.NDArray[np.float64]
FACTORS = (1 / 4, 1 / 2, 2, 4)
"""What a constant is multiplied by at first."""
HALVINGS = 4
"""How often the stretch in which the lead changes is halved, in logarithms."""

QUANTITIES = {
    "learner.c_tau": "",
    "learner.noise_scale": "samples",
    "server.service": "s",
    "server.push": "s",
    "server.pull": "s",
    "allreduce.alpha": "s",
    "allreduce.bytes": "bytes",
    "step.cv": "",
}
"""The constants that can be varied, as keys of a scenario, and their units."""


class Turn(NamedTuple):
    """Where the lead changes between two values; `rival` is empty where it does not."""

    rival: str
    holds_at: float
    turns_at: float
    shown: bool


def sensitivity(
    scenario: Scenario | str | Path,
    policies: Sequence[str] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    quantities: Sequence[str] | None = None,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """How far each constant may be off before another policy has the best mean time.

    policies, seeds: instead of the scenario's.  quantities: keys of `QUANTITIES`; by default all
    that are not 0 here.  The time is that to the target if one is declared, else the makespan.
    Returns two rows per quantity, one for smaller and one for larger values: quantity, value (in
    force), unit, direction, tried (the outermost value), leader, rival (empty where the leader
    stays it in all that was tried), holds_at and turns_at (the values between which the rival
    takes over), shown (whether the rival's lead at its first appearance is beyond a 95 % interval).
    Raises `InputError` for what cannot be varied.

    >>> scenario = Scenario(
    ...     workers=4, target_progress=5, step={"compute": 0.1}, server={"service": 0.02},
    ...     trace=[{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}],
    ... )
    >>> table = sensitivity(scenario, ["bsp", "asgd"], quantities=["server.service"], jobs=1)
    >>> table[["direction", "leader", "rival"]]
      direction leader rival
    0   smaller   asgd
    1    larger   asgd   bsp
    """
    import pandas as pd

    scenario = prepared(scenario, policies, seeds)
    chosen = _chosen(scenario, quantities)
    trials = _Trials(scenario, jobs or os.cpu_count() or 1, on_progress, len(chosen))
    try:
        rows = [row for name in chosen for row in _rows(trials, name)]
    finally:
        processes_end(trials.jobs)
    return pd.DataFrame(rows)


def _chosen(scenario: Scenario, names: Sequence[str] | None) -> list[str]:
    for name in names or ():
        if name not in QUANTITIES:
            known = ", ".join(QUANTITIES)
            raise InputError(
                f"'{name}' cannot be varied; known: {known}{nearest(name, QUANTITIES)}"
            )
        if not _value(scenario, name):
            raise InputError(f"{name} is 0 or not stated here: there is nothing to multiply")
    return list(names) if names else [name for name in QUANTITIES if _value(scenario, name)]


@dataclass(slots=True)
class _Trials:
    """Times of all policies under all seeds, for one value of one constant at a time."""

    scenario: Scenario
    jobs: int
    report: Callable[[int, int, str], None] | None
    quantities: int
    done: int = field(default=0, init=False)
    base: dict[str, Floats] = field(init=False)

    def __post_init__(self) -> None:
        self.base = self._times(self.scenario, self.scenario.policies, "as it is")

    def times(self, name: str, value: float, policies: Sequence[str]) -> dict[str, Floats]:
        """Seconds over seeds of each policy."""
        return self._times(_with(self.scenario, name, value), policies, f"{name} = {value:.4g}")

    def _times(self, scenario: Scenario, policies: Sequence[str], what: str) -> dict[str, Floats]:
        import joblib

        seeds = scenario.seed_list
        parallel = joblib.Parallel(n_jobs=min(self.jobs, len(policies) * len(seeds)))
        one = joblib.delayed(_time)
        found = parallel(one(scenario, policy, seed) for policy in policies for seed in seeds)
        self.done += 1
        if self.report is not None:
            most = 1 + self.quantities * (len(FACTORS) + 2 * HALVINGS)
            self.report(self.done, most, what)
        table = np.array(found, dtype=np.float64).reshape(len(policies), len(seeds))
        return dict(zip(policies, table, strict=True))


def _rows(trials: _Trials, name: str) -> list[dict[str, Any]]:
    value = _value(trials.scenario, name)
    leader = _leader(trials.base)
    common = {"quantity": name, "value": value, "unit": QUANTITIES[name], "leader": leader}
    rows = []
    for direction, factors in (
        ("smaller", sorted((f for f in FACTORS if f < 1), reverse=True)),
        ("larger", sorted(f for f in FACTORS if f > 1)),
    ):
        turn = _turn(trials, name, [value, *(value * factor for factor in factors)], leader)
        tried = {"direction": direction, "tried": value * factors[-1]}
        rows.append(common | tried | turn._asdict())
    return rows


def _turn(trials: _Trials, name: str, values: list[float], leader: str) -> Turn:
    """Where, going outwards, somebody else takes the lead."""
    everybody = trials.scenario.policies
    for inner, outer in itertools.pairwise(values):
        times = trials.times(name, outer, everybody)
        rival = _leader(times)
        if rival != leader:
            lead = metrics.difference(times[rival], times[leader])
            enclosed = _enclosed(trials, name, (leader, rival), inner, outer)
            return Turn(rival, *enclosed, lead.high < 0)
    return Turn("", math.nan, math.nan, False)


def _enclosed(
    trials: _Trials, name: str, pair: tuple[str, str], holds_at: float, turns_at: float
) -> tuple[float, float]:
    """The last value at which the first of two still leads, and the first at which it does not."""
    for _ in range(HALVINGS):
        middle = math.sqrt(holds_at * turns_at)
        if _leader(trials.times(name, middle, pair)) == pair[0]:
            holds_at = middle
        else:
            turns_at = middle
    return holds_at, turns_at


def _leader(times: dict[str, Floats]) -> str:
    """The best mean; of equal ones the first."""
    return min(times, key=lambda policy: float(times[policy].mean()))


def _time(scenario: Scenario, policy: str, seed: int) -> float:
    summary = simulate(scenario, policy, seed).summary
    target = scenario.progress_target is not None
    return float(summary["time_to_target" if target else "makespan"])


def _value(scenario: Scenario, name: str) -> float:
    """The constant in force; 0 where the scenario does not state it and no profile's stands in."""
    section, _, key = name.partition(".")
    if section == "learner":
        return float(getattr(scenario.learner, key))
    if section == "step":
        return 0.0 if scenario.step is None else float(getattr(scenario.step, key))
    return float(getattr(getattr(scenario.inputs, section), key))


def _with(scenario: Scenario, name: str, value: float) -> Scenario:
    """The scenario with one constant changed; what its profile says stays for all others."""
    section, _, key = name.partition(".")
    stated = getattr(scenario, section)
    keys = {} if stated is None else stated.model_dump(exclude_unset=True)
    return scenario.replaced(**{section: keys | {key: value}})
