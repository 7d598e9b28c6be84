"""The parameter server's queue: one job at a time, first in first out."""

from __future__ import annotations

import enum
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simstrag.gradient import Closing, Gradient

__all__ = ["Fifo", "Job", "JobState"]


class JobState(enum.Enum):
    """Where a job of the server is."""

    WAITING = enum.auto()
    IN_SERVICE = enum.auto()
    DONE = enum.auto()
    WITHDRAWN = enum.auto()


@dataclass(slots=True, eq=False)
class Job:
    """Work of the server: one gradient, or the sum of a closing that a leader brings."""

    arrival: float
    rank: int
    gradient: Gradient | None
    closing: Closing | None
    state: JobState = JobState.WAITING

    @property
    def fuses(self) -> bool:
        return self.closing is not None and self.closing.fuse


class Fifo:
    """Jobs in order of (arrival, rank); the caller knows the clock."""

    def __init__(self) -> None:
        self.busy = False
        self._heap: list[tuple[float, int, int, Job]] = []
        self._serial = 0

    def __bool__(self) -> bool:
        """Whether somebody may be waiting."""
        return bool(self._heap)

    def put(self, job: Job) -> None:
        """A job begins to wait."""
        self._serial += 1
        heapq.heappush(self._heap, (job.arrival, job.rank, self._serial, job))

    def take(self) -> list[Job]:
        """Begin the next job, and with a fusing one all others that fuse; none if none waits."""
        heap = self._heap
        while heap and heap[0][3].state is JobState.WITHDRAWN:
            heapq.heappop(heap)
        if not heap:
            return []
        jobs = [heapq.heappop(heap)[3]]
        if jobs[0].fuses:  # leaders' jobs are never withdrawn
            jobs += [entry[3] for entry in sorted(heap) if entry[3].fuses]
            self._heap = [entry for entry in heap if not entry[3].fuses]
            heapq.heapify(self._heap)
        for job in jobs:
            job.state = JobState.IN_SERVICE
        self.busy = True
        return jobs

    def finish(self, jobs: list[Job]) -> None:
        """The jobs that `take` gave are done."""
        self.busy = False
        for job in jobs:
            job.state = JobState.DONE
