"""The phases of every rank from its first pull on, derived from the steps of one run.

A step row says when a rank computed, and how many seconds it waited and communicated around that.
A rank does one thing at a time, so these seconds give the moment of its next pull.  Their order
follows from the architecture and is checked against the times of the updates.  Where the order is
unknown, waiting comes first, and `Phases.assumed` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.analysis.derived.steps import RunSteps, suspicions, update_times
from simstrag.arrays import Bools, Floats, Ints
from simstrag.runs.run import Run
from simstrag.timing.contention import Contention
from simstrag.timing.timing import Timing
from simstrag.trace.slowdown import Piecewise

KINDS = ("pull", "switch", "compute", "push", "wait", "exchange", "wait")
"""Phase k of a step lies between its marks k and k + 1; a phase that a step lacks is empty."""
COMPUTE = KINDS.index("compute")
WAITING = [k for k, name in enumerate(KINDS) if name == "wait"]
COMMUNICATION = [k for k, name in enumerate(KINDS) if name in ("pull", "push", "exchange")]

TOLERANCE = 1e-9

COLLECTIVE = ("all-reduce", "model averaging")


class Spans(NamedTuple):
    """Phases of some kinds: begin and end in seconds, in order along each rank.

    row: of the step.
    """

    left: Floats
    right: Floats
    kind: Ints
    row: Ints

    def chosen(self, rows: Bools) -> Spans:
        return Spans(self.left[rows], self.right[rows], self.kind[rows], self.row[rows])


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

    @property
    def pushed(self) -> Floats:
        """When each gradient came to the server, where its service is known."""
        return self.marks[:, KINDS.index("push") + 1]

    def spans(self, *kinds: int) -> Spans:
        """The phases of these kinds, which are in order, of each step in turn."""
        left, right = (self.marks[:, [kind + k for kind in kinds]].ravel() for k in (0, 1))
        n = len(self.marks)
        return Spans(left, right, np.tile(kinds, n), np.repeat(np.arange(n), len(kinds)))

    def word(self, row: int, kind: int) -> str:
        """The name of a phase of a step."""
        if KINDS[kind] != "exchange":
            return KINDS[kind]
        return "communication" if self.assumed[row] else self.exchange


def phases_of(run: Run, steps: RunSteps, timing: Timing | None) -> Phases:
    """The phases of all recorded steps.

    Pushes and pulls are distinguished only with a timing, and not in an excerpt.
    """
    way, communication = run.summary["architecture"], steps.communication
    finish, begin = steps.finish, np.minimum(steps.start, steps.finish)
    follows, changed, ends = steps.follows, np.zeros_like(steps.amp), np.ones_like(steps.amp)
    changed[1:] = follows[1:] & (steps.amp[1:] != steps.amp[:-1])
    ends[:-1] = ~follows[1:]
    switch = 0.0 if timing is None else timing.step.amp_switch * changed
    pulled = got = np.minimum(steps.start - switch, finish)
    leave = np.where(ends, np.maximum(steps.gap_end, finish), np.roll(got, -1))
    served = np.full(len(finish), np.nan)
    first, second, third = finish, np.minimum(finish + steps.wait, leave), leave
    assumed = ~steps.kept
    exchange = "communication"
    if way in COLLECTIVE:
        exchange = "collective"
        leave = finish + steps.wait + communication
        pulled = got = np.where(follows, np.roll(leave, 1), begin)
        second, third, assumed = _reduced(run, steps)
    elif timing is not None and run.excerpt is None:
        pulled, leave = _pulls(run, steps, got)
        after = np.maximum(communication - (got - pulled), 0.0)
        second, third = finish + steps.wait, leave
        if way == "server":
            exchange = "service"
            first, second, third, assumed, served = _served(run, steps, after, timing)
            second = np.where(assumed, finish + steps.wait, second)
            third = np.where(assumed, leave, third)
            first = np.where(assumed, finish, first)
    marks = np.stack([pulled, got, begin, finish, first, second, third, leave], axis=1)
    for low, high in zip(np.flatnonzero(~follows), np.flatnonzero(ends) + 1, strict=True):
        own = marks[low:high]  # in order along a rank, which rounding may violate
        own[:] = np.maximum.accumulate(own.ravel()).reshape(own.shape)
    return Phases(marks, exchange, assumed, served)


def _arrivals(steps: RunSteps, timing: Timing) -> Floats:
    """When the gradient of each step comes to the server."""
    ranks_and_times = zip(steps.rank.tolist(), steps.finish.tolist(), strict=True)
    return np.array([timing.push(rank, time, loaded=True) for rank, time in ranks_and_times])


def _services(steps: RunSteps, arrival: Floats, job: float, served: Bools) -> Floats:
    """When the service of each gradient begins, first in, first out; NaN if it is not served."""
    begun, free = np.full(len(arrival), np.nan), 0.0
    queue = np.flatnonzero(served)
    for k in queue[np.lexsort((steps.rank[queue], arrival[queue]))].tolist():
        begun[k] = max(float(arrival[k]), free)
        free = float(begun[k]) + job
    return begun


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


def _pulls(run: Run, steps: RunSteps, got: Floats) -> tuple[Floats, Floats]:
    """Begin of each step's pull, and the rank's next pull or the end of the run.

    got: the end of each pull.

    Steps account for all of a rank's time, so a pull begins where the previous step's seconds end.
    """
    times = np.append(0.0, np.asarray(run.updates["time"], dtype=np.float64))
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
    return pulled, leave


def _served(
    run: Run, steps: RunSteps, after: Floats, timing: Timing
) -> tuple[Floats, Floats, Floats, Bools, Floats]:
    """End of each push, begin and end of service; whether these are unknown; all services.

    after: seconds of communication after computing.  A gradient with the seconds of a push and a
    service was served.  One with those of a push alone is doubtful: it may have been dropped in
    service.  If no gradient is doubtful, the queue is known.  Otherwise the services of an update
    are known only if it happened exactly when its last computed service ended.
    """
    arrival = _arrivals(steps, timing)
    pushing, job, times = arrival - steps.finish, timing.server.job, run.updates["time"]
    entered = steps.entered
    through = (np.abs(after - pushing - job) <= TOLERANCE) & ~steps.kept
    arrived = (after >= pushing - TOLERANCE) & ~entered & ~through & ~steps.kept
    at_end = arrived & steps.last
    begun = _services(steps, arrival, job, through | at_end)
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


class SlowdownChange(NamedTuple):
    """A change of the slowdown of one resource of one rank; time in seconds."""

    time: float
    rank: int
    resource: str
    before: float
    after: float


def slowdown_changes(
    contention: Contention, start: float, end: float, before: float = math.nan
) -> Iterator[SlowdownChange]:
    """The changes of slowdown between two times, by rank and resource.

    before: the slowdown until the start; NaN makes every first value a change.
    """
    for (rank, resource), f in sorted(contention.slowdowns.items()):
        last = before
        for low, _, factor in segments(f, start, end):
            if factor != last:
                yield SlowdownChange(low, rank, resource, last, factor)
            last = factor


def segments(f: Piecewise, start: float, end: float) -> Iterator[tuple[float, float, float]]:
    """(from, to, value) pieces of a step function between two times.

    >>> list(segments(Piecewise((0.0, 2.0), (1.0, 3.0)), 1.0, 4.0))
    [(1.0, 2.0, 1.0), (2.0, 4.0, 3.0)]
    """
    period = f.period
    cycle = math.floor(start / period) if period < math.inf else 0
    while True:
        base = cycle * period if cycle else 0.0
        ends = (*f.times[1:], period)
        for begin, stop, value in zip(f.times, ends, f.values, strict=True):
            low, high = max(base + begin, start), min(base + stop, end)
            if low < high:
                yield low, high, value
        cycle += 1
        if cycle * period >= end:
            return


def moments_of(run: Run, phases: Phases, timing: Timing | None) -> Moments:
    """All moments of a run, by their beginning."""
    times, spans = micro(run.updates["time"]), phases.spans(*range(len(KINDS)))
    every = [Moments(micro(spans.left), micro(spans.right), spans.kind, spans.row)]

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
    contention = Contention() if timing is None else timing.contention
    end = float(run.updates["time"][-1])
    changes = micro([c.time for c in slowdown_changes(contention, 0.0, end)])
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
