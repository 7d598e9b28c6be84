"""The reference engine: docs/semantics.md written down a second time, as plainly as possible.

It judges `simstrag.engine.simulate`, from which it shares nothing but the arithmetic of rule 0
(`Timing`)
and what a plan says of itself.  There is no queue of events: whatever may come next is listed anew
after every event, and the least by (time, class, key) of rule 15 happens.  Numbers in brackets are
rules.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.contract import WINDOW, Hints, Late, Plan, Policy, Precision, Quorum, Via, View, Weigh
from simstrag.errors import InputError, PlanError, StallError
from simstrag.learning.noise_scale import unmodelled
from simstrag.scenario.scenario import Scenario

FINISH, CLOSING, END, EXPIRY, SERVE, OUTSIDE = range(6)  # the classes of rule 15
FAIL, LOSE, RETURN = range(3)  # what happens outside, in the order of one instant [19a]


STATE = (
    "version", "samples", "booked", "own", "stale", "known", "asked", "plan", "full_plan", "policy",
)  # fmt: skip
"""What a restart goes back to [19c]."""


class Applied(NamedTuple):
    """A gradient in its update."""

    rank: int
    step: int
    staleness: int
    samples: int
    weight: float


Event = tuple[float, int, int, Callable[[], None]]
"""When it happens, its class and its key, and what it does."""


@dataclass(frozen=True)
class Entry:
    """One update: samples so far, progress if it can be told, gradients by rank and step."""

    time: float
    version: int
    samples: int
    progress: float | None
    gradients: tuple[Applied, ...]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted({gradient.rank for gradient in self.gradients}))

    @property
    def n_own(self) -> int:
        return len(self.gradients)


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
    deviation: float | None = None


@dataclass(eq=False)
class Gradient:
    """One step, from its start to the fate of its gradient.

    state: running (its pull included), kept, pushing, ready (arrived, unclosed), riding (finished,
    of a rider; of a tree: at the parent, until its push has arrived and it closes), ran (the last
    of a run-on, until the update that it waits for), closed (in communication), gone (applied,
    dropped or aborted).
    version, seen: of its contribution's pull, and the samples applied before that.
    begun: when its pull began, or its computing where it did not pull.  got: when the pull ended.
    asked, samples: what it was to compute, and what it has after a deadline.
    kept: the gradients of its contribution before it, oldest first.
    rounds: how many closings its contribution has been through since the pull.
    run_on: how many of the first gradients of its contribution are of a run-on.
    sent: when its push began.  push: seconds of it, until arrival or until it was called off.
    mark: the closing it was late for.
    aboard: of a rider or a child in a tree, the parent's gradient it is bound to.
    """

    rank: int
    k: int
    version: int
    seen: int
    amp: bool
    asked: int
    samples: int
    begun: float
    got: float
    start: float
    finish: float
    kept: list[Gradient]
    rounds: int
    run_on: int = 0
    state: str = "running"
    arrival: float = math.nan
    sent: float = math.nan
    push: float = 0.0
    job: Job | None = None
    mark: Closing | None = None
    aboard: Gradient | None = None
    closing: Closing | None = None

    @property
    def contribution(self) -> list[Gradient]:
        return [*self.kept, self]

    def marked(self, late: Late) -> bool:
        return self.mark is not None and self.mark.quorum.late is late


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
    """A closed quorum on its way to its update, with the plan under which it closed.

    filing: how often gradients had been filed anew when it closed.
    state: reducing, pushing (of LEADER), jobs (waits for the server), ready (nothing to wait for).
    """

    quorum: Quorum
    plan: Plan
    filing: int
    contributors: list[Gradient]
    riders: list[Gradient]
    state: str = "jobs"
    end: float = math.nan
    number: int = -1
    updated: bool = False

    @property
    def via(self) -> Via:
        return self.quorum.via

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(g.rank for g in self.contributors))


class Known(NamedTuple):
    """One local time as a policy sees it."""

    seconds: float
    amp: bool
    share: float
    lower_bound: bool
    communication: float


def simulate(scenario: Scenario, policy: Policy, seed: int = 0) -> Result:
    """Run `policy` on `scenario` until its limit."""
    return _Run(scenario, copy.deepcopy(policy), seed).run()


class _Run:
    def __init__(self, scenario: Scenario, policy: Policy, seed: int) -> None:
        n = scenario.workers
        self.scenario, self.policy, self.n = scenario, policy, n
        self.batch = scenario.learner.batch
        self.timing = scenario.timing(seed)
        self.result = Result()
        self.now, self.version, self.samples, self.over = 0.0, 0, 0, False
        self.plan: Plan | None = None
        self.sizes: tuple[int, ...] = ()  # samples of steps that start from now on, by rank
        self.unmodelled = False  # whether a plan has been in force that progress cannot tell of
        self.filings = 0
        self.asked = (0, 0, 0.0)  # version, samples and time of the last review
        self.work: list[Gradient | None] = [None] * n
        self.ahead: list[Gradient | None] = [None] * n  # of a run-on, beside what is under way
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
        self.booked = 0.0
        self.own = 0  # samples of the open visible update
        self.stale = 0  # of the open visible update: the sum over samples of those they missed
        self.missed: list[int] = []  # of each gradient: samples applied between pull and update
        self.failures = scenario.failures
        self.coming = iter(self.failures.coming(seed, n) if self.failures else ())
        self.outside: list[tuple[float, int, int, float]] = []  # when, what, rank, when it is back
        self.failed: set[int] = set()
        self.lost: set[int] = set()  # those of them without which the others go on
        self.hung: list[int] = []  # those of them that are in the plan
        self.returned: set[int] = set()  # ranks that are back, and not in the plan yet
        self.formed = -1.0, 0.0  # the last begin of forming the group anew, and its end
        self.full_plan: Plan | None = None  # as if all ranks were there
        self.cost = 0.0  # of the checkpoint of this update
        self.saved: list[tuple[float, dict[str, Any]]] = []  # when it is complete, and the state
        self.next_save = math.inf, math.inf  # version and time
        self.headway = 0, 0  # the highest version at a failure, and failures since
        self.expect_failure()

    # The loop

    def run(self) -> Result:
        self.ask()
        if self.failures is not None and not self.failures.continues:
            self.save(0.0)
        self.settle({})
        while not self.over:
            inside = min(self.events(), key=lambda e: e[:3], default=None)
            awaits = any(what != FAIL for _, what, *_ in self.outside)
            outside = self.next_outside() if inside or awaits else None
            event = min(filter(None, (inside, outside)), key=lambda e: e[:3], default=None)
            if event is None:
                raise StallError(
                    f"{self.policy!r} with {self.plan} stalls at {self.now} s: nothing can happen; "
                    f"blocked ranks: {sorted(self.blocked)}"
                )
            assert event[0] >= self.now
            self.now = event[0]
            self.check_trace()
            event[3]()
        return self.summed_up()

    def check_trace(self) -> None:
        contention = self.timing.contention  # [8]
        if self.now > contention.end and contention.trace_end == "error":
            raise InputError(f"the trace ends at {contention.end} s, before {self.now} s")

    def events(self) -> Iterator[Event]:
        for g in (*self.work, *self.ahead):
            if g is None or g.rank in self.failed:
                continue
            if g.state == "running":
                yield g.finish, FINISH, g.rank, partial(self.finished, g)
            if g.state == "pushing":
                yield g.arrival, FINISH, g.rank, partial(self.arrived, g)
        for c in self.closings:
            if c.state == "pushing":
                yield c.end, FINISH, c.ranks[0], partial(self.queue, c)
            if c.state == "reducing":
                yield c.end, END, c.number, partial(self.reduced, c)
            if c.state == "ready":
                yield c.end, END, c.number, partial(self.update, [c])
        for index, quorum in enumerate(self.quorums):
            counting, enough = self.counting(quorum), len(self.counting(quorum)) >= quorum.needed
            if quorum.grace and enough:
                all_are_there = len(self.ready(quorum)) == len(quorum.members)
                expiry = max(self.now, counting[quorum.needed - 1].arrival + quorum.grace)  # [17a]
                when = (self.now, CLOSING) if all_are_there else (expiry, EXPIRY)
                yield *when, index, partial(self.close, quorum)
            elif enough:
                yield self.now, CLOSING, index, partial(self.close, quorum)
            elif counting and quorum.window < math.inf:
                expiry = max(self.now, counting[0].arrival + quorum.window)  # [17]
                yield expiry, EXPIRY, index, partial(self.close, quorum)
        if self.serving:
            yield self.serving[0].end, END, self.serving[0].number, self.served
        elif self.jobs:
            yield self.now, SERVE, 0, self.serve

    # Failures [19a to 19c]

    def next_outside(self) -> Event | None:
        event = min(self.outside, default=None)
        return event and (event[0], OUTSIDE, event[1], partial(self.happen, event))

    def expect_failure(self) -> None:
        self.outside += [(f.time, FAIL, f.rank, f.back) for f in islice(self.coming, 1)]

    def happen(self, event: tuple[float, int, int, float]) -> None:
        self.outside.remove(event)
        _, what, rank, back = event
        assert self.failures is not None
        if what == FAIL:
            highest, since = self.headway
            self.headway = max(highest, self.version), 1 + (since if self.version <= highest else 0)
            if self.headway[1] > 1000:  # [19a]
                raise StallError("no update beyond all before in 1,000 failures")
            self.expect_failure()
        if not self.failures.continues:
            self.halt(rank) if what == FAIL else self.restart()
            return
        if what == FAIL:
            self.failed.add(rank)
            self.returned.discard(rank)
            g = self.work[rank]
            if g is not None and g.state == "running":
                g.finish = math.inf
            known = self.now + self.failures.detection
            lost = max(known, min(known + self.failures.quorum_timeout, back))
            self.outside.append((lost, LOSE, rank, back))
            self.outside += [(back, RETURN, rank, back)] if back < math.inf else []
            return
        if what == LOSE:
            self.lost.add(rank)
            self.hung.append(rank)
        else:
            self.lost.discard(rank)
            self.returned.add(rank)
        plan = self.restricted()
        if plan is None:
            return
        for other in self.hung:
            for member in self.summing_with(other):
                g = self.work[member]
                if g is not None and g.state != "closed":
                    self.leave(g, "aborted")
        self.hung = []
        self.failed -= self.returned
        if self.now > self.formed[0]:
            self.formed = self.now, max(self.now, self.formed[1]) + self.failures.regroup
        self.returned, self.cost = set(), self.formed[1] - self.now
        self.adopt(plan, anew=True)
        self.settle({})

    def restricted(self) -> Plan | None:
        """The policy's plan without lost ranks."""
        assert self.full_plan is not None
        if not self.lost:
            return self.full_plan
        assert self.failures is not None
        if self.n - len(self.lost) < self.failures.min_workers:
            return None
        return self.full_plan.without(self.lost, self.n)

    def summing_with(self, rank: int) -> tuple[int, ...]:
        """The ranks whose gradients are worth nothing without that of a lost one."""
        quorum = self.quorum_of(rank)
        if quorum is None or quorum.via is Via.SERVER or quorum.needed < len(quorum.members):
            return (rank,)
        return quorum.members if rank in quorum.members else (rank,)

    def halt(self, rank: int) -> None:
        assert self.failures is not None
        is_down = any(what == RETURN for _, what, *_ in self.outside)
        due = self.failures.checkpoint
        if due is not None and due.on_failure and not is_down:
            self.save(0.0)
        for each in range(self.n):
            while (g := self.work[each]) is not None:
                self.leave(g, "aborted")
        self.closings, self.jobs, self.serving = [], [], []
        self.awaits, self.blocked = [None] * self.n, set()
        self.counts, self.last_amp = [0] * self.n, [None] * self.n
        up = self.now + self.failures.detection + self.failures.restart
        self.outside = [event for event in self.outside if event[1] == FAIL]
        self.outside.append((up, RETURN, rank, math.inf))
        self.saved = self.usable(self.now)[:1]

    def usable(self, at: float) -> list[tuple[float, dict[str, Any]]]:
        """The last checkpoint that is complete, and those under way."""
        complete = [saved for saved in self.saved if saved[0] <= at]
        return complete[-1:] + [saved for saved in self.saved if saved[0] > at]

    def save(self, cost: float) -> None:
        state = {name: copy.deepcopy(getattr(self, name)) for name in STATE}
        self.saved = [*self.usable(self.now), (self.now + cost, state)]
        self.cost = cost
        self.plan_save(self.now + cost)

    def plan_save(self, since: float) -> None:
        due = self.failures.checkpoint if self.failures else None
        if due is not None:
            self.next_save = (
                math.inf if due.updates is None else self.version + due.updates,
                math.inf if due.seconds is None else since + due.seconds,
            )

    def restart(self) -> None:
        vars(self).update(copy.deepcopy(self.saved[0][1]))
        self.sizes = self.standing.samples(self.batch, self.n)
        self.filings += 1
        self.plan_save(self.now)
        self.settle({})

    # Who is what under the plan in force

    @property
    def standing(self) -> Plan:
        assert self.plan is not None
        return self.plan

    @property
    def quorums(self) -> tuple[Quorum, ...]:
        return self.standing.quorums

    @property
    def loaded(self) -> bool:
        """Whether the server weighs on the ranks beside it [11]."""
        return any(quorum.via is not Via.ALLREDUCE for quorum in self.quorums)

    def quorum_of(self, rank: int) -> Quorum | None:
        for quorum in self.quorums:
            if rank in quorum.members or rank in dict(quorum.riders):
                return quorum
        return None

    def parent_of(self, rank: int) -> int | None:
        for quorum in self.quorums:
            for child, parent in (*quorum.riders, *quorum.parents):
                if child == rank:
                    return parent
        return None

    def tree_of(self, rank: int) -> list[int]:
        """A parent and its children in a tree, of any of them; none outside trees [11a]."""
        pairs = [pair for quorum in self.quorums for pair in quorum.parents]
        parent = dict(pairs).get(rank, rank)
        children = [child for child, other in pairs if other == parent]
        return [parent, *children] if children else []

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

    def counting(self, quorum: Quorum) -> list[Gradient]:
        """What is ready and no latecomer that only joins [14]."""
        return [g for g in self.ready(quorum) if not g.marked(Late.JOIN)]

    # A step and its gradient

    def start(self, rank: int, released_by: Closing | None) -> None:
        """Pull and compute."""
        self.booked, self.own, self.stale = self.progress(), 0, 0  # a pull has seen them [25]
        ran = self.work[rank]
        if ran is not None:  # [6c]
            for one in ran.contribution:
                one.version, one.seen = self.version, self.samples
            self.keep(ran, 0)
            return
        got = self.pull_end(rank, released_by)
        self.work[rank] = self.compute(rank, got, self.version, self.samples, [], 0)

    def keep(self, g: Gradient, rounds: int) -> None:
        """Its rank goes on without a pull, on a model of its own or of its group [6b, 11]."""
        g.state = "kept"
        following = self.compute(g.rank, self.now, g.version, g.seen, g.contribution, rounds)
        following.run_on = g.run_on
        place = self.ahead if self.ahead[g.rank] is g else self.work
        place[g.rank] = following

    def run_on(self, g: Gradient, steps: int) -> None:
        """Its rank takes the first steps of its next contribution by itself [6c]."""
        ahead = self.compute(g.rank, self.now, g.version, g.seen, [], 0, pauses=False)
        ahead.run_on = steps
        self.ahead[g.rank] = ahead

    def compute(
        self,
        rank: int,
        got: float,
        version: int,
        seen: int,
        kept: list[Gradient],
        rounds: int,
        pauses: bool = True,
    ) -> Gradient:
        amp = self.precision(rank) is Precision.AMP
        begin = got
        if self.last_amp[rank] not in (None, amp):
            begin = got + self.timing.step.amp_switch  # [5]
        if not kept and pauses:
            begin += self.standing.pause + self.cost  # [5a, 19c]
        k, asked = self.steps[rank], self.sizes[rank]
        share, deadline = asked / self.batch, self.standing.deadline
        parts = done = self.timing.step.microbatches
        if deadline is None:
            finish = self.timing.compute(rank, k, begin, amp, share, loaded=self.loaded)
        else:
            finish, done = self.timing.cut(rank, k, begin, amp, share, deadline, loaded=self.loaded)
        if rank in self.failed:
            finish = math.inf
        samples = max(1, asked * done // parts)  # [6a]
        g = Gradient(
            rank, k, version, seen, amp, asked, samples, self.now, got, begin, finish, kept, rounds
        )
        self.last_amp[rank] = amp
        self.steps[rank] += 1
        self.result.starts.append((rank, k, version, amp, begin))
        return g

    def precision(self, rank: int) -> Precision:
        assert isinstance(self.standing.precision, tuple)
        return self.standing.precision[rank]

    def pull_end(self, rank: int, released_by: Closing | None) -> float:
        """When the pull of a start ends: by the update that released it, else by the plan [11]."""
        if released_by is not None:
            quorum, leader = released_by.quorum, released_by.ranks[0]
        else:
            own = self.quorum_of(rank)
            assert own is not None
            quorum, leader = own, own.members[0]
        if quorum.via is Via.ALLREDUCE:
            return self.now
        start, parent = self.now, dict(quorum.parents).get(rank)
        if parent is not None:  # it pulls first [11a]
            start = self.timing.pull(parent, start, loaded=self.loaded)
        puller = rank if quorum.via is Via.SERVER else leader
        return self.timing.pull(puller, start, loaded=self.loaded)

    def finished(self, g: Gradient) -> None:
        quorum = self.quorum_of(g.rank)
        if quorum is None:
            self.drop(g, None)
            self.settle({})
        elif self.parent_of(g.rank) is not None and not quorum.parents:
            g.state = "riding"
        elif g.marked(Late.DROP) and quorum.late is Late.DROP:
            self.drop(g, g.mark)
            self.settle({})
        elif len(g.contribution) == g.run_on:
            g.state = "ran"
            if self.work[g.rank] is g:  # the update has come already
                self.start(g.rank, None)
        elif len(g.contribution) < g.run_on + quorum.steps_of(g.rank) - quorum.overlap:
            self.keep(g, g.rounds)
        else:
            if g.marked(Late.DROP):
                g.mark = None
            if self.tree_of(g.rank)[:1] == [g.rank]:
                g.state = "riding"
                self.push_sum(g.rank)
                return
            for rider in self.riding_with(g.rank):
                rider.aboard = rider.aboard or g
            if quorum.via is Via.SERVER:
                self.push(g)
            else:
                g.state, g.arrival = "ready", self.now
            if quorum.overlap:
                self.run_on(g, quorum.overlap)

    def push(self, g: Gradient) -> None:
        g.state, g.sent = "pushing", self.now
        g.arrival = self.timing.push(g.rank, self.now, loaded=self.loaded)

    def push_sum(self, rank: int) -> None:
        """The parent in a tree pushes if all gradients of its message are there [11a]."""
        parts = [self.work[member] for member in self.tree_of(rank)]
        if parts and all(g is not None and g.state == "riding" and not g.aboard for g in parts):
            parent, *children = [g for g in parts if g is not None]
            for child in children:
                child.aboard = parent
            self.push(parent)

    def arrived(self, g: Gradient) -> None:
        quorum = self.quorum_of(g.rank)
        assert quorum is not None
        assert quorum.via is Via.SERVER
        g.push = self.now - g.sent
        if g.marked(Late.DROP) and quorum.late is Late.DROP:
            self.drop(g, g.mark)
            self.settle({})
        elif self.parent_of(g.rank) is not None:
            g.state = "riding"
            self.push_sum(g.rank)
        else:
            g.state, g.job = "ready", Job((self.now, g.rank), g)
            self.jobs.append(g.job)

    def drop(self, g: Gradient, until: Closing | None) -> None:
        """Throw a gradient away; its rank is released at the update of `until`, else now [13]."""
        self.leave(g, "dropped")
        if until is not None and not until.updated:
            self.awaits[g.rank] = until

    def leave(self, g: Gradient, fate: str) -> None:
        """A contribution has met its fate, and its local times become known [6b, 7]."""
        self.withdraw(g)
        update = self.version + 1 if fate == "applied" else None
        for one in g.contribution:
            self.result.fates.append((update, one.rank, one.k, fate))
            self.known[g.rank].append(self.known_of(one))
            one.state = "gone"
            if fate != "aborted":
                self.counts[g.rank] += 1  # [16]
        self.work[g.rank], self.ahead[g.rank] = self.ahead[g.rank], None
        for rider in self.work:
            if rider is not None and rider.aboard is g:
                rider.aboard = None

    def known_of(self, g: Gradient) -> Known:
        unfinished = self.now < g.finish  # it is aborted
        seconds = max(0.0, min(self.now, g.finish) - g.start)
        share = (g.asked if unfinished else g.samples) / self.batch
        communication = min(self.now, g.got) - g.begun + g.push
        return Known(seconds, g.amp, share, unfinished, communication)

    def withdraw(self, g: Gradient) -> None:
        """Call off its push, take back its job if that still waits; one in service goes on."""
        if g.state == "pushing":
            g.push = self.now - g.sent
        if g.job is not None and g.job.state == "waiting":
            self.jobs.remove(g.job)
            g.job = None

    # From a closing to its update

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def close(self, quorum: Quorum) -> None:
        chosen = self.counting(quorum)[: None if quorum.grace else quorum.needed]
        chosen += [g for g in self.ready(quorum) if g.marked(Late.JOIN)]
        riders = [g for g in self.work if g is not None and g.aboard in chosen]
        closing = Closing(quorum, self.standing, self.filings, chosen, riders)
        self.closings.append(closing)
        for g in (*chosen, *riders):
            g.state, g.closing = "closed", closing
        self.be_late(closing)
        if quorum.via is not Via.SERVER:
            closing.state, closing.number = "reducing", self.number()
            among = quorum.members if quorum.partial else closing.ranks  # [11b]
            fragments = self.standing.fragments
            closing.end = self.timing.reduce(among, self.now, self.loaded, fragments)
        elif self.served_all(closing):
            closing.state, closing.number, closing.end = "ready", self.number(), self.now
        self.settle({})

    def be_late(self, closing: Closing) -> None:
        """What becomes of the members that a closing has done without [14]."""
        late = closing.quorum.late
        for g in [self.work[rank] for rank in closing.quorum.members]:
            if g is None or g.state not in ("running", "pushing", "ready") or late is Late.QUEUE:
                continue
            if late is Late.ABORT:
                self.leave(g, "aborted")
                self.awaits[g.rank] = closing
            elif late is Late.DROP and g.state == "ready":
                self.drop(g, closing)
            else:
                g.mark = closing

    def served_all(self, closing: Closing) -> bool:
        jobs = [g.job for g in closing.contributors]
        return all(job is not None and job.state == "done" for job in jobs)

    def reduced(self, c: Closing) -> None:
        if c.via is Via.ALLREDUCE:
            self.update([c])
        elif self.goes_on(c):
            self.closings.remove(c)
            for g in sorted(c.contributors, key=lambda g: g.rank):
                self.keep(g, g.rounds + 1)
        else:
            c.end = self.timing.push(c.ranks[0], self.now, loaded=self.loaded)
            if c.end > self.now:
                c.state = "pushing"
            else:
                self.queue(c)

    def goes_on(self, c: Closing) -> bool:
        """Whether its group goes on by itself, without a push [11]."""
        through = max(g.rounds for g in c.contributors)
        return through < c.quorum.rounds - 1 and c.filing == self.filings

    def queue(self, c: Closing) -> None:
        c.state = "jobs"
        self.jobs.append(Job((self.now, c.ranks[0]), c))

    def serve(self) -> None:
        head = min(self.jobs, key=lambda job: job.place)
        self.serving = [job for job in self.jobs if job is head or self.fuse(head, job)]
        self.serving.sort(key=lambda job: job.place)
        groups = [job.owner for job in self.serving if isinstance(job.owner, Closing)]
        union = tuple(sorted(rank for c in groups for rank in c.ranks)) if len(groups) > 1 else ()
        end, number = self.timing.serve(self.now, union, loaded=self.loaded), self.number()
        for job in self.serving:
            self.jobs.remove(job)
            job.state, job.end, job.number = "serving", end, number

    @staticmethod
    def fuse(head: Job, job: Job) -> bool:
        return all(isinstance(j.owner, Closing) and j.owner.plan.fuse for j in (head, job))

    def served(self) -> None:
        jobs, self.serving = self.serving, []
        for job in jobs:
            job.state = "done"
        g = jobs[0].owner
        if isinstance(g, Closing):
            self.update([job.owner for job in jobs if isinstance(job.owner, Closing)])
            return
        c = g.closing  # None where the gradient is unclosed, withdrawn or gone
        if g.job is not jobs[0] or g.state != "closed" or c is None:
            return
        if c.via is Via.SERVER and self.served_all(c):
            self.update([c])

    # An update

    def update(self, closings: list[Closing]) -> None:
        """Apply what no cutoff drops; ask, if there is a new version; let everybody go [12, 24]."""
        released: dict[int, Closing] = {}
        fresh: list[tuple[Gradient, Closing]] = []
        for c in closings:
            c.updated = True
            self.closings.remove(c)
            for g in (*c.contributors, *c.riders):
                released[g.rank] = c
                if c.plan.damping.drops(self.version - g.version):
                    self.drop(g, None)
                else:
                    fresh.append((g, c))
        for rank, awaited in enumerate(self.awaits):
            if awaited is not None and awaited in closings:
                released[rank], self.awaits[rank] = awaited, None
        if fresh:
            self.apply(sorted(fresh, key=lambda pair: pair[0].rank))
            self.over = self.reached_limit()
            if self.over:
                return
            if self.version >= self.next_save[0] or self.now >= self.next_save[1]:
                assert self.failures is not None
                assert self.failures.checkpoint is not None
                self.save(self.failures.checkpoint.cost)
            version, samples, time = self.asked
            since = self.version - version, self.samples - samples, self.now - time
            if self.standing.review.due(*since):
                self.ask()
        self.settle(released)

    def apply(self, fresh: list[tuple[Gradient, Closing]]) -> None:
        samples = sum(one.samples for g, _ in fresh for one in g.contribution)
        start_of_visible = self.samples - self.own
        applied = []
        for g, c in fresh:
            staleness = self.version - g.version
            factor = c.plan.damping.factor(staleness)
            for one in g.contribution:
                weight = one.samples / self.weighed_against(samples, c.plan) * factor
                applied.append(Applied(g.rank, one.k, staleness, one.samples, weight))
                self.stale += one.samples * (start_of_visible - g.seen)
                self.missed.append(self.samples - g.seen)
            self.leave(g, "applied")
        self.version += 1
        self.samples += samples
        self.own += samples
        progress = None if self.unmodelled else self.progress()
        entry = Entry(self.now, self.version, self.samples, progress, tuple(applied))
        self.result.log.append(entry)

    def weighed_against(self, samples: int, plan: Plan) -> int:
        """The samples of which a gradient's are a share: a full step's or the update's [24]."""
        if plan.average or plan.weigh is Weigh.MEMBERS:
            return samples
        return self.n * self.batch

    def progress(self) -> float:
        """Booked progress and the open visible update as if it ended now [25]."""
        learner = self.scenario.learner
        if not self.own:
            return self.booked
        stale = self.stale / self.own
        return self.booked + self.own / (learner.noise_scale + self.own + learner.c_tau * stale)

    def reached_limit(self) -> bool:
        s = self.scenario
        if s.updates is not None:
            return self.version >= s.updates
        enough = s.sample_target is None or self.samples >= s.sample_target
        good = s.progress_target is None or self.progress() >= s.progress_target
        return enough and good

    # Releases, reviews and new plans

    def settle(self, released: dict[int, Closing]) -> None:
        """Start everybody who may, by rank; ask the policy if somebody new may not [20]."""
        before = self.blocked
        self.start_all(released)
        if self.standing.review.on_block and self.blocked - before:
            self.ask()
            self.start_all({})

    def start_all(self, released: dict[int, Closing]) -> None:
        self.blocked = set()
        for rank in sorted(self.named()):
            if self.is_free(rank):
                if self.within_bound(rank):
                    self.start(rank, released.get(rank))
                else:
                    self.blocked.add(rank)
        self.cost = 0.0

    def is_free(self, rank: int) -> bool:
        """Whether it waits for no update, and has a run-on behind it or no gradient."""
        g = self.work[rank]
        return (g is None or g.state == "ran") and self.awaits[rank] is None

    def within_bound(self, rank: int) -> bool:
        if self.standing.bound is None:
            return True
        assert isinstance(self.standing.bound, tuple)
        bound = self.standing.bound[rank]
        least = min(self.counts[r] for r in self.named())
        return bound is None or self.counts[rank] - least <= bound

    def ask(self) -> None:
        self.full_plan = self.policy.plan(self.view()).resolved(self.n)
        new, continues = self.restricted(), self.failures and self.failures.continues
        if continues and any(q.overlap for q in self.full_plan.quorums):
            raise PlanError("a plan with overlap keeps its quorums")
        self.asked = (self.version, self.samples, self.now)
        if new is not None:  # else the plan before it stays in force [19b]
            self.adopt(new)

    def adopt(self, new: Plan, anew: bool = False) -> None:
        old = self.plan
        self.sizes = new.samples(self.batch, self.n)
        reason = unmodelled(new)
        if reason is not None:
            if self.scenario.progress_target is not None:
                raise PlanError(f"no progress can be told of {new}: {reason}")
            self.unmodelled = True
        limit = self.scenario.sample_target
        if new.average and limit is not None:
            steps = max(quorum.most_steps for quorum in new.quorums)
            if (steps - 1) * self.batch >= limit:  # [6b]
                raise PlanError(f"{steps} private steps have more samples than the run, {limit}")
        self.result.plans.append((self.version, new))
        before = set() if old is None else self.named()
        self.plan = new
        if old is None:
            return
        if not anew and (old.quorums, old.bound, old.fuse) == (new.quorums, new.bound, new.fuse):
            return
        if any(quorum.overlap for quorum in old.quorums):
            raise PlanError("gradients of a plan with overlap cannot be filed anew")  # [6c]
        self.filings += 1
        if old.bound is None:
            self.counts = [0] * self.n  # [16]
        else:
            least = min((self.counts[r] for r in before & self.named()), default=0)
            for rank in self.named() - before:
                self.counts[rank] = least
        for g in self.work:
            if g is not None and g.marked(Late.JOIN):
                g.mark = None
            if g is not None and g.state in ("pushing", "ready", "riding"):
                self.refile(g)
        for rank in range(self.n):
            self.push_sum(rank)

    def refile(self, g: Gradient) -> None:
        """File a finished, unclosed gradient by the new plan [19]."""
        quorum, parent = self.quorum_of(g.rank), self.parent_of(g.rank)
        if quorum is None:
            self.drop(g, None)
            return
        if g.aboard is not None and g.aboard.rank != parent:
            g.aboard = None
        if quorum.parents and parent is not None and g.state == "pushing":
            return
        if parent is None and not self.carries_its_children(g):
            self.withdraw(g)
            g.state = "riding"
            for rank in self.tree_of(g.rank)[1:]:
                child = self.work[rank]
                if child is not None and child.aboard is g:
                    child.aboard = None
        elif parent is not None:
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

    def carries_its_children(self, g: Gradient) -> bool:
        """Whether no child in a tree is missing in the message of this gradient."""
        children = [self.work[rank] for rank in self.tree_of(g.rank)[1:]]
        return all(child is not None and child.aboard is g for child in children)

    # What is known, on the way and at the end

    def view(self) -> View:
        shape = (self.n, WINDOW)
        times, shares, communication = (np.full(shape, math.nan) for _ in range(3))
        amp, lower_bound = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        for rank, known in enumerate(self.known):
            recent = known[-WINDOW:]
            for column, one in enumerate(recent, start=WINDOW - len(recent)):
                times[rank, column], communication[rank, column] = one.seconds, one.communication
                amp[rank, column], shares[rank, column] = one.amp, one.share
                lower_bound[rank, column] = one.lower_bound
        return View(
            self.n,
            version=self.version,
            samples=self.samples,
            time=self.now,
            steps=np.array([len(known) for known in self.known]),
            local_times=times,
            amp=amp,
            batch=shares,
            lower_bound=lower_bound,
            communication=communication,
            pending_since=np.array(
                [
                    math.nan if g is None else g.begun
                    for g in (self.ahead[rank] or self.work[rank] for rank in range(self.n))
                ]
            ),
            noise_scale=self.scenario.learner.noise_scale,
            hints=self.hints(),
            truth=partial(self.truth, self.now, tuple(self.steps)),
        )

    def truth(self, now: float, steps: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """What a noise-free full-precision step of each rank would take that starts now."""
        return np.array([self.timing.noise_free(rank, k, now) for rank, k in enumerate(steps)])

    def hints(self) -> Hints:
        step = self.timing.step
        recorded = bool(self.timing.contention.durations)  # then nobody knows a clean step
        return Hints(
            amp_ratio=step.amp_ratio,
            step=None if recorded else step.hint,
            host_seconds=None if recorded or step.overlaps else step.host,
            clean_seconds=None if recorded else step.clean,
            amp_switch=step.amp_switch,
            batch=self.batch,
            microbatches=step.microbatches,
            samples=self.scenario.sample_target,
            noise_scale=self.scenario.learner.noise_scale,
            nodes=self.timing.nodes or tuple(range(self.n)),
        )

    def summed_up(self) -> Result:
        result = self.result
        fates = [fate for *_, fate in result.fates]
        result.started = len(result.starts)
        result.applied, result.dropped, result.aborted = (
            fates.count(fate) for fate in ("applied", "dropped", "aborted")
        )
        result.in_flight = result.started - len(fates)
        result.makespan = self.makespan()
        of_rank: list[list[int]] = [[] for _ in range(self.n)]
        for entry in result.log:
            for gradient in entry.gradients:
                of_rank[gradient.rank].append(gradient.staleness)
        result.mean_staleness = sum(map(sum, of_rank)) / result.applied
        result.staleness_by_rank = [sum(s) / len(s) if s else None for s in of_rank]
        if not self.unmodelled:
            squares = sum(missed**2 for missed in self.missed)
            result.deviation = squares / len(self.missed) / (self.n * self.batch) ** 2  # [25a]
        return result

    def makespan(self) -> float:
        """When `samples` were reached by what counts in the end, even where the run goes on."""
        target = self.scenario.sample_target
        if target is None:
            return self.now
        lasting = {entry.version: entry for entry in self.result.log}  # restarts repeat them [19c]
        return min(
            entry.time
            for entry in lasting.values()
            if entry.samples >= target and entry.version <= self.version
        )
