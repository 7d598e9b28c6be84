"""The constants of a scenario that may be wrong, whether measured, fitted or assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simstrag.scenario.scenario import Scenario
from simstrag.scenario.sections import StepSection
from simstrag.timing.noise import Distribution, lag1_range, quantiles

QUANTITIES = {
    "learner.c_tau": "",
    "learner.noise_scale": "samples",
    "contention.severity": "",
    "contention.host_share": "",
    "contention.response": "",
    "step.compute": "s",
    "step.launch": "s",
    "step.device": "s",
    "step.device.amp": "s",
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
    "contention.host_share": (0.0, 1.0),
    "contention.response": (1.0, 2.0),
    "step.host_share": (0.0, 1.0),
    "step.amp_ratio": (1.0, math.inf),
    "step.cv": (0.0, 1.0),
    "noise.lag1": (-0.8, 0.8),
    "allreduce.overlap": (0.0, 1.0),
}
"""Ranges of constants; all others are 0 or more."""

FACTORS = (1 / 4, 4)
"""Factors by which a constant is multiplied: a quarter and four times are further off than most."""
OWN_FACTORS = {
    "learner.c_tau": (1 / 2, 4),
    "contention.severity": (1 / 2, 2),
    "contention.response": (1 / 2, 2),
}
"""Factors of constants whose range is known better. An assumed response has two laws, 1 and 2.

The cost of staleness, of its value by theory: .5 with a tuned learning rate, 4 with a momentum that
was left untuned (`comparison.C_TAUS`).

Contention of another day: in 90 of 100 jobs of a shared GPU cluster, the spread of step times over
workers in the second half of the job was .6 to 1.6 times that in the first (5th to 95th percentile;
Alibaba's cluster-trace-gpu-v2020, mini-batch-time).  Slowdowns themselves were off by 7 to 12 % at
worst where they were measured (docs/measured.md)."""

STREAMS = ("launch", "device")
"""Keys of a step that have seconds by precision."""

MARGIN = 1e-6
"""How far host_share * amp_ratio stays below 1, where the gain would have no limit."""

HALVINGS = 20
"""Steps of the search for the largest step.cv beside a stated noise.lag1."""

NAMES = {
    "learner.c_tau": "the cost of staleness (c_tau)",
    "learner.noise_scale": "the noise scale",
    "learner.batch": "the batch",
    "contention.severity": "the severity of contention (1 as recorded)",
    "contention.host_share": "the host's share of what contention adds to recorded steps",
    "contention.response": "the assumed response to a load (1: 1 + u, 2: 1 / (1 - u))",
    "step.compute": "a clean step",
    "step.launch": "the launching of a step",
    "step.device": "the device's part of a step",
    "step.device.amp": "the device's part in reduced precision",
    "step.host_share": "the share of a step that precision cannot shorten",
    "step.amp_ratio": "the gain of reduced precision",
    "step.cv": "the noise of steps",
    "noise.lag1": "the autocorrelation of steps",
    "server.service": "the server's service",
    "server.push": "a push to the server",
    "server.pull": "a pull from the server",
    "allreduce.alpha": "the time of a hop",
    "allreduce.bandwidth": "the bandwidth of a link",
    "allreduce.bytes": "the size of a gradient",
    "allreduce.overlap": "the share of the all-reduce that backward hides",
}
"""Names of the constants in sentences."""

FITTED = "fitted"
PLACEHOLDER = "assumed (placeholder)"
DECLARED = "assumed (declared in the scenario)"
DEFAULT = "assumed (default)"
NOT_GIVEN = "assumed (nothing given)"
DERIVED = "derived from the all-reduce's link"

LINK = ("allreduce.alpha", "allreduce.bandwidth", "allreduce.bytes")
"""The constants that a server on a link like the all-reduce's follows."""

THROUGH = {
    "server": {"server", "leader", "model averaging at a server"},
    "allreduce": {"all-reduce", "model averaging", "leader"},
}
"""Architectures of updates that spend time of a section."""


def uses(summary: Mapping[Any, Any], section: str) -> bool:
    """Whether the updates of a run with this summary spend time of a section."""
    ways = THROUGH.get(section)
    return ways is None or not ways.isdisjoint(str(summary["architecture"]).split(" + "))


def is_linked(scenario: Scenario) -> bool:
    """Whether the server is on a link like the all-reduce's, so that it follows `LINK`."""
    return scenario.server is not None and scenario.server.link is not None


def name_of(scenario: Scenario, name: str) -> str:
    """The name of a constant that varies, limited to the all-reduce where the server stays.

    >>> case = Scenario(workers=2, updates=1, step={"compute": 0.1})
    >>> name_of(case, "allreduce.bandwidth")
    'the bandwidth of a link in the all-reduce'
    >>> name_of(case.replaced(server={"link": "cut_through"}), "allreduce.bandwidth")
    'the bandwidth of a link'
    """
    stays = name in LINK and not is_linked(scenario)
    return NAMES[name] + " in the all-reduce" * stays


def kind_of(scenario: Scenario, name: str) -> str:
    """The origin of a constant in force: measured, fitted, derived, or assumed (and how).

    >>> case = Scenario(workers=2, updates=1, step={"compute": 0.1})
    >>> kind_of(case, "step.compute"), kind_of(case, "learner.c_tau")
    ('assumed (declared in the scenario)', 'assumed (default)')
    """
    if name in scenario.placeholders:
        return PLACEHOLDER
    if name == "learner.c_tau" and scenario.learner.c_tau_range is not None:
        return FITTED
    section, _, key = name.partition(".")
    stated, inputs = getattr(scenario, section), scenario.inputs
    key, _, precision = key.partition(".")
    if stated is not None and key in stated.model_fields_set:
        return DECLARED
    if section == "server" and is_linked(scenario):
        return DERIVED
    measured = getattr(inputs.profile, section, None)  # a profile has no learner
    if section in ("step", "noise"):
        measured = inputs.times
    quantity = getattr(measured, "noise" if key in ("cv", "lag1") else key, None)
    if key in STREAMS:
        quantity = getattr(quantity, precision or "full", None)
    if key == "lag1" and quantity is not None and quantity.lag1_autocorrelation is None:
        return NOT_GIVEN
    if quantity is not None:
        return str(quantity.kind)
    return NOT_GIVEN if stated is None else DEFAULT


def value_of(scenario: Scenario, name: str) -> float:
    """The constant in force; 0 if there is none, or if the profile gives the step or its noise.

    Also 0 for those of the noise-scale formula where a real model learns, and for one that is
    derived from others, and does not vary by itself.  The severity of contention is 0 where nothing
    contends, the response where none is assumed.
    """
    section, _, key = name.partition(".")
    if section == "learner" and scenario.learner.is_real:
        return 0.0
    if section == "noise" and scenario.inputs.step.noise is None:
        return 0.0
    if section == "contention" and not _is_contended(scenario):
        return 0.0
    if name == "contention.response" and not scenario.inputs.loads:
        return 0.0
    if name == "contention.host_share" and not scenario.replays:
        return 0.0
    if kind_of(scenario, name) == DERIVED:
        return 0.0
    if section in ("learner", "contention", "step", "noise"):
        key, _, precision = key.partition(".")
        value = getattr(getattr(scenario, section), key, None)
        if key in STREAMS:
            value = getattr(value, precision or "full", None)
        return float(value or 0.0)
    value = float(getattr(getattr(scenario.inputs, section), key))
    return value if math.isfinite(value) else 0.0


def _is_contended(scenario: Scenario) -> bool:
    trace = scenario.inputs.contention
    return trace is not None and trace.contends and scenario.durations == "recorded"


def is_step_of_profile(scenario: Scenario, name: str) -> bool:
    """Whether the profile gives a constant of the step, which the scenario must state to vary it.

    >>> is_step_of_profile(Scenario.read("examples/demo.yaml"), "noise.lag1")
    True
    """
    return (
        name.startswith(("step.", "noise."))
        and scenario.step is None
        and kind_of(scenario, name) not in (DECLARED, DEFAULT, NOT_GIVEN)
    )


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


def assumed(scenario: Scenario) -> list[str]:
    """The constants by which a comparison decides: those that nothing states or measures.

    Placeholders, the severity of contention and the assumed response to a load; with a target also
    the cost of staleness and the noise scale, whoever states them.

    >>> step = {"compute": 0.1}
    >>> assumed(Scenario(workers=2, target_progress=1, step=step))
    ['learner.c_tau', 'learner.noise_scale']
    """
    always = {*scenario.placeholders, *OWN_FACTORS}
    if scenario.progress_target is not None:
        always |= {"learner.noise_scale"}
    return [name for name in uncertain(scenario) if name in always]


def bounds(scenario: Scenario, name: str) -> tuple[float, float]:
    """The range in which a constant is varied while all others stay.

    Reduced precision cannot shorten a step to less than its host part: see `device_gain`.  The
    noise keeps a shape that can have its autocorrelation.  All bounds have the sign of the value.

    >>> step = {"compute": 0.1, "amp_ratio": 1.5, "host_share": 0.2}
    >>> low, high = bounds(Scenario(workers=2, updates=1, step=step), "step.amp_ratio")
    >>> low, round(high, 3)
    (1.0, 5.0)
    """
    if name == "learner.c_tau" and scenario.learner.c_tau_range is not None:
        return scenario.learner.c_tau_range
    low, high = BOUNDS.get(name, (0.0, math.inf))
    share, ratio = value_of(scenario, "step.host_share"), value_of(scenario, "step.amp_ratio")
    if name == "step.host_share" and ratio > 1:
        # a share of 1 leaves nothing to shorten and allows any ratio, but shares just below do not
        return (1.0, 1.0) if share == 1 else (low, (1 - MARGIN) / ratio)
    if name == "step.amp_ratio" and 0 < share < 1:
        return low, max(low, (1 - MARGIN) / share)
    if name == "step.cv" and scenario.noise is not None and scenario.step is not None:
        return low, _largest_cv(scenario.step, scenario.noise.lag1 or 0.0, high)
    if name == "noise.lag1":
        least, most = lag1_range(_independent(scenario))
        is_negative = value_of(scenario, name) < 0
        return (max(low, least), 0.0) if is_negative else (0.0, min(high, most))
    return low, high


def _largest_cv(step: StepSection, lag1: float, most: float) -> float:
    """The largest cv, up to `most`, of noise that can have an autocorrelation, as its own cv can.

    The range of lognormal noise is the narrower the more it varies.
    """

    def is_possible(cv: float) -> bool:
        independent = step.model_copy(update={"cv": cv}).distribution(0.0)
        assert independent is not None
        least, greatest = lag1_range(independent)
        return least <= lag1 <= greatest

    if step.cv >= most or step.cv == 0 or is_possible(most):
        return most
    low, high = step.cv, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    return low


def _independent(scenario: Scenario) -> Distribution:
    """The noise of a step in force, without autocorrelation."""
    if scenario.step is not None:
        drawn = scenario.step.distribution(0.0)
    else:
        times = scenario.inputs.times
        drawn = None if times is None or times.noise is None else quantiles(times.noise.quantiles)
    assert drawn is not None, "an autocorrelation is of noise"
    return drawn


def with_value(scenario: Scenario, name: str, value: float) -> Scenario:
    """The scenario with one constant changed; all others stay but those derived from it.

    Seconds of launching or of the device keep the proportion of their precisions.

    >>> step = {"launch": 0.01, "device": {"full": 0.03, "amp": 0.02}}
    >>> case = Scenario(workers=2, updates=1, step=step)
    >>> with_value(case, "step.device", 0.06).step.device
    SecondsByPrecision(full=0.06, amp=0.04)
    """
    section, _, key = name.partition(".")
    stated = getattr(scenario, section)
    keys = {} if stated is None else stated.model_dump(exclude_unset=True)
    key, _, precision = key.partition(".")
    if key not in STREAMS:
        return scenario.replaced(**{section: keys | {key: value}})
    seconds = keys[key]
    if precision:
        changed = seconds | {precision: value}
    else:
        changed = {each: known * (value / seconds["full"]) for each, known in seconds.items()}
    return scenario.replaced(**{section: keys | {key: changed}})


def feels(scenario: Scenario, summary: Mapping[str, Any], name: str) -> bool:
    """Whether another value of a constant can make a difference to a run with this summary.

    The cost of stale gradients makes none without stale gradients, nor do unused sections.

    >>> case = Scenario(workers=2, updates=1, step={"compute": 0.1})
    >>> feels(case, {"architecture": "server"}, "allreduce.bytes")
    False
    >>> case = case.replaced(server={"link": "cut_through"})
    >>> feels(case, {"architecture": "server"}, "allreduce.bytes")
    True
    """
    if name == "learner.c_tau":
        return bool(summary["effective_staleness"] > 0)
    if name in LINK and is_linked(scenario) and uses(summary, "server"):
        return True
    return uses(summary, name.partition(".")[0])
