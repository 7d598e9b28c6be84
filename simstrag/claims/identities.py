"""Identities that follow from the claims and the models, computed anew for every scoreboard."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from simstrag.engine.simulate import simulate
from simstrag.learning.noise_scale import NoiseScale
from simstrag.policies.estimators.gradient_noise_tables import TABLES
from simstrag.policies.estimators.time_to_progress import (
    Interval,
    dynamic_time,
    find_stragglers,
    static_times,
    ward_clusters,
)
from simstrag.scenario.scenario import Scenario

MITIGATION, FASTER = 0.794, 0.14
"""Korel's two numbers."""
BATCH = 128


class Identity(NamedTuple):
    """A statement, its numbers, and how they were computed."""

    says: str
    found: str
    how: str


@functools.cache
def identities(quick: bool = False) -> tuple[Identity, ...]:
    """Every identity; quick: from fewer random states."""
    low, high = (
        contention_cost(MITIGATION, 1 + FASTER),
        contention_cost(MITIGATION, 1 / (1 - FASTER)),
    )
    ratio = needed_ratio(MITIGATION, 2.0)
    states = 10 if quick else 200
    alone, groups = star_choices(states)
    gain = progress_one_by_one(8, BATCH, 500) / progress_together(8, BATCH, 500) - 1
    return (
        Identity(
            "What contention cost BSP, by Korel's two numbers together",
            f"{100 * low:.1f} % (14 % faster) to {100 * high:.1f} % (14 % less time)",
            "T_bsp/T_clean = 1 / (1 - (1 - T/T_bsp) / M) with M = 79.4 %",
        ),
        Identity(
            "The gain of reduced precision that 79.4 % needs where contention doubles a step",
            f"{ratio:.2f}; simulated with it, all but Korel's first 7 steps: "
            f"{100 * simulated_mitigation(ratio):.1f} %",
            "c / (1 + (1 - M)(c - 1)) at c = 2; 1,000 slow steps without noise",
        ),
        Identity(
            "STAR-H with physical intervals updates with every gradient; with order statistics it "
            "forms groups",
            f"x = 1 in {alone} of {states}; groups beat every x in {groups} of {states}",
            "random straggler states: lognormal times (sigma 0.4), 2 to 16 workers, tabulated "
            "noise scales",
        ),
        Identity(
            "Booking each gradient by itself would give SSP(0) progress for nothing",
            f"{100 * gain:.0f} % more than BSP from the same gradients at the same times",
            "8 workers, batch 128, noise scale 500, c_tau 1; booked by visible updates it is BSP's",
        ),
    )


def contention_cost(mitigation: float, speedup: float) -> float:
    """The share by which contention lengthens bsp, from the share removed and the speed-up.

    >>> round(contention_cost(0.5, 1.25), 3)
    0.667
    """
    return 1 / (1 - (1 - 1 / speedup) / mitigation) - 1


def needed_ratio(mitigation: float, slowdown: float) -> float:
    """The gain of reduced precision that removes a share of a device's slowdown by steps.

    From M = (c - c/rho) / (c - 1).

    >>> needed_ratio(0.5, 2.0)
    1.3333333333333333
    """
    return slowdown / (1 + (1 - mitigation) * (slowdown - 1))


def simulated_mitigation(ratio: float, slowdown: float = 2.0, steps: int = 1000) -> float:
    """The share of the delay that korel removes of a window of slow steps, without noise."""
    rows = [{"time": 20, "node": 0, "resource": "gpu", "kind": "slowdown", "value": slowdown}]
    step = {"compute": 1.0, "amp_ratio": ratio}
    case: dict[str, Any] = {"workers": 8, "samples": (20 + steps) * 8 * BATCH, "step": step}
    slow, clean = Scenario.of({**case, "trace": rows}), Scenario.of(case)
    bsp, own, free = (
        float(simulate(world, policy, record_updates=False).summary["makespan"])
        for world, policy in ((slow, "bsp"), (slow, "korel"), (clean, "bsp"))
    )
    return (bsp - own) / (bsp - free)


def star_choices(states: int) -> tuple[int, int]:
    """In how many random straggler states STAR-H chooses x = 1, and in how many groups win.

    The first by simulated intervals, the second by order statistics.
    """
    random = np.random.default_rng(0)
    scales = [scale for table in TABLES.values() for row in table for scale in row]
    alone = groups = tried = 0
    while tried < states:
        times = 0.2 * np.exp(random.normal(0, 0.4, random.integers(2, 17)))
        phi = float(random.choice(scales))
        if not find_stragglers(times, 0.2):
            continue
        tried += 1
        alone += int(np.argmin(static_times(times, Interval.SIMULATED, phi, BATCH)) == 0)
        clusters = ward_clusters(times, 0.2 * float(times.min()))
        static = static_times(times, Interval.ORDER, phi, BATCH)
        groups += int(dynamic_time(times, clusters, phi, BATCH) < static.min())
    return alone, groups


def progress_together(workers: int, batch: int, noise_scale: float) -> float:
    """The progress of one round of bsp."""
    learner = NoiseScale(batch, noise_scale)
    learner.apply([(batch, 0)] * workers)
    return learner.progress or 0.0


def progress_one_by_one(workers: int, batch: int, noise_scale: float) -> float:
    """The progress of one round of SSP(0), were each gradient a visible update."""
    learner = NoiseScale(batch, noise_scale)
    for _ in range(workers):
        learner.apply([(batch, 0)])
        learner.pull()
    return learner.progress or 0.0
