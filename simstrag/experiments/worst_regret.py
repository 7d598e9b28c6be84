"""The choice with the least worst regret over all settings of what is assumed.

The regret of a policy in a setting is its additional time over the best policy there, as a share of
the best's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from simstrag.experiments.runner import BASELINE

State = tuple[str, float]
"""A setting that was simulated: the key of a constant, and its value."""
Times = Mapping[State, Mapping[str, float]]
"""Mean seconds of the policies in each setting."""
OWN: State = ("", math.nan)
"""The scenario itself."""
MODEL_ERROR = 0.046
"""The least gain, as a share of the time of bsp, for which training is changed.

A makespan was simulated up to 4.6 % wrong where real ranks checked it, 1.5 % in the median
(docs/measured.md): a smaller gain may be error alone.  Worst regrets that differ by less count as
equal for the same reason; the lesser change of training is then the safer choice."""


@dataclass(frozen=True, slots=True)
class Regret:
    """The worst regret of a policy over all settings that were simulated.

    worst: additional time over the best policy of the setting, as a share of the best's.
    state: the setting.
    """

    worst: float
    state: State


def worst_regrets(states: Times) -> dict[str, Regret]:
    """The worst regret of each policy.

    >>> worst_regrets({OWN: {"bsp": 15.0, "asgd": 12.0}})["bsp"].worst
    0.25
    """
    found: dict[str, Regret] = {}
    for state, times in states.items():
        best = min(times.values())
        for name, seconds in times.items():
            regret = seconds / best - 1
            if name not in found or regret > found[name].worst:
                found[name] = Regret(regret, state)
    return found


def gaining(times: Mapping[str, float]) -> list[str]:
    """The policies that gain `MODEL_ERROR` or more over bsp in one setting."""
    return [name for name, t in times.items() if t <= (1 - MODEL_ERROR) * times[BASELINE]]


def choose(states: Times, candidates: Collection[str], lanes: Mapping[str, str]) -> str:
    """The candidate of the least worst regret; of those as good, the least change of training.

    lanes: of each policy but bsp, which changes nothing.
    """
    regrets = worst_regrets(states)
    least = min(regrets[name].worst for name in candidates)
    alike = [name for name in candidates if regrets[name].worst <= least + MODEL_ERROR]
    return min(
        alike, key=lambda name: ("" if name == BASELINE else lanes[name], regrets[name].worst)
    )
