"""The phases of every rank from its first pull on, derived from the steps of one run.

A step row says when a rank computed, and how many seconds it waited and communicated around that.
A rank does one thing at a time, so these seconds give the moment of its next pull.  Their order
follows from the architecture and is checked against the times of the updates.  Where the order is
unknown, waiting comes first, and `Phases.assumed` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.analysis.derived.steps import (
    Bools,
    Floats,
    Ints,
    RunSteps,
    suspicions,
    update_times,
)
from simstrag.analysis.derived.timeline_excerpt import segments
from simstrag.analysis.derived.waiting import TOLERANCE, arrivals, services
from simstrag.runs.run import Run
from simstrag.timing.timing import Timing

KINDS = ("pull", "switch", "compute", "push", "wait", "exchange", "wait")
"""Phase k of a step lies between its marks k and k + 1; a phase that a step lacks is empty."""

COLLECTIVE = ("all-reduce", "model averaging")


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """The phases of n steps, in the order of `Steps`.

    marks: seconds, shape (n, 8), in order along each rank.
    exchange: the kind of the phase of that name: collective, service (at the server), or
    communication where several kinds are not distinguished.
    assumed: whether the order after computing is unknown; the exchange is communication then.
    served: when the service of each gradient began; NaN without service, or where it is unknown.
    """

    marks: Floats
    exchange: str
    assumed: Bools
    served: Floats

    @property
    def has_jobs(self) -> bool:
        """Whether the services of any gradients are known."""
        return not np.isnan(self.served).all()


def phases_of(run: Run, steps: RunSteps, timing: Timing | None) -> Phases:
    """The phases of all recorded steps; pushes and pulls are distinguished only with a timing."""
    way, communication, last = run.summary["architecture"], steps.communication, steps.last
    finish, begin = steps.finish, np.minimum(steps.start, steps.finish)
    pulled, got = begin.copy(), begin.copy()
    leave = np.append(begin[1:], 0.0)
    leave[last] = np.maximum(steps.gap_end, finish)[last]
    served = np.full(len(finish), np.nan)
    first, second, third = finish, np.minimum(finish + steps.wait, leave), leave
    assumed = ~steps.kept
    exchange = "communication"
    if way in COLLECTIVE:
        exchange = "collective"
        leave = finish + steps.wait + communication
        pulled[1:] = got[1:] = np.where(last[:-1], begin[1:], leave[:-1])
        second, third, assumed = _reduced(run, steps)
    elif timing is not None:
        pulled, got, leave = _pulls(run, steps, timing.step.amp_switch)
        after = np.maximum(communication - (got - pulled), 0.0)
        second, third = finish + steps.wait, leave
        if way == "server":
            exchange = "service"
            first, second, third, assumed, served = _served(run, steps, after, timing)
            second = np.where(assumed, finish + steps.wait, second)
            third = np.where(assumed, leave, third)
            first = np.where(assumed, finish, first)
    marks = np.stack([pulled, got, begin, finish, first, second, third, leave], axis=1)
    ends = np.flatnonzero(last) + 1
    for low, high in zip(np.append(0, ends[:-1]), ends, strict=True):
        own = marks[low:high]  # in order along a rank, which rounding may violate
        own[:] = np.maximum.accumulate(own.ravel()).reshape(own.shape)
    return Phases(marks, exchange, assumed, served)


def _reduced(run: Run, steps: RunSteps) -> tuple[Floats, Floats, Bools]:
    """Begin and end of each gradient's collective, and whether they are unknown.

    A collective ends with its update; a rank that waits after that is blocked.
    """
    wait, entered, communication = steps.wait, steps.entered, steps.communication
    made = update_times(run, steps.applied)
    before = np.where(entered, made - communication - steps.finish, wait)
    known = (before >= -TOLERANCE) & (before <= wait + TOLERANCE)
    known &= entered | (communication <= TOLERANCE)
    start = steps.finish + np.where(known, np.clip(before, 0.0, wait), wait)
    return start, start + communication, ~known


def _pulls(run: Run, steps: RunSteps, amp_switch: float) -> tuple[Floats, Floats, Floats]:
    """Begin and end of each step's pull, and the rank's next pull or the end of the run.

    Steps account for all of a rank's time, so a pull begins where the previous step's seconds end.
    """
    times = np.append(0.0, np.asarray(run.updates["time"], dtype=np.float64))
    changes = np.append(False, (steps.rank[1:] == steps.rank[:-1]) & np.diff(steps.amp))
    got = np.minimum(steps.start - amp_switch * changes, steps.finish)
    pulled, leave = np.empty_like(got), np.empty_like(got)
    rank, free = -1, 0.0
    columns = (steps.rank, got, steps.finish, steps.wait, steps.communication, times[steps.version])
    for k, (r, end, finish, wait, busy, since) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if r != rank:
            rank, free = r, since if since <= end <= since + busy + TOLERANCE else end
        pulled[k] = min(free, end)
        leave[k] = free = finish + wait + max(busy - (end - pulled[k]), 0.0)
    return pulled, got, leave


def _served(
    run: Run, steps: RunSteps, after: Floats, timing: Timing
) -> tuple[Floats, Floats, Floats, Bools, Floats]:
    """End of each push, begin and end of service; whether these are unknown; all services.

    after: seconds of communication after computing.  A gradient with the seconds of a push and a
    service was served.  One with those of a push alone is doubtful: it may have been dropped in
    service.  If no gradient is doubtful, the queue is known.  Otherwise the services of an update
    are known only if it happened exactly when its last computed service ended.
    """
    arrival = arrivals(steps, timing)
    pushing, job, times = arrival - steps.finish, timing.server.job, run.updates["time"]
    entered = steps.entered
    through = (np.abs(after - pushing - job) <= TOLERANCE) & ~steps.kept
    arrived = (after >= pushing - TOLERANCE) & ~entered & ~through & ~steps.kept
    at_end = arrived & steps.last
    begun = services(steps, arrival, job, through | at_end)
    done = np.zeros(len(times))
    rows = entered & through
    np.maximum.at(done, steps.applied[rows] - 1, begun[rows] + job)
    on_time = np.isclose(done, times, rtol=TOLERANCE, atol=TOLERANCE)
    certain = not (arrived & ~at_end).any() and bool((done <= times)[~on_time].all())
    through &= certain | (entered & on_time[steps.applied - 1])
    called_off = ~entered & (after <= pushing + TOLERANCE) & ~through
    first = np.where(through, arrival, steps.finish + after)
    second, third = np.where(through, begun, first), np.where(through, begun + job, first)
    return first, second, third, ~(through | called_off), np.where(through, begun, np.nan)


# -- moments -------------------------------------------------------------------------------------

JOB, SUSPICION, UPDATE, DECISION, CHANGE = range(len(KINDS), len(KINDS) + 5)
"""Kinds besides the phases of steps: services, suspicions, updates, changed plans, slowdowns."""
WAITING = [k for k, name in enumerate(KINDS) if name == "wait"]


class Moments(NamedTuple):
    """Begin and end in whole microseconds, the kind, and the row of its table.

    Updates, decisions and slowdowns take no time.
    """

    left: Ints
    right: Ints
    kind: Ints
    row: Ints

    def chosen(self, rows: Bools | Ints) -> Moments:
        return Moments(*(column[rows] for column in self))

    def within(self, start: int, end: int) -> Moments:
        """The moments between two times, both included."""
        return self.chosen((self.left <= end) & (self.right >= start))

    def most_waited(self, room: int, start: int) -> tuple[int, int]:
        """The window of at most `room` beginnings with the most waiting; the first of equals.

        Waiting counts where it begins, and nothing begins before `start`.  There must be more
        moments than `room`.
        """
        left = np.maximum(self.left, start)
        durations = np.where(np.isin(self.kind, WAITING), self.right - left, 0)
        waited = np.append(0, np.cumsum(durations))
        first = np.arange(len(left) - room)
        fresh = np.append(True, np.diff(left[first]) > 0)  # equal beginnings stay together
        sums = np.where(fresh, waited[first + room] - waited[first], -1)
        best = int(np.argmax(sums))
        begin = int(left[best])
        return begin, max(int(left[best + room]) - 1, begin)


class Slowdown(NamedTuple):
    """The factor by which a resource of a rank is slowed from a time in microseconds on."""

    rank: int
    resource: str
    time: int
    factor: float


def slowdowns(timing: Timing | None, start: int, end: int) -> Iterator[Slowdown]:
    """The slowdowns at a time in microseconds, and their changes until another time."""
    known = {} if timing is None else timing.contention.slowdowns
    for rank, resource in sorted(known):
        before = None
        for low, _, factor in segments(known[rank, resource], start / 1e6, end / 1e6):
            if factor != before:
                yield Slowdown(rank, resource, int(micro(low)), factor)
            before = factor


def moments_of(run: Run, phases: Phases, timing: Timing | None) -> Moments:
    """All moments of a run, by their beginning."""
    marks, times = micro(phases.marks), micro(run.updates["time"])
    n, parts = len(marks), len(KINDS)
    phase, row = np.tile(np.arange(parts), n), np.repeat(np.arange(n), parts)
    every = [Moments(marks[:, :-1].ravel(), marks[:, 1:].ravel(), phase, row)]

    def add(kind: int, begun: Ints, ended: Ints, row: Ints | None = None) -> None:
        rows = np.arange(len(begun)) if row is None else row
        every.append(Moments(begun, ended, np.full(len(begun), kind), rows))

    if timing is not None:
        rows = np.flatnonzero(~np.isnan(phases.served))
        begun = phases.served[rows]
        add(JOB, micro(begun), micro(begun + timing.server.job), rows)
    held = suspicions(run)
    add(SUSPICION, micro([s.start for s in held]), micro([s.end for s in held]))
    every = [slices.chosen(slices.right > slices.left) for slices in every]
    changes = np.array([s.time for s in slowdowns(timing, 0, int(times[-1]))], dtype=np.int64)
    decided = micro([] if run.decisions is None else run.decisions["time"])
    for kind, instants in ((UPDATE, times), (DECISION, decided), (CHANGE, changes)):
        add(kind, instants, instants)
    joined = Moments(*(np.concatenate(columns) for columns in zip(*every, strict=True)))
    return joined.chosen(np.argsort(joined.left, kind="stable"))


def micro(seconds: npt.ArrayLike) -> Ints:
    """Seconds in whole microseconds.

    >>> micro([0.1, 2.5e-6, 1.0]).tolist()
    [100000, 2, 1000000]
    """
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e6).astype(np.int64)
