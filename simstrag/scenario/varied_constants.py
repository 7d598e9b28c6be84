"""The constants of a scenario that may be wrong, whether measured, fitted or assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simstrag.scenario.scenario import Scenario

QUANTITIES = {
    "learner.c_tau": "",
    "learner.noise_scale": "samples",
    "step.compute": "s",
    "step.host_share": "",
    "step.amp_ratio": "",
    "step.cv": "",
    "noise.lag1": "",
    "server.service": "s",
    "server.push": "s",
    "server.pull": "s",
    "allreduce.alpha": "s",
    "allreduce.bandwidth": "bytes/s",
    "allreduce.bytes": "bytes",
    "allreduce.overlap": "",
}
"""The constants that can be varied, as keys of a scenario, with their units."""

BOUNDS = {
    "step.host_share": (0.0, 1.0),
    "step.amp_ratio": (1.0, math.inf),
    "step.cv": (0.0, 1.0),
    "noise.lag1": (0.0, 0.8),  # noise of two levels cannot have much more
    "allreduce.overlap": (0.0, 1.0),
}
"""Ranges of constants; all others are 0 or more."""

MARGIN = 1e-6
"""How far host_share * amp_ratio stays below 1, where the gain would have no limit."""

DECLARED = "assumed (declared in the scenario)"
DEFAULT = "assumed (default)"
NOT_GIVEN = "assumed (nothing given)"

THROUGH = {"server": {"server", "leader"}, "allreduce": {"all-reduce", "model averaging", "leader"}}
"""Architectures of updates that spend time of a section."""


def uses(summary: Mapping[Any, Any], section: str) -> bool:
    """Whether the updates of a run with this summary spend time of a section."""
    ways = THROUGH.get(section)
    return ways is None or not ways.isdisjoint(str(summary["architecture"]).split(" + "))


def kind_of(scenario: Scenario, name: str) -> str:
    """The origin of a constant in force: measured, fitted, or assumed (and where).

    >>> case = Scenario(workers=2, updates=1, step={"compute": 0.1})
    >>> kind_of(case, "step.compute"), kind_of(case, "learner.c_tau")
    ('assumed (declared in the scenario)', 'assumed (default)')
    """
    section, _, key = name.partition(".")
    stated, inputs = getattr(scenario, section), scenario.inputs
    if stated is not None and key in stated.model_fields_set:
        return DECLARED
    measured = getattr(inputs.profile, section, None)  # a profile has no learner
    if section in ("step", "noise"):
        measured = inputs.times
    quantity = getattr(measured, "noise" if key in ("cv", "lag1") else key, None)
    if key == "lag1" and quantity is not None and quantity.lag1_autocorrelation is None:
        return NOT_GIVEN
    if quantity is not None:
        return str(quantity.kind)
    return NOT_GIVEN if stated is None else DEFAULT


def value_of(scenario: Scenario, name: str) -> float:
    """The constant in force; 0 if there is none, or if the profile gives the step or its noise.

    A negative autocorrelation counts as 0: it is not varied.
    """
    section, _, key = name.partition(".")
    if section == "noise":
        return 0.0 if scenario.noise is None else max(scenario.noise.lag1, 0.0)
    if section in ("learner", "step"):
        stated = getattr(scenario, section)
        return 0.0 if stated is None else float(getattr(stated, key) or 0.0)
    value = float(getattr(getattr(scenario.inputs, section), key))
    return value if math.isfinite(value) else 0.0


def uncertain(scenario: Scenario) -> list[str]:
    """The constants that are neither measured nor 0, as keys of `QUANTITIES`.

    Without a target no time depends on the cost of stale gradients.

    >>> uncertain(Scenario(workers=2, samples=256, step={"compute": 0.1}))
    ['learner.noise_scale', 'step.compute']
    """
    return [
        name
        for name in QUANTITIES
        if value_of(scenario, name)
        and kind_of(scenario, name) != "measured"
        and (name != "learner.c_tau" or scenario.progress_target is not None)
    ]


def bounds(scenario: Scenario, name: str) -> tuple[float, float]:
    """The range in which a constant is varied while all others stay.

    Reduced precision cannot shorten a step to less than its host part: see `device_gain`.

    >>> step = {"compute": 0.1, "amp_ratio": 1.5, "host_share": 0.2}
    >>> low, high = bounds(Scenario(workers=2, updates=1, step=step), "step.amp_ratio")
    >>> low, round(high, 3)
    (1.0, 5.0)
    """
    low, high = BOUNDS.get(name, (0.0, math.inf))
    share, ratio = value_of(scenario, "step.host_share"), value_of(scenario, "step.amp_ratio")
    if name == "step.host_share" and ratio > 1:
        # a share of 1 leaves nothing to shorten and allows any ratio, but shares just below do not
        return (1.0, 1.0) if share == 1 else (low, (1 - MARGIN) / ratio)
    if name == "step.amp_ratio" and 0 < share < 1:
        return low, max(low, (1 - MARGIN) / share)
    return low, high


def with_value(scenario: Scenario, name: str, value: float) -> Scenario:
    """The scenario with one constant changed; all others stay, also from the profile."""
    section, _, key = name.partition(".")
    stated = getattr(scenario, section)
    keys = {} if stated is None else stated.model_dump(exclude_unset=True)
    return scenario.replaced(**{section: keys | {key: value}})


def feels(summary: Mapping[str, Any], name: str) -> bool:
    """Whether another value of a constant can make a difference to a run with this summary.

    The cost of stale gradients makes none without stale gradients, nor do unused sections.

    >>> feels({"architecture": "all-reduce", "effective_staleness": 0.0}, "server.service")
    False
    """
    if name == "learner.c_tau":
        return bool(summary["effective_staleness"] > 0)
    return uses(summary, name.partition(".")[0])
