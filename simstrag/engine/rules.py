"""The rules of docs/semantics.md as a state machine: facts in, decisions out.

`Rules` knows of each rank whether it computes, pushes, waits in its quorum or is in a closing, and
which jobs wait for the server.  It knows no durations, reads no clock and does no I/O.  A driver
tells it what has happened and when, and carries out the decisions that it gets back:

- `engine.plain` simulates: it works out when each thing will end, and keeps facts in a heap;
- `engine.live` serves real ranks, whose facts are told when they have happened;
- `engine/native` states the same rules a second time, in C, and is held against this file.

The life of a gradient.  `Start` tells a rank to pull and compute.  `StepEnded` makes its gradient
READY in its quorum, at once or after a `Push`; a rider's waits until its parent's takes it along.
A quorum with enough ready gradients closes.  The closing is reduced (`Reduction`), or its gradients
are served (`Serve`), or its sum is pushed (`PushSum`) and served; then it is an `Update`, which
lets its ranks go.  Gradients that come too late may be `Lost`.

An action is all that one fact causes.  If the policy is due in it, `Ask` is its last decision, and
`replan` goes on with it.  After `Finished` nothing happens any more.

Order.  A driver tells facts by (time, `fact.order`), which is rule 15.  What must wait for its turn
within an instant comes back as a fact of its own: `Wake` asks the driver to tell it at that time.

Staleness.  A driver never takes a fact back.  `expects` says whether one still matters: its step
may have been aborted, its push called off, its quorum closed since.  `receive` ignores it then.

Numbers in brackets are rules; functions stand in their order.
"""

from __future__ import annotations

import enum
import heapq
import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simstrag.engine.messages import (
    Applied,
    Ask,
    CallOff,
    CollectiveEnded,
    Decision,
    Enough,
    Fact,
    Finished,
    JobEnded,
    Lost,
    Push,
    PushEnded,
    PushSum,
    Reduction,
    Serve,
    ServerFree,
    Start,
    StepEnded,
    SumArrived,
    Update,
    Wake,
    WindowExpired,
)  # fmt: skip
from simstrag.learning.noise_scale import NoiseScale, unmodelled
from simstrag.plan import Plan, Weigh
from simstrag.quorum import Late, Quorum, Via

# -- state ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a run: the first update at which every limit that is set is reached [23]."""

    updates: int | None = None
    samples: int | None = None
    progress: float | None = None

    def reached(self, version: int, learner: NoiseScale) -> bool:
        """Whether a run ends with this update."""
        enough = self.updates is None or version >= self.updates
        if self.samples is not None:
            enough = enough and learner.samples >= self.samples
        if self.progress is not None:
            enough = enough and (learner.progress or 0.0) >= self.progress
        return enough


class State(enum.Enum):
    """Where the gradient of a rank is; a rank whose gradient met its fate has none."""

    COMPUTING = enum.auto()
    PUSHING = enum.auto()
    READY = enum.auto()
    RIDING = enum.auto()  # finished, of a rider; `aboard` once its parent took it along
    CLOSED = enum.auto()


@dataclass(eq=False, slots=True)
class Gradient:
    """What a rank computes or has computed since its last pull: its contribution.

    step: the last of it.  kept: those before it that the rank kept, as (step, samples) [6b].
    version, seen: updates and samples applied before its pull.
    rounds: closings that it has been through since the pull [11].
    arrival: when it was ready, as filed.  mark: the closing that it was late for [14].
    """

    rank: int
    step: int
    version: int
    seen: int
    samples: int
    kept: tuple[tuple[int, int], ...]
    rounds: int
    state: State = State.COMPUTING
    finish: float = math.nan
    arrival: float = math.nan
    job: Job | None = None
    mark: Closing | None = None
    aboard: Gradient | None = None
    closing: Closing | None = None

    def is_late_for(self, late: Late) -> bool:
        return self.mark is not None and self.mark.quorum.late is late

    @property
    def place(self) -> tuple[float, int]:
        return self.arrival, self.rank


class JobState(enum.Enum):
    """How far the server is with a job."""

    WAITING = enum.auto()
    WITHDRAWN = enum.auto()
    IN_SERVICE = enum.auto()
    DONE = enum.auto()


@dataclass(eq=False, slots=True)
class Job:
    """Work of the server: a gradient, or the sum of a closing."""

    owner: Gradient | Closing
    arrival: float
    state: JobState = JobState.WAITING

    @property
    def fuses(self) -> bool:
        return isinstance(self.owner, Closing) and self.owner.plan.fuse


@dataclass(eq=False, slots=True)
class Closing:
    """A closed quorum on its way to its update, with the plan under which it closed.

    filing: how often gradients had been filed anew by then.
    undone: jobs that are still to be done before its update.
    waiting: ranks without a gradient that go on with its update [13].
    """

    number: int
    quorum: Quorum
    plan: Plan
    filing: int
    contributors: list[Gradient]
    riders: list[Gradient]
    undone: int = 0
    waiting: list[int] = field(default_factory=list)
    is_over: bool = False

    @property
    def leader(self) -> int:
        return min(g.rank for g in self.contributors)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(g.rank for g in self.contributors))


@dataclass(eq=False, slots=True)
class Gathering:
    """A quorum of the plan in force and what is ready in it, in order of (arrival, rank).

    joining: ready gradients that enter its next closing without counting towards it [14].
    """

    index: int
    quorum: Quorum
    ready: list[Gradient] = field(default_factory=list)
    joining: list[Gradient] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.ready) >= self.quorum.needed

    @property
    def expiry(self) -> float:
        """When its window is over; infinity without one, or while nothing is ready [17]."""
        return self.ready[0].arrival + self.quorum.window if self.ready else math.inf


class Rules:
    """The state of one job under the rules.

    plan: the first plan, resolved for `workers` ranks.  learner: counts samples and progress.
    now: when the last fact happened.
    """

    def __init__(self, workers: int, plan: Plan, learner: NoiseScale, limits: Limits) -> None:
        self.workers, self.learner, self.limits = workers, learner, limits
        self.now, self.version = 0.0, 0
        self.plan = plan
        self.work: list[Gradient | None] = [None] * workers
        self.steps = [0] * workers  # started by each rank
        self.reviewed = (0, 0, 0.0)  # version, samples and time of the last review
        self.gatherings: list[Gathering] = []
        self._counts = [0] * workers  # [16]
        self._amp: list[bool | None] = [None] * workers  # precision of each rank's last step
        self._idle = set(range(workers))  # hold no gradient, and go on with no update to come
        self._blocked: set[int] = set()
        self._boarded: list[Gradient] = []  # of riders
        self._closings: dict[int, Closing] = {}
        self._jobs: list[tuple[float, int, int, Job]] = []
        self._serving: tuple[int, list[Job]] | None = None
        self._serial, self._filings = 0, 0
        self._released: Mapping[int, Closing] | None = None  # to go on after `Ask`; None: on_block
        self._decisions: list[Decision] = []
        self._adopt(plan)
        self._file(plan)

    # -- what a driver calls ---------------------------------------------------------------------

    def begin(self) -> list[Decision]:
        """All ranks of the plan start [1]."""
        self._settle({})
        return self._decided()

    def expects(self, fact: Fact, at: float) -> bool:
        """Whether a fact of that time still matters."""
        match fact:
            case StepEnded(rank, step):
                g = self.work[rank]
                return g is not None and g.step == step and g.state is State.COMPUTING
            case PushEnded(rank, step):
                g = self.work[rank]
                return g is not None and g.step == step and g.state is State.PUSHING
            case Enough(index):
                return index < len(self.gatherings) and self.gatherings[index].is_full
            case WindowExpired(index):
                return index < len(self.gatherings) and self.gatherings[index].expiry <= at
            case ServerFree():
                return self._serving is None and self._next_job() is not None
        return True

    def receive(self, fact: Fact, at: float) -> list[Decision]:
        """What follows from a fact; nothing from one that is stale."""
        if not self.expects(fact, at):
            return []
        self.now = at
        match fact:
            case StepEnded(rank, _, samples):
                self._end_step(self._gradient(rank), samples)
            case PushEnded(rank):
                self._end_push(self._gradient(rank))
            case SumArrived(_, closing):
                self._enqueue(self._closings[closing], at)
            case Enough(index) | WindowExpired(index):
                self._close(self.gatherings[index])
            case CollectiveEnded(closing):
                self._end_collective(self._closings[closing])
            case JobEnded():
                self._end_job()
            case ServerFree():
                self._serve()
        return self._decided()

    def replan(self, plan: Plan) -> list[Decision]:
        """Answer `Ask` with a resolved plan; the action ends."""
        released, self._released = self._released, None
        self._change(plan)
        if released is None:
            self._start_all({})
        else:
            self._settle(released)
        return self._decided()

    def change(self, plan: Plan) -> list[Decision]:
        """Go over to another resolved plan between reviews; the next is due as before."""
        reviewed = self.reviewed
        self._change(plan)
        self.reviewed = reviewed
        self._settle({})
        return self._decided()

    def _decided(self) -> list[Decision]:
        decisions, self._decisions = self._decisions, []
        return decisions

    def _gradient(self, rank: int) -> Gradient:
        g = self.work[rank]
        assert g is not None
        return g

    # -- steps [1, 5, 6, 6b] ---------------------------------------------------------------------

    def _start(self, rank: int, closing: Closing | None) -> None:
        """Pull and compute; `closing`: that whose update lets the rank go, and says who pays."""
        self.learner.pull()
        gathering = self._home[rank]
        assert gathering is not None
        quorum = gathering.quorum if closing is None else closing.quorum
        puller: int | None = rank
        if quorum.via is Via.ALLREDUCE:
            puller = None
        elif quorum.via is Via.LEADER:
            puller = quorum.members[0] if closing is None else closing.leader
        self._compute(rank, self.version, self.learner.samples, puller=puller)

    def _keep(self, g: Gradient, rounds: int) -> None:
        """Go on without a pull, on a model of the rank's or of its group's own [6b, 11]."""
        kept = (*g.kept, (g.step, g.samples))
        self._compute(g.rank, g.version, g.seen, kept, rounds)

    def _compute(
        self,
        rank: int,
        version: int,
        seen: int,
        kept: tuple[tuple[int, int], ...] = (),
        rounds: int = 0,
        puller: int | None = None,
    ) -> None:
        step, samples, amp = self.steps[rank], self._sizes[rank], self._in_amp[rank]
        switches = self._amp[rank] not in (None, amp)
        self.steps[rank], self._amp[rank] = step + 1, amp
        self.work[rank] = Gradient(rank, step, version, seen, samples, kept, rounds)
        start = Start(rank, step, version, amp, samples, bool(kept), puller, switches)
        self._decisions.append(start)

    def _end_step(self, g: Gradient, samples: int) -> None:
        g.samples, g.finish = samples, self.now
        gathering = self._home[g.rank]
        if gathering is None:  # it has left [19]
            self._drop(g, None)
            self._settle({})
        elif g.rank in self._parents:
            g.state = State.RIDING
        elif self._drops(g, gathering):
            self._drop(g, g.mark)
            self._settle({})
        elif len(g.kept) + 1 < gathering.quorum.steps:
            self._keep(g, g.rounds)
        else:
            self._finish(g, gathering)

    def _finish(self, g: Gradient, gathering: Gathering) -> None:
        """A contribution is whole, and accepted."""
        if not g.is_late_for(Late.JOIN):
            g.mark = None
        for child in self._children.get(g.rank, ()):
            rider = self.work[child]
            if rider is not None and rider.state is State.RIDING and rider.aboard is None:
                rider.aboard = g  # [18]
                self._boarded.append(rider)
        if gathering.quorum.via is Via.SERVER:
            g.state = State.PUSHING
            self._decisions.append(Push(g.rank, g.step))
        else:
            self._arrive(g, gathering)

    # -- arrivals and closings [11, 17] ----------------------------------------------------------

    def _end_push(self, g: Gradient) -> None:
        gathering = self._home[g.rank]
        assert gathering is not None
        if self._drops(g, gathering):
            self._drop(g, g.mark)
            self._settle({})
        else:
            g.job = self._enqueue(g, self.now)
            self._arrive(g, gathering)

    def _arrive(self, g: Gradient, gathering: Gathering) -> None:
        g.state, g.arrival = State.READY, self.now
        self._gather(g, gathering)
        if gathering.is_full or gathering.ready[:1] == [g]:
            self._arm(gathering)

    def _gather(self, g: Gradient, gathering: Gathering) -> None:
        if g.is_late_for(Late.JOIN):
            gathering.joining.append(g)
        else:
            insort(gathering.ready, g, key=lambda other: other.place)

    def _arm(self, gathering: Gathering) -> None:
        """Ask to be told when it closes."""
        if gathering.is_full:
            self._decisions.append(Wake(self.now, Enough(gathering.index)))
        elif gathering.expiry < math.inf:  # one that is past is now
            expiry = max(self.now, gathering.expiry)
            self._decisions.append(Wake(expiry, WindowExpired(gathering.index)))

    def _close(self, gathering: Gathering) -> None:
        quorum, ready = gathering.quorum, gathering.ready
        contributors, rest = ready[: quorum.needed], ready[quorum.needed :]
        contributors += gathering.joining
        riders = [rider for g in contributors for rider in self._aboard(g)]
        closing = Closing(
            self._number(), quorum, self.plan, self._filings, contributors, riders
        )  # fmt: skip
        self._closings[closing.number] = closing
        for g in (*contributors, *riders):
            g.state, g.closing = State.CLOSED, closing
        gathering.ready, gathering.joining = rest, []
        self._turn_away(gathering, closing)
        if quorum.via is Via.SERVER:
            jobs = [g.job for g in contributors]
            closing.undone = sum(job is None or job.state is not JobState.DONE for job in jobs)
            if not closing.undone:
                self._decisions.append(Wake(self.now, CollectiveEnded(closing.number)))
        else:
            ridden = tuple(sorted(g.rank for g in riders))
            self._decisions.append(
                Reduction(closing.number, closing.members, ridden, quorum.via, self.plan.average)
            )
        self._arm(gathering)
        self._settle({})

    def _aboard(self, parent: Gradient) -> list[Gradient]:
        riders = [self.work[child] for child in self._children.get(parent.rank, ())]
        return [rider for rider in riders if rider is not None and rider.aboard is parent]

    def _number(self) -> int:
        self._serial += 1
        return self._serial

    # -- from a closing to its update: collectives and the server [11] ---------------------------

    def _end_collective(self, closing: Closing) -> None:
        if closing.quorum.via is not Via.LEADER:
            self._update([closing])
        elif self._goes_on(closing):
            del self._closings[closing.number]
            for g in sorted(closing.contributors, key=lambda g: g.rank):
                self._keep(g, g.rounds + 1)
        else:
            self._decisions.append(PushSum(closing.leader, closing.number))

    def _goes_on(self, closing: Closing) -> bool:
        """Whether its group goes on with its own model, without a push."""
        through = max(g.rounds for g in closing.contributors)
        return through < closing.quorum.rounds - 1 and closing.filing == self._filings

    def _enqueue(self, owner: Gradient | Closing, arrival: float) -> Job:
        job = Job(owner, arrival)
        rank = owner.rank if isinstance(owner, Gradient) else owner.leader
        heapq.heappush(self._jobs, (arrival, rank, self._number(), job))
        self._call_server()
        return job

    def _call_server(self) -> None:
        """The server takes its next job after everything else of the instant."""
        if self._serving is None and self._next_job() is not None:
            self._decisions.append(Wake(self.now, ServerFree()))

    def _next_job(self) -> Job | None:
        while self._jobs and self._jobs[0][-1].state is JobState.WITHDRAWN:
            heapq.heappop(self._jobs)
        return self._jobs[0][-1] if self._jobs else None

    def _serve(self) -> None:
        *_, head = heapq.heappop(self._jobs)
        jobs = [head]
        if head.fuses:
            jobs += [job for *_, job in sorted(self._jobs, key=lambda e: e[:3]) if job.fuses]
            self._jobs = [entry for entry in self._jobs if not entry[-1].fuses]
            heapq.heapify(self._jobs)
        for job in jobs:
            job.state = JobState.IN_SERVICE
        closings = [job.owner for job in jobs if isinstance(job.owner, Closing)]
        union = sorted(rank for c in closings for rank in c.members) if len(closings) > 1 else ()
        number = self._number()
        self._serving = number, jobs
        self._decisions.append(Serve(number, tuple(c.number for c in closings), tuple(union)))

    def _end_job(self) -> None:
        assert self._serving is not None
        (_, jobs), self._serving = self._serving, None
        self._call_server()
        closings = [job.owner for job in jobs if isinstance(job.owner, Closing)]
        if closings:
            self._update(closings)
            return
        jobs[0].state, g = JobState.DONE, jobs[0].owner
        assert isinstance(g, Gradient)
        if self.work[g.rank] is not g or g.closing is None or g.aboard is not None:
            return  # it is not closed yet, or was lost, or filed elsewhere since
        if g.closing.quorum.via is Via.SERVER:
            g.closing.undone -= 1
            if not g.closing.undone:
                self._update([g.closing])

    # -- an update [12, 23, 24] ------------------------------------------------------------------

    def _update(self, closings: Sequence[Closing]) -> None:
        """Apply what no cutoff drops; then end, ask or release."""
        fresh: list[Gradient] = []
        released: dict[int, Closing] = {}
        for closing in closings:
            closing.is_over = True
            del self._closings[closing.number]
            released |= dict.fromkeys(closing.waiting, closing)
        gradients = [g for closing in closings for g in (*closing.contributors, *closing.riders)]
        for g in sorted(gradients, key=lambda g: g.rank):
            assert g.closing is not None
            released[g.rank] = g.closing
            if g.closing.plan.damping.drops(self.version - g.version):
                self._lose(g, "dropped", g.closing.number)
            else:
                self._leave(g)
                fresh.append(g)
        self._idle |= released.keys()
        if not fresh:
            self._settle(released)
            return
        self._apply(fresh)
        if self.limits.reached(self.version, self.learner):
            self._decisions.append(Finished())
        elif self._is_due():
            self._ask(released)
        else:
            self._settle(released)

    def _apply(self, fresh: Sequence[Gradient]) -> None:
        parts = [(g, [*g.kept, (g.step, g.samples)]) for g in fresh]
        sizes = [(sum(n for _, n in steps), g.seen) for g, steps in parts]
        together, world = sum(n for n, _ in sizes), self.workers * self.learner.batch
        applied = []
        for g, steps in parts:
            assert g.closing is not None
            plan = g.closing.plan
            whole = together if plan.average or plan.weigh is Weigh.MEMBERS else world
            factor = plan.damping.factor(self.version - g.version)
            applied += [
                Applied(g.rank, step, g.version, n, n / whole * factor, g.closing.number)
                for step, n in steps
            ]
        self.learner.apply(sizes)
        self.version += 1
        self._decisions.append(Update(self.version, tuple(applied)))

    # -- gradients that are late, and what becomes of their ranks [13, 14] -----------------------

    def _turn_away(self, gathering: Gathering, closing: Closing) -> None:
        """What becomes of the members that a closing has done without."""
        late = closing.quorum.late
        if late is Late.QUEUE:
            return
        rest, gathering.ready = gathering.ready, []
        for g in rest:
            if late is Late.DROP:
                self._drop(g, closing)
            elif late is Late.ABORT:
                self._abort(g, closing)
            else:
                g.mark = closing
                gathering.joining.append(g)
        for rank in closing.quorum.members:
            running = self.work[rank]
            if running is None or running.state not in (State.COMPUTING, State.PUSHING):
                continue
            if late is Late.ABORT:
                self._abort(running, closing)
            else:
                running.mark = closing

    def _drops(self, g: Gradient, gathering: Gathering) -> bool:
        return g.is_late_for(Late.DROP) and gathering.quorum.late is Late.DROP

    def _drop(self, g: Gradient, closing: Closing | None) -> None:
        """Its rank goes on with the update of `closing`, if that is still to come, else at once."""
        self._lose(g, "dropped")
        if closing is None or closing.is_over:
            self._idle.add(g.rank)
        else:
            closing.waiting.append(g.rank)

    def _abort(self, g: Gradient, closing: Closing) -> None:
        self._lose(g, "aborted")
        closing.waiting.append(g.rank)

    def _lose(self, g: Gradient, fate: str, closing: int | None = None) -> None:
        """A contribution comes to nothing; closing: that in which it was too stale."""
        self._leave(g, counts=fate == "dropped")
        for step, _ in (*g.kept, (g.step, g.samples)):
            self._decisions.append(Lost(g.rank, step, fate, closing))

    def _leave(self, g: Gradient, counts: bool = True) -> None:
        """A contribution has met its fate; its riders may board again [16, 18]."""
        self._withdraw(g)
        self.work[g.rank] = None
        if counts:
            self._counts[g.rank] += len(g.kept) + 1
        for rider in [other for other in self._boarded if other.aboard is g]:
            rider.aboard = None
        self._boarded = [rider for rider in self._boarded if rider.aboard is not None]

    def _withdraw(self, g: Gradient) -> None:
        """Call off its push, take back its job if that still waits; one in service goes on."""
        if g.state is State.PUSHING:
            self._decisions.append(CallOff(g.rank, g.step))
        if g.job is not None and g.job.state is JobState.WAITING:
            g.job.state, g.job = JobState.WITHDRAWN, None

    # -- starts and the bound [13, 16] -----------------------------------------------------------

    def _settle(self, released: Mapping[int, Closing]) -> None:
        """Start who may; ask the policy if a rank became blocked by this action [20]."""
        if self._start_all(released) and self.plan.review.on_block:
            self._ask(None)

    def _start_all(self, released: Mapping[int, Closing]) -> bool:
        """Start, by rank, all who hold no gradient and wait for no update; whether one may not."""
        before, self._blocked = self._blocked, set()
        for rank in sorted(rank for rank in self._idle if self._home[rank] is not None):
            if self._is_within_bound(rank):
                self._idle.discard(rank)
                self._start(rank, released.get(rank))
            else:
                self._blocked.add(rank)
        return bool(self._blocked - before)

    def _is_within_bound(self, rank: int) -> bool:
        if self.plan.bound is None:
            return True
        assert isinstance(self.plan.bound, tuple)
        bound = self.plan.bound[rank]
        least = min(self._counts[other] for other in self._named())
        return bound is None or self._counts[rank] - least <= bound

    def _named(self) -> set[int]:
        """The ranks in quorums, riders included."""
        return {rank for rank, home in enumerate(self._home) if home is not None}

    # -- reviews and new plans [19, 20] ----------------------------------------------------------

    def _is_due(self) -> bool:
        version, samples, time = self.reviewed
        since = self.version - version, self.learner.samples - samples, self.now - time
        return self.plan.review.due(*since)

    def _ask(self, released: Mapping[int, Closing] | None) -> None:
        self._released = released
        self._decisions.append(Ask())

    def _change(self, plan: Plan) -> None:
        """Go over to another plan; file what is finished and not closed by it."""
        self.reviewed = self.version, self.learner.samples, self.now
        old, before = self.plan, self._named()
        if plan is old:
            return
        self._adopt(plan)
        if (old.quorums, old.bound, old.fuse) == (plan.quorums, plan.bound, plan.fuse):
            return
        self._filings += 1
        self._file(plan)
        if old.bound is None:
            self._counts = [0] * self.workers
        else:
            least = min((self._counts[rank] for rank in before & self._named()), default=0)
            for rank in self._named() - before:
                self._counts[rank] = least
        for g in self.work:
            if g is not None and g.is_late_for(Late.JOIN):
                g.mark = None
            if g is not None and g.state in (State.PUSHING, State.READY, State.RIDING):
                self._refile(g)
        for gathering in self.gatherings:
            self._arm(gathering)

    def _adopt(self, plan: Plan) -> None:
        """What a plan says of the next steps and of progress."""
        self.plan = plan
        self._sizes = plan.samples(self.learner.batch, self.workers)
        self._in_amp: list[bool] = plan.in_amp.tolist()
        self.learner.lost = self.learner.lost or unmodelled(plan)

    def _file(self, plan: Plan) -> None:
        """Which ranks are in which quorum, and who rides with whom."""
        self.gatherings = [Gathering(index, quorum) for index, quorum in enumerate(plan.quorums)]
        self._home: list[Gathering | None] = [None] * self.workers
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}
        for gathering in self.gatherings:
            for rank in gathering.quorum.members:
                self._home[rank] = gathering
            for child, parent in gathering.quorum.riders:
                self._home[child], self._parents[child] = gathering, parent
                self._children.setdefault(parent, []).append(child)

    def _refile(self, g: Gradient) -> None:
        """File a finished gradient that is not closed."""
        gathering, parent = self._home[g.rank], self._parents.get(g.rank)
        if gathering is None:
            self._drop(g, None)
            return
        if g.aboard is not None and g.aboard.rank != parent:
            g.aboard = None
        if parent is not None:
            self._withdraw(g)
            g.state = State.RIDING
        elif gathering.quorum.via is not Via.SERVER:
            self._withdraw(g)
            g.state, g.arrival = State.READY, g.finish
            self._gather(g, gathering)
        elif g.state is not State.PUSHING:
            if g.job is None:
                g.job = self._enqueue(g, g.finish)
            g.state, g.arrival = State.READY, g.job.arrival
            self._gather(g, gathering)
