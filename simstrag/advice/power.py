"""Power caps as candidates: time, money and energy of the advised policies at each cap."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simstrag.advice.advice import Advice
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.experiments.cluster_backends import open_backend
from simstrag.experiments.comparison import BASELINE
from simstrag.policies import collect_warnings
from simstrag.processes.pool import compute
from simstrag.profile.power_caps import PowerCaps, PowerRow
from simstrag.records.log_table import LogTable
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import value_of, with_value

COLUMNS = ("power_limit", "seconds", "watts")
SEEDS = 3
"""Seeds of each policy at each cap: caps are compared under the same ones."""
JOULES = 3.6e6
"""Joules in a kWh."""


class PowerPoint(NamedTuple):
    """One policy at one cap of all devices: means over seeds.

    cap: in watts.
    seconds: to the target, or of the work.
    kwh: of all devices in that time.
    cost: GPU-hours at the scenario's price; None without one.
    efficient: whether it reaches the target, and no other point takes at most as much time and
        energy, and less of one.
    """

    policy: str
    cap: float
    seconds: float
    kwh: float
    cost: float | None
    efficient: bool = False


def read_power_caps(path: str | Path) -> PowerCaps:
    """The caps in a CSV file with the columns power_limit (W), seconds and watts.

    Raises `InputError` for a file that is missing or has other columns, and as `PowerCaps` does.
    """
    table = LogTable.read(path, COLUMNS)
    columns = [table.numbers(name).tolist() for name in COLUMNS]
    try:
        return PowerCaps([PowerRow(*row) for row in zip(*columns, strict=True)])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def power_points(
    advice: Advice,
    caps: PowerCaps,
    *,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> tuple[PowerPoint, ...]:
    """The choice, the safe choice and bsp at each measured cap, the fastest first.

    A cap of all devices makes every clean step longer by `PowerCaps.slowdown`; the scenario's step
    is that at the highest cap.  A device draws the measured watts while it computes, and those of
    an idle one (`Scenario.watts`) while it waits or communicates.

    Raises `InputError` where the scenario does not state the step.
    """
    scenario = advice.comparison.scenario
    if scenario.step is None or scenario.replays:
        raise InputError(
            "power caps make a step longer: state step.compute in the scenario, or step.launch and "
            "step.device"
        )
    policies = dict.fromkeys([advice.choice, advice.safe, BASELINE])
    seeds = scenario.seed_list[:SEEDS]
    wanted = [(policy, row.cap) for policy in policies for row in caps.rows]
    calls = [
        ((policy, cap, seed), (_at_cap(scenario, caps.slowdown(cap)), policy, seed))
        for policy, cap in wanted
        for seed in seeds
    ]
    found: dict[tuple[str, float, int], tuple[float, float, float]] = {}
    with open_backend(jobs=jobs) as backend:
        for key, result in compute(backend, _times, calls):
            found[key] = result
            if on_progress is not None:
                on_progress(len(found), len(calls), f"{key[0]} at {key[1]:g} W")
    points = []
    for policy, cap in wanted:
        seconds, busy, rest = np.mean([found[policy, cap, seed] for seed in seeds], axis=0)
        points.append(power_point(scenario, policy, cap, seconds, busy, rest, caps.watts(cap)))
    ordered = sorted(points, key=lambda point: (point.seconds, point.kwh))
    return tuple(point._replace(efficient=_is_efficient(point, ordered)) for point in ordered)


def _at_cap(scenario: Scenario, slowdown: float) -> Scenario:
    name = "step.device" if scenario.inputs.step.overlaps else "step.compute"
    return with_value(scenario, name, value_of(scenario, name) * slowdown)


def _times(scenario: Scenario, policy: str, seed: int) -> tuple[float, float, float]:
    """Seconds of a run to its target, and of all ranks in that time: computing, and all else.

    Ranks compute for the same share of that time as of the whole run, which may end later.
    """
    with collect_warnings(policy):
        run = simulate(scenario, policy, seed, record_updates=False)
    computing, *others = (
        sum(run.summary[f"{name}_by_rank"]) for name in ("compute", "communication", "wait")
    )
    reached = run.summary["time_to_target" if scenario.has_target else "makespan"]
    seconds = math.inf if reached is None else float(reached)
    busy = scenario.workers * seconds * computing / (computing + sum(others))
    return seconds, busy, scenario.workers * seconds - busy if reached is not None else 0.0


def power_point(
    scenario: Scenario, policy: str, cap: float, seconds: float, busy: float, rest: float,
    watts: float,
) -> PowerPoint:  # fmt: skip
    cost = scenario.cost
    idle = min(watts, scenario.watts[1] or watts)
    kwh = scenario.gpus / scenario.workers * (busy * watts + rest * idle) / JOULES
    hours = seconds * scenario.gpus / 3600
    return PowerPoint(
        policy, cap, float(seconds), float(kwh), cost.gpu_hour and cost.gpu_hour * float(hours)
    )


def _is_efficient(point: PowerPoint, points: list[PowerPoint]) -> bool:
    return math.isfinite(point.seconds) and not any(
        (other.seconds, other.kwh) != (point.seconds, point.kwh)
        and other.seconds <= point.seconds
        and other.kwh <= point.kwh
        for other in points
    )
