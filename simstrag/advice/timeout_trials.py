"""Tries timeouts in the simulator: drawn failures and silences, as scenarios of the engine.

The engine needs no rule for them: a silence shorter than the timeout is a slowdown of the trace.  A
longer one is an event of `failures`, whose rank is back after its restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simstrag.advice.timeout_model import DAY, FailingJob, Timeouts
from simstrag.arrays import Floats
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace

STILL = 1e9
"""Slowdown of a rank that is silent: a step of a second would take 30 years."""
EVENTS, MOST_STEPS = 100, 200_000
"""Failures and silences longer than a step that a run is to have, and the most steps of it.  Where
these are too few steps, one stands for several: losses depend on a step only by half of one."""
LEAST_STEPS = 2_000


class Mishap(NamedTuple):
    """A rank fails or falls silent, in seconds of the run.

    silent: how long; infinity for a failure.
    away: from when it is known to be lost until it is back.
    """

    time: float
    rank: int
    silent: float
    away: float


@dataclass(frozen=True)
class Horizon:
    """Steps of a simulated run, and the seconds of each."""

    steps: int
    step: float

    @classmethod
    def of(cls, job: FailingJob, events: float = EVENTS) -> Horizon:
        """So long that so many mishaps come about."""
        step = job.silences.step
        each = job.workers * job.rate + float(
            job.silences.longer_than(np.array([step]))[0] / job.silences.observed
        )
        seconds = max(events / each, LEAST_STEPS * step)
        steps = min(math.ceil(seconds / step), MOST_STEPS)
        return cls(steps, max(step, seconds / steps))


def draw_mishaps(job: FailingJob, seed: int, seconds: float) -> list[Mishap]:
    """The failures and silences of a job in so many seconds, whatever the timeouts."""
    generator = np.random.default_rng([seed, job.workers])
    found = list[Mishap]()
    for rate, silent in ((job.workers * job.rate, False), (job.silences.rate, True)):
        own = np.random.default_rng(generator.integers(2**63))
        count = int(own.poisson(rate * seconds))
        times = own.random(count) * seconds
        ranks = own.integers(job.workers, size=count)
        away = own.choice(job.returns, count)
        lengths = job.silences.draw(count, own) if silent else np.full(count, math.inf)
        rows = zip(times.tolist(), ranks.tolist(), lengths.tolist(), away.tolist(), strict=True)
        found += [Mishap(*row) for row in rows]
    return sorted(found)


def failing_scenario(
    job: FailingJob, mishaps: list[Mishap], timeouts: Timeouts, horizon: Horizon
) -> Scenario:
    """The scenario of a job that meets these mishaps under these timeouts."""
    section = job.section
    failures: dict[str, Any] = {"on_fault": section.on_fault, "detection": timeouts.detection}
    if section.continues:
        failures |= {
            "quorum_timeout": timeouts.quorum, "min_workers": timeouts.workers,
            "regroup": section.regroup,
        }  # fmt: skip
    else:
        failures |= {"restart": section.restart, "checkpoint": section.checkpoint}
    events, pauses = _sorted_out(job, mishaps, timeouts.detection)
    data: dict[str, Any] = {
        "workers": job.workers,
        "target_progress": (horizon.steps - 0.5) * _progress(job),
        "step": {"compute": horizon.step},
        "learner": {
            "batch": job.scenario.learner.batch, "noise_scale": job.scenario.learner.noise_scale
        },
        "failures": {**failures, "events": events or [{"time": 1e15, "rank": 0}]},
    }  # fmt: skip
    if len(pauses):
        time, rank, length = np.array(pauses).T
        ends = np.append(time, time + length)
        order = np.argsort(ends, kind="stable")
        data["trace"] = Trace.from_columns(
            ends[order], np.tile(rank.astype(int), 2)[order], "step", "slowdown",
            np.repeat([STILL, 1.0], len(time))[order], "silences",
        )  # fmt: skip
    return Scenario.of(data)


def _progress(job: FailingJob) -> float:
    """Progress of an update of all workers (rule 25 of docs/semantics.md)."""
    samples = job.workers * job.scenario.learner.batch
    return samples / (job.scenario.learner.noise_scale + samples)


def _sorted_out(
    job: FailingJob, mishaps: list[Mishap], detection: float
) -> tuple[list[dict[str, float]], list[tuple[float, int, float]]]:
    """The failures that follow under a timeout, and the silences that it outlasts."""
    continues, restart = job.section.continues, job.section.restart
    events, pauses = list[dict[str, float]](), list[tuple[float, int, float]]()
    busy = [0.0] * job.workers  # until when a rank is away or silent
    for time, rank, silent, away in mishaps:
        fails = silent == math.inf
        if time <= busy[rank] and (continues or not fails):
            continue
        if silent <= detection:
            pauses.append((time, rank, silent))
            busy[rank] = time + silent
        elif continues:
            back = time + detection + away
            events.append({"time": time, "rank": rank, "back": back})
            busy[rank] = back
        else:
            events.append({"time": time, "rank": rank})
            busy = [time + detection + restart] * job.workers
    return events, pauses


def lost_share(
    job: FailingJob, seed: int, choices: list[Timeouts], horizon: Horizon
) -> Iterator[float]:
    """Seconds lost for each second of training without loss, under the same mishaps."""
    clean = _makespan(failing_scenario(job, [], choices[0], horizon))
    seconds, mishaps = 0.0, list[Mishap]()
    for choice in choices:
        needed = 1.3 * clean * (1 + job.loss(choice))
        while True:
            if needed > seconds:
                mishaps = _longer(job, seed, mishaps, seconds, needed)
                seconds = needed
            time = _makespan(failing_scenario(job, mishaps, choice, horizon))
            if time <= seconds:
                break
            needed = 2 * time
        yield time / clean - 1


def _longer(
    job: FailingJob, seed: int, mishaps: list[Mishap], begin: float, end: float
) -> list[Mishap]:
    """Mishaps up to an end; those before `begin` stay as they are."""
    later = draw_mishaps(job, seed + (2**32 if begin else 0) + int(begin), end - begin)
    return [*mishaps, *(each._replace(time=each.time + begin) for each in later)]


def _makespan(scenario: Scenario) -> float:
    return float(simulate(scenario, "bsp", record_updates=False).summary["time_to_target"])


def gpu_hours(job: FailingJob, share: Floats) -> Floats:
    """GPU-hours lost for each day of training without loss."""
    return share * job.scenario.gpus * DAY / 3600
