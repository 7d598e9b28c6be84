"""(b) SimPy without processes: timeouts that call functions, which is as lean as it gets.

The server needs no `Resource`: first in, first out, a gradient is done one service after the later
of its arrival and the gradient before it.
"""

from __future__ import annotations

from typing import Any

import simpy

from benchmarks.jobs import BACKUPS, BOUND, PULL, PUSH, Job
from benchmarks.watching import Watch

__all__ = ["asgd", "backup", "bsp", "cgp", "korel", "ssp"]

Fired = Any
"""A `simpy.Timeout`, whose value is what it is about: a rank, a race, a group or several."""


def bsp(job: Job) -> float:
    """An all-reduce when nobody is left, then everybody starts."""
    env, seconds, reduce = simpy.Environment(), job.seconds(), job.reduce(job.workers)
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
            start()

    start()
    env.run(until=done)
    return float(env.now)


def asgd(job: Job) -> float:
    """A timeout until a gradient arrives, and one until it is served."""
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
    """The same; who is too far ahead starts when the slowest have moved."""
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
    """The last but `BACKUPS` to arrive ends the race; what comes of it later is disregarded."""
    env, seconds = simpy.Environment(), job.seconds()
    timeout, done, free = env.timeout, env.event(), 0.0
    race = arrivals = applied = 0
    needed = job.workers - BACKUPS

    def start() -> None:
        nonlocal race, arrivals
        race += 1
        arrivals = 0
        for rank in range(job.workers):
            delay = PULL + seconds(rank, env.now + PULL) + PUSH
            timeout(delay, race).callbacks.append(arrived)

    def arrived(event: Fired) -> None:
        nonlocal arrivals, free
        if event.value != race or arrivals == needed:
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
    """A group arrives after its all-reduce; the server takes all that wait at once."""
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


def korel(job: Job) -> float:
    """As bsp, with a review at every update."""
    env, watch, reduce = simpy.Environment(), Watch(job), job.reduce(job.workers)
    timeout, done, version, left = env.timeout, env.event(), 0, 0

    def start() -> None:
        nonlocal left
        left = job.workers
        for rank in range(job.workers):
            timeout(watch.seconds(rank, env.now)).callbacks.append(finished)

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
            watch.review(version, env.now)
            start()

    start()
    env.run(until=done)
    return float(env.now)
