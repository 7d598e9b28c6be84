"""(c) One loop around `heapq` per policy, without a library or a log.

Every event of a rank is a tuple on the heap.  The server is first in, first out, so the end of a
gradient's service is known at its arrival.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from benchmarks.jobs import BACKUPS, BOUND, PULL, PUSH, Job, KorelReviews

__all__ = ["asgd", "backup", "bsp", "cgp", "korel", "ssp"]

FINISHED, ARRIVED, SERVED = range(3)


def bsp(job: Job) -> float:
    """All finishes of a round go through the heap; the last one opens the barrier."""
    end, reduce, now = job.ends(), job.reduce(job.workers), 0.0
    heap: list[tuple[float, int]] = []
    for _ in range(job.rounds):
        for rank in range(job.workers):
            heappush(heap, (end(rank, now), rank))
        while heap:
            now, _ = heappop(heap)
        now += reduce
    return now


def asgd(job: Job) -> float:
    """The next arrival of a rank replaces its last one on the heap."""
    end, service, free = job.ends(), job.service, 0.0
    heap = [(end(rank, PULL) + PUSH, rank) for rank in range(job.workers)]
    heapify(heap)
    for _ in range(job.gradients):
        now, rank = heap[0]
        free = (now if now > free else free) + service
        heapreplace(heap, (end(rank, free + PULL) + PUSH, rank))
    return free


def ssp(job: Job) -> float:
    """Asgd in which a rank beyond the bound starts when the slowest ranks have moved."""
    end, service, free = job.ends(), job.service, 0.0
    heap = [(end(rank, PULL) + PUSH, rank) for rank in range(job.workers)]
    heapify(heap)
    counts, least, slowest = [0] * job.workers, 0, job.workers
    blocked: list[int] = []
    for _ in range(job.gradients):
        now, rank = heappop(heap)
        free = (now if now > free else free) + service
        counts[rank] += 1
        blocked.append(rank)
        if counts[rank] == least + 1:
            slowest -= 1
            if slowest == 0:
                least += 1
                slowest = counts.count(least)
                for waiting in blocked:
                    heappush(heap, (end(waiting, free + PULL) + PUSH, waiting))
                blocked.clear()
                continue
        if counts[rank] - least <= BOUND:
            heappush(heap, (end(blocked.pop(), free + PULL) + PUSH, rank))
    return free


def backup(job: Job) -> float:
    """A round ends at the last arrival but `BACKUPS`; later gradients are dropped."""
    end, service, free = job.ends(), job.service, 0.0
    needed, applied = job.workers - BACKUPS, 0
    heap: list[tuple[float, int]] = []
    while applied < job.gradients:
        start = free + PULL
        heap.clear()
        for rank in range(job.workers):
            heappush(heap, (end(rank, start) + PUSH, rank))
        for _ in range(needed):
            now, _ = heappop(heap)
            free = (now if now > free else free) + service
        applied += needed
    return free


def cgp(job: Job) -> float:
    """Three kinds of events: a rank finishes, a group arrives at the server, a service ends."""
    end, service, applied, now, serving = job.ends(), job.service, 0, 0.0, False
    reduce = [job.reduce(len(ranks)) for ranks in job.groups]
    left = [len(ranks) for ranks in job.groups]
    heap = [
        (end(rank, PULL), FINISHED, group)
        for group, ranks in enumerate(job.groups)
        for rank in ranks
    ]
    heapify(heap)
    waiting: list[int] = []
    served: list[int] = []
    while applied < job.gradients:
        now, kind, group = heappop(heap)
        if kind == FINISHED:
            left[group] -= 1
            if left[group] == 0:
                heappush(heap, (now + reduce[group] + PUSH, ARRIVED, group))
            continue
        if kind == ARRIVED:
            waiting.append(group)
        else:
            serving = False
            for group in served:
                ranks = job.groups[group]
                applied += len(ranks)
                left[group] = len(ranks)
                for rank in ranks:
                    heappush(heap, (end(rank, now + PULL), FINISHED, group))
        if waiting and not serving:
            serving, served, waiting = True, waiting, []
            heappush(heap, (now + service, SERVED, -1))
    return now


def korel(job: Job) -> float:
    """Bsp with a review at every update."""
    reviews, reduce, now = KorelReviews(job), job.reduce(job.workers), 0.0
    heap: list[tuple[float, int]] = []
    for version in range(1, job.rounds + 1):
        for rank in range(job.workers):
            heappush(heap, (reviews.end(rank, now), rank))
        while heap:
            now, _ = heappop(heap)
        now += reduce
        reviews.review(version, now)
    return now
