"""How long runs will take on this machine, measured on shorter runs of the same scenario."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from simstrag.engine.real_training import evaluation_interval
from simstrag.engine.simulate import simulate
from simstrag.errors import SimstragError
from simstrag.scenario.scenario import Scenario

STEPS_IN_AN_HOUR = 1e9
"""Any policy simulates this many steps within an hour on one core; the slowest take 3 µs each."""
GRADIENTS_IN_AN_HOUR = 1e5
"""A real learner computes this many within an hour, if each takes less than 36 ms."""
FIRST, FIRST_GRADIENTS = 2e4, 256
"""Steps of workers of the first short run, and of that of a real learner."""
GROWTH = 8
HOUR = 3600.0
PROBE = 0.2
"""Processor seconds of a short run that are enough to count on."""


def expected_steps(scenario: Scenario) -> float:
    """Steps of all workers of a run of bsp."""
    n, batch = scenario.workers, scenario.learner.batch
    rounds = [float(scenario.updates or 0), (scenario.sample_target or 0) / (n * batch)]
    if scenario.progress_target is not None:
        rounds.append(scenario.progress_target * (1 + scenario.learner.noise_scale / (n * batch)))
    return max(rounds) * n


def describe_hours(scenario: Scenario, names: Sequence[str], runs: int, jobs: int) -> str:
    """A warning of runs that take more than an hour, with how to shorten them; empty for others.

    runs: of each policy; jobs: processes.
    Fewer than `STEPS_IN_AN_HOUR` steps per process, or `GRADIENTS_IN_AN_HOUR` of a real learner,
    are not measured.  Otherwise each policy runs ever longer beginnings of the scenario, until one
    takes `PROBE` seconds.

    >>> small = Scenario(workers=4, samples=10_000, step={"compute": 0.1})
    >>> describe_hours(small, ["bsp"], runs=10, jobs=1)
    ''
    """
    steps = expected_steps(scenario)
    if steps * len(names) * runs < _in_an_hour(scenario) * jobs:
        return ""
    seconds = {name: _seconds_of_run(scenario, name, steps) * runs / jobs for name in names}
    total, longest = sum(seconds.values()), max(seconds, key=seconds.__getitem__)
    if total <= HOUR:
        return ""
    limits = {key: value for key, value in _limits(scenario, HOUR / total).items() if value}
    if (scenario.samples or 0) * total < scenario.learner.batch * steps * HOUR:
        limits.pop("samples", None)  # they alone take less than an hour
    shorter = [f"{key}: {value:.2g}" for key, value in limits.items()]
    if scenario.target_accuracy is not None and "target_progress" in limits:
        shorter[-1] += " in place of target_accuracy"
    ways = [f"an hour is enough for {' and '.join(shorter)}"] if shorter else []
    ways += ["take fewer seeds"] if runs > 1 else []
    if len(names) > 1:
        ways.append(f"leave out {longest}, which takes {seconds[longest] / HOUR:.3g} h of it")
    about = f"{_about(scenario)} {total / HOUR:.3g} h here"
    return f"this takes {about}; to shorten it: {'; or '.join(ways)}"


def describe_hours_of_study(points: Sequence[Scenario], jobs: int) -> str:
    """The same of the points of a study, each under its own policies and seeds.

    Each policy is measured at the point with the most steps alone.

    >>> small = Scenario(workers=4, samples=10_000, step={"compute": 0.1})
    >>> describe_hours_of_study([small], jobs=1)
    ''
    """
    steps = [expected_steps(point) * len(point.seed_list) for point in points]
    largest = max(points, key=expected_steps)
    if sum(steps) * len(points[0].policies) < _in_an_hour(largest) * jobs:
        return ""
    rounds = sum(steps) / expected_steps(largest) / jobs
    total = 0.0
    for name in largest.policies:
        with contextlib.suppress(SimstragError):  # a run that fails is an outcome of a sweep
            total += rounds * _seconds_of_run(largest, name, expected_steps(largest))
    if total <= HOUR:
        return ""
    return (
        f"this takes {_about(largest)} {total / HOUR:.3g} h here, for {len(points)} points; to "
        "shorten it: "
        "take fewer seeds, policies or values, or divide it among machines with --shard"
    )


def _in_an_hour(scenario: Scenario) -> float:
    return GRADIENTS_IN_AN_HOUR if scenario.learner.is_real else STEPS_IN_AN_HOUR


def _about(scenario: Scenario) -> str:
    """Whether a run may end early: that of a real learner ends at its target."""
    at_most = scenario.learner.is_real and scenario.has_target
    return "at most about" if at_most else "about"


def _seconds_of_run(scenario: Scenario, name: str, steps: float) -> float:
    """Processor seconds of a run, by what a longer beginning takes more than the first one."""
    first = min(1.0, (FIRST_GRADIENTS if scenario.learner.is_real else FIRST) / steps)
    _time_beginning(scenario, name, first)  # imports and compiles
    part, begun = first, _time_beginning(scenario, name, first)
    took = begun
    while part < 1 and took - begun < PROBE:
        part = min(1.0, part * GROWTH)
        took = _time_beginning(scenario, name, part)
    return took if part == 1 else begun + (took - begun) / (part - first) * (1 - first)


def _time_beginning(scenario: Scenario, name: str, part: float) -> float:
    begin = time.process_time()
    simulate(_beginning(scenario, part), name, record_updates=False)
    return time.process_time() - begin


def _beginning(scenario: Scenario, part: float) -> Scenario:
    """The scenario with a part of its work, and with the evaluations of the whole as far apart."""
    limits = _limits(scenario, part)
    whole = {key: max(1, round(limits[key] or 0)) for key in ("samples", "updates") if limits[key]}
    changes: dict[str, Any] = limits | {"target_accuracy": None} | whole
    if scenario.learner.is_real:
        every = {"evaluate_every": evaluation_interval(scenario)}
        changes["learner"] = scenario.learner.model_dump(exclude_unset=True) | every
    return scenario.replaced(**changes)


def _limits(scenario: Scenario, part: float) -> dict[str, float | None]:
    """The limits of a run with a part of the work; None for those that are not set."""
    limits = {
        "samples": scenario.samples, "updates": scenario.updates,
        "target_progress": scenario.progress_target,
    }  # fmt: skip
    return {key: None if limit is None else limit * part for key, limit in limits.items()}
