"""The decision: the least change of training among policies that may be as fast as the best.

The best has the least worst regret over all settings of what is assumed.  The regret of a policy in
a setting is its additional time over the best policy there, as a share of the best's.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simstrag.arrays import Floats
from simstrag.experiments.criterion import MEAN, Criterion
from simstrag.experiments.runner import BASELINE

Setting = tuple[str, float]
"""A setting that was simulated: the key of a constant, and its value."""
SettingTimes = Mapping[Setting, Mapping[str, float]]
"""Mean seconds of the policies in each setting, or a quantile."""
SettingSamples = Mapping[Setting, Mapping[str, Floats]]
"""Seconds of the policies in each setting under its seeds, in one order for all policies."""
OWN: Setting = ("", math.nan)
"""The scenario itself."""
MODEL_ERROR = 0.046
"""The least gain, as a share of the time of bsp, for which training is changed.

A makespan was simulated up to 4.6 % wrong where real ranks checked it, 1.5 % in the median
(docs/measured.md): a smaller gain may be error alone, and so may a smaller difference of two
policies."""


@dataclass(frozen=True, slots=True)
class Regret:
    """The worst regret of a policy over all settings that were simulated.

    worst: additional time over the best policy of the setting, as a share of the best's.
    state: the setting.
    """

    worst: float
    state: Setting


def worst_regrets(states: SettingTimes) -> dict[str, Regret]:
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


def mean_times(samples: SettingSamples, by: Criterion = MEAN) -> dict[Setting, dict[str, float]]:
    """The mean seconds of samples, or a quantile."""
    return {
        state: {name: by.of(of) for name, of in times.items()} for state, times in samples.items()
    }


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen policy and those that are as good.

    policy: of `alike`, the least change of training; of equal ones the best, or the one with the
        least worst regret.
    best: the candidate with the least worst regret.
    alike: the candidates that are not told apart from the best, itself among them.
    """

    policy: str
    best: str
    alike: tuple[str, ...]


def choose(
    samples: SettingSamples,
    candidates: Collection[str],
    lanes: Mapping[str, str],
    by: Criterion = MEAN,
) -> Choice:
    """The candidate that changes training least, of those that are not told apart from the best.

    lanes: of each policy but bsp, which changes nothing.
    by: what times are compared by.

    >>> times = {"bsp": np.array([9.0, 9.2]), "drain": np.array([6.1, 6.2])}
    >>> samples = {OWN: times | {"asgd": np.array([6.0, 6.2])}}
    >>> choose(samples, ("bsp", "drain", "asgd"), {"drain": "A", "asgd": "C"})
    Choice(policy='drain', best='asgd', alike=('drain', 'asgd'))
    """
    regrets = worst_regrets(mean_times(samples, by))
    best = min(candidates, key=lambda name: regrets[name].worst)
    alike = tuple(
        name for name in candidates if not _told_apart(samples, name, best, regrets[best].worst, by)
    )
    policy = min(
        alike,
        key=lambda name: (
            "" if name == BASELINE else lanes[name], name != best, regrets[name].worst,
        ),
    )  # fmt: skip
    return Choice(policy, best, alike)


def alternatives(
    samples: SettingSamples,
    key: str,
    candidates: Collection[str],
    lanes: Mapping[str, str],
    clear: Collection[str],
    searched: Sequence[int] = (),
) -> dict[float, Choice]:
    """The choice if one constant were known to have a value: each that was tried, NaN as stated.

    clear: policies that the scenario's seeds show to be faster than bsp, or to gain less than
        `MODEL_ERROR`.  The gain of any other, under the few seeds of a value, may be noise.
    searched: which of the scenario's runs have the seeds of the search; all by default.

    A value changes each policy's time by a factor, from the runs under the same seeds without it.
    All other constants stay as uncertain as they are, and change with it by the same factor.
    """
    others = {state: times for state, times in samples.items() if state[0] not in ("", key)}
    values = {value: times for (name, value), times in samples.items() if name == key}
    if not values:
        return {}
    own = samples[OWN]
    found = {OWN[1]: choose({OWN: own, **others}, candidates, lanes)}
    for value, times in values.items():
        same = {name: own[name] for name in times}
        if searched and len(times[BASELINE]) == len(searched):
            same = {name: own[name][[*searched]] for name in times}
        factors = {name: float(np.mean(of) / np.mean(same[name])) for name, of in times.items()}
        scaled = {
            state: {name: factors[name] * of for name, of in each.items() if name in factors}
            for state, each in {OWN: own, **others}.items()
        }
        able = [name for name in gaining(mean_times(scaled)[OWN]) if name in clear]
        found[value] = choose(scaled, [BASELINE, *able], lanes)
    return found


def as_fast(samples: SettingSamples, choice: Choice, by: Criterion = MEAN) -> tuple[str, ...]:
    """The policies of `alike` whose times are shown to be within `MODEL_ERROR` of the choice's."""
    times = samples[OWN]
    rivals = (name for name in choice.alike if name not in (choice.policy, BASELINE))
    return tuple(
        name
        for name in rivals
        if not _is_longer(times[name], times[choice.policy], by, shown=False)
        and not _is_longer(times[choice.policy], times[name], by, shown=False)
    )


def _told_apart(samples: SettingSamples, name: str, best: str, worst: float, by: Criterion) -> bool:
    """Whether a policy is shown to be slower than the best, or to have a larger worst regret.

    worst: the worst regret of the best.
    """
    if name == best:
        return False
    if _is_longer(samples[OWN][name], samples[OWN][best], by):
        return True
    settings = (times for times in samples.values() if name in times)
    return any(
        _is_longer(times[name], (1 + worst) * min(times.values(), key=by.of), by)
        for times in settings
    )


def _is_longer(times: Floats, others: Floats, by: Criterion, shown: bool = True) -> bool:
    """Whether paired times are longer than others by more than `MODEL_ERROR`.

    shown: whether an interval must show it; else it is enough that none excludes it.
    """
    if not (np.isfinite(times).all() and np.isfinite(others).all()):
        return bool(np.mean(times) > np.mean(others))
    found = by.ratio(times, others)
    end = found.value if len(times) < 2 else found.low if shown else found.high
    return end > 1 + MODEL_ERROR


@dataclass(frozen=True, kw_only=True)
class PolicyDecision(abc.ABC):
    """Which policy to run, by the times of several in all settings of what is assumed.

    samples: seconds of each policy, bsp among them, under each seed.
    lane_of: the lane of each policy.
    by: what times are compared by.
    """

    samples: SettingSamples
    lane_of: Mapping[str, str]
    by: Criterion = MEAN

    @property
    @abc.abstractmethod
    def shown(self) -> Collection[str]:
        """The policies that are shown to be faster than bsp in the scenario itself."""

    @cached_property
    def states(self) -> SettingTimes:
        """Mean seconds in all settings, or a quantile."""
        return mean_times(self.samples, self.by)

    @cached_property
    def regrets(self) -> Mapping[str, Regret]:
        """The worst regret of each policy over the settings."""
        return worst_regrets(self.states)

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """bsp, and those shown to be faster whose mean gain is `MODEL_ERROR` or more."""
        able = gaining(self.states[OWN])
        return (BASELINE, *(name for name in able if name in self.shown))

    @cached_property
    def safest(self) -> Choice:
        """The choice of the candidates, whatever of the assumed holds."""
        return choose(self.samples, self.candidates, self.lane_of, self.by)

    @property
    def safe(self) -> str:
        """The policy to run, whatever of the assumed holds."""
        return self.safest.policy

    def gains(self, policy: str) -> dict[Setting, float]:
        """The share of bsp's time that a policy saves in each setting."""
        return {
            state: 1 - times[policy] / times[BASELINE]
            for state, times in self.states.items()
            if policy in times
        }
