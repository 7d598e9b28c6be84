"""Moments at which ranks straggle, and what each mode costs from there on.

The cost is seconds per progress over the next rounds, simulated by the engine from the very state
of the moment: the same run, under the same noise and trace, goes on in each mode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.contract import Plan, Quorum, Review, Via, View
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.policies.estimators.modes import Mode, modes
from simstrag.policies.estimators.time_to_progress import straggle
from simstrag.policies.star_h import StarH
from simstrag.policies.star_ml import features_of
from simstrag.scenario.scenario import Scenario

Floats = npt.NDArray[np.float64]
OnProgress = Callable[[int, int], None]

BEFORE = 16
"""Rounds of SSGD before the moment: a full window of times."""
AFTER = 20
"""Rounds from the moment on over which a mode is judged."""
SIZES = 9
"""Values of x that are tried in a large world, from 1 to N."""


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """A moment of one run.

    ranks: N.
    modes: that were tried, all together first.
    features: shape (modes, features), as `star_ml` sees them.
    costs: shape (modes,), seconds per progress.
    star_h: the number of the mode that star_h chooses.
    """

    ranks: int
    modes: tuple[Mode, ...]
    features: Floats
    costs: Floats
    star_h: int

    @property
    def regrets(self) -> Floats:
        """Cost of each mode over the least, minus 1."""
        answer: Floats = self.costs / self.costs.min() - 1
        return answer


def moments(
    scenarios: Iterable[Scenario], on_progress: OnProgress = lambda done, total: None
) -> list[Moment]:
    """A moment for each scenario and seed; none where no rank straggles at the moment.

    Each seed begins elsewhere in the scenario's trace.  Raises `InputError` where none straggles.
    """
    pairs = [(scenario, seed) for scenario in scenarios for seed in scenario.seed_list]
    found = []
    for done, (scenario, seed) in enumerate(pairs):
        if (moment := _moment(scenario, seed)) is not None:
            found.append(moment)
        on_progress(done + 1, len(pairs))
    if not found:
        raise InputError("no rank straggles in any seed of these scenarios: nothing to learn from")
    return found


def digest(found: Sequence[Moment]) -> str:
    """The SHA-256 of features and costs."""
    joined = b"".join(each.features.tobytes() + each.costs.tobytes() for each in found)
    return hashlib.sha256(joined).hexdigest()


@dataclass(eq=False)
class _Going:
    """All together for some rounds, then one mode; notes what star_ml and star_h would know.

    mode: None stands for all together.
    """

    mode: Mode | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> _Going:
        return self  # an engine copies its policy, and `seen` is read afterwards

    def plan(self, view: View) -> Plan:
        """The plan; it looks at the view of the moment once."""
        if view.version < BEFORE:
            return Plan((Quorum(via=Via.SERVER),), review=Review(updates=1))
        if self.mode is not None:
            return Plan(self.mode.quorums(view.world_size))
        if not self.seen:
            self._look(view)
        return Plan((Quorum(via=Via.SERVER),))

    def _look(self, view: View) -> None:
        heuristic = StarH()
        t = heuristic.predicted(view)
        self.seen["straggles"] = bool(straggle(t, heuristic.ratio).any())
        if self.seen["straggles"]:
            phi = view.noise_scale
            assert phi is not None, "a simulation knows it"
            chosen = heuristic._choose_mode(t, phi, view)[1]
            self.seen |= {
                "modes": modes(t), "features": features_of(t, phi, view),
                "star_h": [mode.quorums(len(t)) for mode in modes(t)].index(chosen),
            }  # fmt: skip


def _moment(scenario: Scenario, seed: int) -> Moment | None:
    n, batch = scenario.workers, scenario.learner.batch
    shifted = {} if scenario.trace is None else {"trace_end": "loop", "trace_per_seed": "shift"}
    scenario = scenario.replaced(
        samples=(BEFORE + AFTER) * n * batch, updates=None, target_progress=None, **shifted
    )
    first = _Going()
    together = _cost(scenario, seed, first)
    seen = first.seen
    if not seen.get("straggles"):
        return None
    tried = {n - int(x) for x in np.linspace(1, n, SIZES)} | {0, seen["star_h"]}
    kept = [k for k, mode in enumerate(seen["modes"]) if mode.groups or k in tried]
    chosen = [seen["modes"][k] for k in kept]
    costs = [together, *(_cost(scenario, seed, _Going(mode)) for mode in chosen[1:])]
    return Moment(
        n, tuple(chosen), seen["features"][kept], np.array(costs), kept.index(seen["star_h"])
    )


def _cost(scenario: Scenario, seed: int, policy: _Going) -> float:
    """Seconds per progress after the moment."""
    updates = simulate(scenario, policy, seed).updates
    assert updates is not None
    version, time, progress = (
        np.asarray(updates[name]) for name in ("version", "time", "progress")
    )
    at = int(np.flatnonzero(version == BEFORE)[0])
    return float((time[-1] - time[at]) / (progress[-1] - progress[at]))
