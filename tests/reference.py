"""The reference engine: docs/semantics.md written down a second time, as plainly as possible.

It judges `simstrag.engine`, from which it shares nothing but the arithmetic of rule 0 (`Timing`).
There is no queue of events: whatever may come next is listed anew after every event, and the least
by (time, class, key) of rule 15 happens.  Numbers in brackets are rules.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from simstrag.errors import InputError, StallError
from simstrag.policy import WINDOW, Late, Plan, Policy, Precision, Quorum, Via, View
from simstrag.scenario import Scenario

FINISH, CLOSING, END, SERVE = 0, 1, 2, 4  # the classes of rule 15


@dataclass(frozen=True)
class Entry:
    """One update of n_own gradients; samples so far; staleness by member."""

    time: float
    version: int
    members: tuple[int, ...]
    n_own: int
    samples: int
    staleness: dict[int, int]
    progress: float


@dataclass
class Result:
    """What a run did.

    starts: (rank, step, version pulled, reduced precision, start of computing), in order.
    plans: (version, plan) of every review.
    fates: (update or None, rank, step, applied or dropped or aborted), in order.
    """

    log: list[Entry] = field(default_factory=list)
    starts: list[tuple[int, int, int, bool, float]] = field(default_factory=list)
    plans: list[tuple[int, Plan]] = field(default_factory=list)
    fates: list[tuple[int | None, int, int, str]] = field(default_factory=list)
    started: int = 0
    applied: int = 0
    dropped: int = 0
    aborted: int = 0
    in_flight: int = 0
    makespan: float = 0.0
    mean_staleness: float = 0.0
    staleness_by_rank: list[float | None] = field(default_factory=list)


@dataclass(eq=False)
class Gradient:
    """One step, from its pull to the fate of its gradient.

    state: running (its pull included), pushing, ready (arrived, unclosed), riding (finished, of a
    rider), closed (in communication), gone (applied, dropped or aborted).
    pulled, seen: time of its pull, samples applied before it.  got: when the pull ended.
    push: seconds spent pushing, until arrival or until the push was called off.
    mark: the DROP closing it was late for, until it is filed.
    aboard: of a rider, the parent's gradient it is bound to.
    """

    rank: int
    k: int
    version: int
    pulled: float
    seen: int
    amp: bool
    got: float
    start: float
    finish: float
    state: str = "running"
    arrival: float = math.nan
    push: float = 0.0
    job: Job | None = None
    mark: Closing | None = None
    aboard: Gradient | None = None
    closing: Closing | None = None


@dataclass(eq=False)
class Job:
    """Work of the server.  state: waiting, serving or done."""

    place: tuple[float, int]
    owner: Gradient | Closing
    state: str = "waiting"
    end: float = math.nan
    number: int = -1


@dataclass(eq=False)
class Closing:
    """A closed quorum on its way to its update.

    state: reducing, pushing (of LEADER), jobs (waits for the server), ready (nothing to wait for).
    """

    via: Via
    fuse: bool
    contributors: list[Gradient]
    riders: list[Gradient]
    state: str = "jobs"
    end: float = math.nan
    number: int = -1
    updated: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(g.rank for g in self.contributors))


@dataclass
class Known:
    """One local time as a policy sees it."""

    seconds: float
    amp: bool
    bound: bool
    communication: float


def simulate(scenario: Scenario, policy: Policy, seed: int = 0) -> Result:
    """Run `policy` on `scenario` until its limit."""
    return _Run(scenario, copy.deepcopy(policy), seed).run()


class _Run:
    def __init__(self, scenario: Scenario, policy: Policy, seed: int) -> None:
        n = scenario.workers
        self.scenario, self.policy, self.n = scenario, policy, n
        self.timing = scenario.timing(seed)
        self.result = Result()
        self.now, self.version, self.samples, self.over = 0.0, 0, 0, False
        self.plan: Plan | None = None
        self.asked = (0, 0, 0.0)  # version, samples and time of the last review
        self.work: list[Gradient | None] = [None] * n
        self.awaits: list[Closing | None] = [None] * n  # dropped or aborted, until its update
        self.steps = [0] * n
        self.last_amp: list[bool | None] = [None] * n
        self.counts = [0] * n  # of the bound
        self.blocked: set[int] = set()
        self.closings: list[Closing] = []
        self.jobs: list[Job] = []  # those waiting
        self.serving: list[Job] = []  # the one in service, and those fused with it
        self.numbers = 0
        self.known: list[list[Known]] = [[] for _ in range(n)]
        self.stalenesses: list[list[int]] = [[] for _ in range(n)]
        self.booked = 0.0
        self.open: list[int] = []  # of the open visible update: samples each gradient missed

    # The loop

    def run(self) -> Result:
        self.ask()
        self.settle({})
        while not self.over:
            event = min(self.events(), key=lambda e: e[:3], default=None)
            if event is None:
                raise StallError(
                    f"{self.policy!r} with {self.plan} stalls at {self.now} s: nothing can happen; "
                    f"blocked ranks: {sorted(self.blocked)}"
                )
            assert event[0] >= self.now
            self.now = event[0]
            self.check_trace()
            event[3]()
        result = self.result
        result.in_flight = result.started - result.applied - result.dropped - result.aborted
        result.makespan = self.makespan()
        result.mean_staleness = sum(map(sum, self.stalenesses)) / result.applied
        result.staleness_by_rank = [sum(s) / len(s) if s else None for s in self.stalenesses]
        return result

    def check_trace(self) -> None:
        contention = self.timing.contention  # [8]
        past = bool(contention.slowdowns) and self.now > contention.end
        if past and contention.trace_end == "error":
            raise InputError(f"the trace ends at {contention.end} s, before {self.now} s")

    def events(self) -> Iterator[tuple[float, int, int, Callable[[], None]]]:
        for g in self.work:
            if g is not None and g.state == "running":
                yield g.finish, FINISH, g.rank, partial(self.finished, g)
            if g is not None and g.state == "pushing":
                yield g.arrival, FINISH, g.rank, partial(self.arrived, g)
        for c in self.closings:
            if c.state == "pushing":
                yield c.end, FINISH, c.ranks[0], partial(self.queue, c)
            if c.state == "reducing":
                yield c.end, END, c.number, partial(self.reduced, c)
            if c.state == "ready":
                yield c.end, END, c.number, partial(self.update, [c])
        for index, quorum in enumerate(self.quorums):
            if len(self.ready(quorum)) >= quorum.needed:
                yield self.now, CLOSING, index, partial(self.close, quorum)
        if self.serving:
            yield self.serving[0].end, END, self.serving[0].number, self.served
        elif self.jobs:
            yield self.now, SERVE, 0, self.serve

    # Who is what under the plan in force

    @property
    def quorums(self) -> tuple[Quorum, ...]:
        assert self.plan is not None
        return self.plan.quorums

    def quorum_of(self, rank: int) -> Quorum | None:
        for quorum in self.quorums:
            if rank in quorum.members or rank in dict(quorum.riders):
                return quorum
        return None

    def parent_of(self, rank: int) -> int | None:
        for quorum in self.quorums:
            for child, parent in quorum.riders:
                if child == rank:
                    return parent
        return None

    def named(self) -> set[int]:
        return {rank for rank in range(self.n) if self.quorum_of(rank) is not None}

    def riding_with(self, parent: int) -> list[Gradient]:
        """The finished, unclosed gradients of its children, aboard or waiting for it [18]."""
        riding = [g for g in self.work if g is not None and g.state == "riding"]
        return [g for g in riding if self.parent_of(g.rank) == parent]

    def ready(self, quorum: Quorum) -> list[Gradient]:
        found = [self.work[rank] for rank in quorum.members]
        ready = [g for g in found if g is not None and g.state == "ready"]
        return sorted(ready, key=lambda g: (g.arrival, g.rank))

    # A step and its gradient

    def start(self, rank: int, released_by: Closing | None) -> None:
        assert self.plan is not None
        self.booked, self.open = self.progress(), []  # any pull ends the visible update [25]
        got = self.pull_end(rank, released_by)
        amp = self.precision(rank) is Precision.AMP
        begin = got
        if self.last_amp[rank] not in (None, amp):
            begin = got + self.timing.step.amp_switch  # [5]
        k = self.steps[rank]
        finish = self.timing.compute(rank, k, begin, amp)
        self.work[rank] = Gradient(
            rank, k, self.version, self.now, self.samples, amp, got, begin, finish
        )
        self.last_amp[rank] = amp
        self.steps[rank] += 1
        self.result.started += 1
        self.result.starts.append((rank, k, self.version, amp, begin))

    def precision(self, rank: int) -> Precision:
        assert self.plan is not None
        assert isinstance(self.plan.precision, tuple)
        return self.plan.precision[rank]

    def pull_end(self, rank: int, released_by: Closing | None) -> float:
        """When the pull of a start ends: by the update that released it, else by the plan [11]."""
        if released_by is not None:
            via, leader = released_by.via, released_by.ranks[0]
        else:
            quorum = self.quorum_of(rank)
            assert quorum is not None
            via, leader = quorum.via, quorum.members[0]
        if via is Via.ALLREDUCE:
            return self.now
        return self.timing.pull(rank if via is Via.SERVER else leader, self.now)

    def finished(self, g: Gradient) -> None:
        quorum = self.quorum_of(g.rank)
        if quorum is None:
            self.drop(g, None)
            self.settle({})
        elif self.parent_of(g.rank) is not None:
            g.state = "riding"
        elif g.mark is not None and quorum.late is Late.DROP:
            self.drop(g, g.mark)
            self.settle({})
        else:
            g.mark = None
            for rider in self.riding_with(g.rank):
                rider.aboard = rider.aboard or g
            if quorum.via is Via.SERVER:
                g.state, g.arrival = "pushing", self.timing.push(g.rank, self.now)
            else:
                g.state, g.arrival = "ready", self.now

    def arrived(self, g: Gradient) -> None:
        quorum = self.quorum_of(g.rank)
        assert quorum is not None
        assert quorum.via is Via.SERVER
        g.push = self.now - g.finish
        if g.mark is not None and quorum.late is Late.DROP:
            self.drop(g, g.mark)
            self.settle({})
        else:
            g.state, g.job = "ready", Job((self.now, g.rank), g)
            self.jobs.append(g.job)

    def drop(self, g: Gradient, until: Closing | None) -> None:
        """Throw a gradient away; its rank is released at the update of `until`, else now [13]."""
        self.result.dropped += 1
        self.counts[g.rank] += 1
        self.leave(g, g.finish - g.start, False, "dropped")
        if until is not None and not until.updated:
            self.awaits[g.rank] = until

    def abort(self, g: Gradient, by: Closing) -> None:
        self.result.aborted += 1
        elapsed = max(0.0, min(self.now, g.finish) - g.start)
        self.leave(g, elapsed, self.now < g.finish, "aborted")
        self.awaits[g.rank] = by

    def leave(self, g: Gradient, seconds: float, bound: bool, fate: str) -> None:
        """It has met its fate: its local time and communication become known [7]."""
        update = self.version + 1 if fate == "applied" else None
        self.result.fates.append((update, g.rank, g.k, fate))
        pull = min(self.now, g.got) - g.pulled
        self.withdraw(g)
        self.known[g.rank].append(Known(seconds, g.amp, bound, pull + g.push))
        g.state, self.work[g.rank] = "gone", None
        for rider in self.work:
            if rider is not None and rider.aboard is g:
                rider.aboard = None

    def withdraw(self, g: Gradient) -> None:
        """Call off its push, take back its job if that still waits; one in service goes on."""
        if g.state == "pushing":
            g.push = self.now - g.finish
        if g.job is not None and g.job.state == "waiting":
            self.jobs.remove(g.job)
            g.job = None

    # From a closing to its update

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def close(self, quorum: Quorum) -> None:
        assert self.plan is not None
        chosen = self.ready(quorum)[: quorum.needed]
        riders = [g for g in self.work if g is not None and g.aboard in chosen]
        closing = Closing(quorum.via, self.plan.fuse, chosen, riders)
        self.closings.append(closing)
        for g in (*chosen, *riders):
            g.state, g.closing = "closed", closing
        late = [self.work[rank] for rank in quorum.members]
        for other in late:
            if other is None or other.state not in ("running", "pushing", "ready"):
                continue
            if quorum.late is Late.ABORT:
                self.abort(other, closing)
            elif quorum.late is Late.DROP and other.state == "ready":
                self.drop(other, closing)
            elif quorum.late is Late.DROP:
                other.mark = closing
        if quorum.via is not Via.SERVER:
            closing.state, closing.number = "reducing", self.number()
            closing.end = self.timing.reduce(closing.ranks, self.now)
        elif self.served_all(closing):
            closing.state, closing.number, closing.end = "ready", self.number(), self.now
        self.settle({})

    def served_all(self, closing: Closing) -> bool:
        jobs = [g.job for g in closing.contributors]
        return all(job is not None and job.state == "done" for job in jobs)

    def reduced(self, c: Closing) -> None:
        if c.via is Via.ALLREDUCE:
            self.update([c])
            return
        c.end = self.timing.push(c.ranks[0], self.now)
        if c.end > self.now:
            c.state = "pushing"
        else:
            self.queue(c)

    def queue(self, c: Closing) -> None:
        c.state = "jobs"
        self.jobs.append(Job((self.now, c.ranks[0]), c))

    def serve(self) -> None:
        head = min(self.jobs, key=lambda job: job.place)
        self.serving = [job for job in self.jobs if job is head or self.fuse(head, job)]
        for job in self.serving:
            self.jobs.remove(job)
            job.state = "serving"
            job.end = self.now + self.timing.server.service
        number = self.number()
        self.serving.sort(key=lambda job: job.place)
        self.serving[0].number = number

    @staticmethod
    def fuse(head: Job, job: Job) -> bool:
        return all(isinstance(j.owner, Closing) and j.owner.fuse for j in (head, job))

    def served(self) -> None:
        jobs, self.serving = self.serving, []
        for job in jobs:
            job.state = "done"
        g = jobs[0].owner
        if isinstance(g, Closing):
            self.update([job.owner for job in jobs if isinstance(job.owner, Closing)])
            return
        c = g.closing  # None where the gradient is unclosed, withdrawn or gone
        if g.state == "closed" and c is not None and c.via is Via.SERVER and self.served_all(c):
            self.update([c])

    def update(self, closings: list[Closing]) -> None:
        released: dict[int, Closing] = {}
        gradients = [g for c in closings for g in (*c.contributors, *c.riders)]
        gradients.sort(key=lambda g: g.rank)
        start_of_visible = self.samples - len(self.open) * self.scenario.learner.batch
        for g in gradients:
            self.stalenesses[g.rank].append(self.version - g.version)
            self.open.append(start_of_visible - g.seen)
            self.counts[g.rank] += 1
            self.leave(g, g.finish - g.start, False, "applied")
            assert g.closing is not None
            released[g.rank] = g.closing
        for rank, awaited in enumerate(self.awaits):
            if awaited is not None and awaited in closings:
                released[rank], self.awaits[rank] = awaited, None
        for c in closings:
            c.updated = True
            self.closings.remove(c)
        staleness = {g.rank: self.version - g.version for g in gradients}
        self.version += 1
        self.samples += len(gradients) * self.scenario.learner.batch
        self.result.applied += len(gradients)
        self.result.log.append(
            Entry(
                self.now, self.version, tuple(staleness), len(gradients), self.samples, staleness,
                self.progress(),
            )
        )  # fmt: skip
        self.over = self.reached_limit()
        if self.over:
            return
        assert self.plan is not None
        version, samples, time = self.asked
        if self.plan.review.due(self.version - version, self.samples - samples, self.now - time):
            self.ask()
        self.settle(released)

    def progress(self) -> float:
        """Booked progress and the open visible update as if it ended now [25]."""
        learner = self.scenario.learner
        if not self.open:
            return self.booked
        own = len(self.open) * learner.batch
        stale = sum(self.open) / len(self.open)
        return self.booked + own / (learner.noise_scale + own + learner.c_tau * stale)

    def reached_limit(self) -> bool:
        s = self.scenario
        if s.updates is not None:
            return self.version >= s.updates
        enough = s.sample_target is None or self.samples >= s.sample_target
        good = s.progress_target is None or self.progress() >= s.progress_target
        return enough and good

    def makespan(self) -> float:
        """When `samples` were reached, even where the run goes on towards a target beside it."""
        target = self.scenario.sample_target or 0
        reached = [entry.time for entry in self.result.log if entry.samples >= target]
        return self.now if self.scenario.sample_target is None else reached[0]

    # Releases, reviews and new plans

    def settle(self, released: dict[int, Closing]) -> None:
        """Start everybody who may, by rank; ask the policy if somebody new may not [20]."""
        before = self.blocked
        self.start_all(released)
        assert self.plan is not None
        if self.plan.review.on_block and self.blocked - before:
            self.ask()
            self.start_all({})

    def start_all(self, released: dict[int, Closing]) -> None:
        self.blocked = set()
        for rank in sorted(self.named()):
            if self.work[rank] is None and self.awaits[rank] is None:
                if self.within_bound(rank):
                    self.start(rank, released.get(rank))
                else:
                    self.blocked.add(rank)

    def within_bound(self, rank: int) -> bool:
        assert self.plan is not None
        if self.plan.bound is None:
            return True
        assert isinstance(self.plan.bound, tuple)
        bound = self.plan.bound[rank]
        least = min(self.counts[r] for r in self.named())
        return bound is None or self.counts[rank] - least <= bound

    def ask(self) -> None:
        old, new = self.plan, self.policy.plan(self.view()).resolved(self.n)
        self.result.plans.append((self.version, new))
        self.asked = (self.version, self.samples, self.now)
        before = set() if old is None else self.named()
        self.plan = new
        if old is None or (old.quorums, old.bound, old.fuse) == (new.quorums, new.bound, new.fuse):
            return
        if old.bound is None:
            self.counts = [0] * self.n  # [16]
        else:
            least = min((self.counts[r] for r in before & self.named()), default=0)
            for rank in self.named() - before:
                self.counts[rank] = least
        for g in self.work:
            if g is not None and g.state in ("pushing", "ready", "riding"):
                self.refile(g)

    def refile(self, g: Gradient) -> None:
        """File a finished, unclosed gradient by the new plan [19]."""
        quorum, parent = self.quorum_of(g.rank), self.parent_of(g.rank)
        if quorum is None:
            self.drop(g, None)
            return
        if g.aboard is not None and g.aboard.rank != parent:
            g.aboard = None
        if parent is not None:
            self.withdraw(g)
            g.state = "riding"
        elif quorum.via is not Via.SERVER:
            self.withdraw(g)
            g.state, g.arrival = "ready", g.finish
        elif g.state != "pushing":
            if g.job is None:
                g.arrival, g.job = g.finish, Job((g.finish, g.rank), g)
                self.jobs.append(g.job)
            g.state = "ready"

    def view(self) -> View:
        shape = (self.n, WINDOW)
        times, communication = np.full(shape, math.nan), np.full(shape, math.nan)
        amp, bound = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        for rank, known in enumerate(self.known):
            recent = known[-WINDOW:]
            for column, one in enumerate(recent, start=WINDOW - len(recent)):
                times[rank, column], communication[rank, column] = one.seconds, one.communication
                amp[rank, column], bound[rank, column] = one.amp, one.bound
        steps = np.array([len(known) for known in self.known])
        return View(
            self.n, self.version, self.samples, self.now, steps, times, amp, bound, communication
        )
