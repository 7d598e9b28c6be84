"""(a) SimPy as its documentation teaches it: a generator process per worker.

Barriers are events, the parameter server is a `Resource` (first in, first out), and a cancelled
step is an interrupt.  Consecutive delays of a worker are one timeout if no event can come between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from benchmarks.jobs import BACKUPS, BOUND, PULL, PUSH, Job, KorelReviews, StepClock

__all__ = ["asgd", "backup", "bsp", "cgp", "korel", "ssp"]

Process = Generator[simpy.Event, Any, None]


def bsp(job: Job) -> float:
    """All workers wait at a barrier; the last arrival does the all-reduce."""
    return _lockstep(job, job.seconds())


def korel(job: Job) -> float:
    """Bsp in which the policy itself chooses each rank's precision at every update."""
    reviews = KorelReviews(job)
    return _lockstep(job, reviews.seconds, reviews.review)


def _lockstep(
    job: Job, seconds: StepClock, review: Callable[[int, float], None] | None = None
) -> float:
    env, reduce = simpy.Environment(), job.reduce(job.workers)
    done, opened = env.event(), env.event()
    arrived = version = 0

    def worker(rank: int) -> Process:
        nonlocal opened, arrived, version
        while True:
            yield env.timeout(seconds(rank, env.now))
            arrived += 1
            if arrived < job.workers:
                yield opened
                continue
            yield env.timeout(reduce)
            arrived = 0
            version += 1
            if version == job.rounds:
                done.succeed()
            if review:
                review(version, env.now)
            opened.succeed()
            opened = env.event()

    for rank in range(job.workers):
        env.process(worker(rank))
    env.run(until=done)
    return float(env.now)


def asgd(job: Job) -> float:
    """Each worker queues at the server, then computes again."""
    env, seconds = simpy.Environment(), job.seconds()
    server, done = simpy.Resource(env), env.event()
    applied = 0

    def worker(rank: int) -> Process:
        nonlocal applied
        while True:
            yield env.timeout(PULL + seconds(rank, env.now + PULL) + PUSH)
            with server.request() as turn:
                yield turn
                yield env.timeout(job.service)
            applied += 1
            if applied == job.gradients:
                done.succeed()

    for rank in range(job.workers):
        env.process(worker(rank))
    env.run(until=done)
    return float(env.now)


def ssp(job: Job) -> float:
    """Asgd in which a worker beyond the bound waits until the slowest workers have moved."""
    env, seconds = simpy.Environment(), job.seconds()
    server, done, moved = simpy.Resource(env), env.event(), env.event()
    counts, least, slowest, applied = [0] * job.workers, 0, job.workers, 0

    def worker(rank: int) -> Process:
        nonlocal moved, least, slowest, applied
        while True:
            yield env.timeout(PULL + seconds(rank, env.now + PULL) + PUSH)
            with server.request() as turn:
                yield turn
                yield env.timeout(job.service)
            applied += 1
            if applied == job.gradients:
                done.succeed()
            counts[rank] += 1
            if counts[rank] == least + 1:
                slowest -= 1
                if slowest == 0:
                    least += 1
                    slowest = counts.count(least)
                    moved.succeed()
                    moved = env.event()
            while counts[rank] - least > BOUND:
                yield moved

    for rank in range(job.workers):
        env.process(worker(rank))
    env.run(until=done)
    return float(env.now)


def backup(job: Job) -> float:
    """The last arrival but `BACKUPS` interrupts the other workers; its service ends the round."""
    env, seconds = simpy.Environment(), job.seconds()
    server, done, updated = simpy.Resource(env), env.event(), env.event()
    computing: set[int] = set()
    applied = 0

    def worker(rank: int) -> Process:
        nonlocal updated, applied
        while True:
            computing.add(rank)
            try:
                yield env.timeout(PULL + seconds(rank, env.now + PULL) + PUSH)
            except simpy.Interrupt:
                yield updated
                continue
            computing.remove(rank)
            closes = len(computing) == BACKUPS
            if closes:
                for loser in computing:
                    workers[loser].interrupt()
            with server.request() as turn:
                yield turn
                yield env.timeout(job.service)
            if not closes:
                yield updated
                continue
            applied += job.workers - BACKUPS
            if applied >= job.gradients:
                done.succeed()
            updated.succeed()
            updated = env.event()

    workers = [env.process(worker(rank)) for rank in range(job.workers)]
    env.run(until=done)
    return float(env.now)


@dataclass
class Group:
    """Workers of one group of cgp, which all-reduce among themselves."""

    size: int
    updated: simpy.Event
    arrived: int = 0


def cgp(job: Job) -> float:
    """A barrier per group; groups that wait at the server together become one update."""
    env, seconds = simpy.Environment(), job.seconds()
    queue, done = simpy.Store(env), env.event()
    applied = 0

    def worker(rank: int, group: Group) -> Process:
        while True:
            yield env.timeout(PULL + seconds(rank, env.now + PULL))
            group.arrived += 1
            if group.arrived == group.size:
                group.arrived = 0
                yield env.timeout(job.reduce(group.size) + PUSH)
                queue.put(group)
            yield group.updated

    def server() -> Process:
        nonlocal applied
        while True:
            fused = [(yield queue.get()), *queue.items]
            queue.items.clear()
            yield env.timeout(job.service)
            for group in fused:
                applied += group.size
                group.updated.succeed()
                group.updated = env.event()
            if applied >= job.gradients:
                done.succeed()

    env.process(server())
    for ranks in job.groups:
        group = Group(len(ranks), env.event())
        for rank in ranks:
            env.process(worker(rank, group))
    env.run(until=done)
    return float(env.now)
