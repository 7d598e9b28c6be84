"""(b) SimPy without processes: timeouts that call functions, the leanest use of SimPy.

The server needs no `Resource`.  It is first in, first out, so a gradient is done one service time
after its arrival or after the gradient before it, whichever is later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from benchmarks.jobs import BACKUPS, BOUND, PULL, PUSH, Job, KorelReviews, StepClock

__all__ = ["asgd", "backup", "bsp", "cgp", "korel", "ssp"]

Fired = Any
"""A `simpy.Timeout`; its value is a rank, a round, a group or several groups."""


def bsp(job: Job) -> float:
    """An all-reduce after the last finish, then all ranks start."""
    return _lockstep(job, job.seconds())


def korel(job: Job) -> float:
    """Bsp with a review at every update."""
    reviews = KorelReviews(job)
    return _lockstep(job, reviews.seconds, reviews.review)


def _lockstep(
    job: Job, seconds: StepClock, review: Callable[[int, float], None] | None = None
) -> float:
    env, reduce = simpy.Environment(), job.reduce(job.workers)
    timeout, done, version, left = env.timeout, env.event(), 0, 0

    def start() -> None:
        nonlocal left
        left = job.workers
        for rank in range(job.workers):
            timeout(seconds(rank, env.now)).callbacks.append(finished)

    def finished(event: Fired) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            timeout(reduce).callbacks.append(updated)

    def updated(event: Fired) -> None:
        nonlocal version
        version += 1
        if version == job.rounds:
            done.succeed()
        else:
            if review:
                review(version, env.now)
            start()

    start()
    env.run(until=done)
    return float(env.now)


def asgd(job: Job) -> float:
    """Two timeouts per gradient: until its arrival, and until the end of its service."""
    env, seconds = simpy.Environment(), job.seconds()
    timeout, done, free, applied = env.timeout, env.event(), 0.0, 0

    def start(rank: int) -> None:
        delay = PULL + seconds(rank, env.now + PULL) + PUSH
        timeout(delay, rank).callbacks.append(arrived)

    def arrived(event: Fired) -> None:
        nonlocal free
        now = env.now
        free = max(free, now) + job.service
        timeout(free - now, event.value).callbacks.append(served)

    def served(event: Fired) -> None:
        nonlocal applied
        applied += 1
        if applied == job.gradients:
            done.succeed()
        start(event.value)

    for rank in range(job.workers):
        start(rank)
    env.run(until=done)
    return float(env.now)


def ssp(job: Job) -> float:
    """Asgd in which a rank beyond the bound starts when the slowest ranks have moved."""
    env, seconds = simpy.Environment(), job.seconds()
    timeout, done, free, applied = env.timeout, env.event(), 0.0, 0
    counts, least, slowest = [0] * job.workers, 0, job.workers
    blocked: list[int] = []

    def start(rank: int) -> None:
        delay = PULL + seconds(rank, env.now + PULL) + PUSH
        timeout(delay, rank).callbacks.append(arrived)

    def arrived(event: Fired) -> None:
        nonlocal free
        now = env.now
        free = max(free, now) + job.service
        timeout(free - now, event.value).callbacks.append(served)

    def served(event: Fired) -> None:
        nonlocal applied, least, slowest
        rank = event.value
        applied += 1
        if applied == job.gradients:
            done.succeed()
        counts[rank] += 1
        blocked.append(rank)
        if counts[rank] == least + 1:
            slowest -= 1
            if slowest == 0:
                least += 1
                slowest = counts.count(least)
                for waiting in blocked:
                    start(waiting)
                blocked.clear()
                return
        if counts[rank] - least <= BOUND:
            start(blocked.pop())

    for rank in range(job.workers):
        start(rank)
    env.run(until=done)
    return float(env.now)


def backup(job: Job) -> float:
    """A round ends at the last arrival but `BACKUPS`; later gradients are dropped."""
    env, seconds = simpy.Environment(), job.seconds()
    timeout, done, free = env.timeout, env.event(), 0.0
    round_number = arrivals = applied = 0
    needed = job.workers - BACKUPS

    def start() -> None:
        nonlocal round_number, arrivals
        round_number += 1
        arrivals = 0
        for rank in range(job.workers):
            delay = PULL + seconds(rank, env.now + PULL) + PUSH
            timeout(delay, round_number).callbacks.append(arrived)

    def arrived(event: Fired) -> None:
        nonlocal arrivals, free
        if event.value != round_number or arrivals == needed:
            return
        arrivals += 1
        now = env.now
        free = max(free, now) + job.service
        if arrivals == needed:
            timeout(free - now).callbacks.append(updated)

    def updated(event: Fired) -> None:
        nonlocal applied
        applied += needed
        if applied >= job.gradients:
            done.succeed()
        start()

    start()
    env.run(until=done)
    return float(env.now)


def cgp(job: Job) -> float:
    """A group arrives after its all-reduce; the server takes all waiting groups at once."""
    env, seconds = simpy.Environment(), job.seconds()
    timeout, done, applied, serving = env.timeout, env.event(), 0, False
    left = [0] * len(job.groups)
    waiting: list[int] = []

    def start(group: int) -> None:
        left[group] = len(job.groups[group])
        for rank in job.groups[group]:
            timeout(PULL + seconds(rank, env.now + PULL), group).callbacks.append(finished)

    def finished(event: Fired) -> None:
        group = event.value
        left[group] -= 1
        if left[group] == 0:
            delay = job.reduce(len(job.groups[group])) + PUSH
            timeout(delay, group).callbacks.append(arrived)

    def arrived(event: Fired) -> None:
        waiting.append(event.value)
        if not serving:
            serve()

    def serve() -> None:
        nonlocal waiting, serving
        serving = True
        timeout(job.service, waiting).callbacks.append(updated)
        waiting = []

    def updated(event: Fired) -> None:
        nonlocal applied, serving
        serving = False
        applied += sum(len(job.groups[group]) for group in event.value)
        if applied >= job.gradients:
            done.succeed()
        for group in event.value:
            start(group)
        if waiting:
            serve()

    for group in range(len(job.groups)):
        start(group)
    env.run(until=done)
    return float(env.now)
