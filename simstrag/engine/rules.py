"""The rules of docs/semantics.md as a state machine: facts in, decisions out.

`Rules` knows what each rank does and what the server has to do.  It knows no durations, reads no
clock and does no I/O.  A driver tells it *facts*, what has happened and when, and carries out its
*decisions*; `engine.messages` lists both.  There are two drivers:

- `engine.plain` simulates: it computes when steps, pushes, collectives and jobs will end;
- `engine.live` serves real ranks: it learns when their steps and collectives have ended.

`engine/native` states the same rules a second time, in C, and is tested against this file.

The life of a gradient.  The decision `Start` makes a rank pull parameters and compute.  When its
step ends, the rank pushes its gradient (`Push`) if its quorum is via SERVER.  Then the gradient is
READY, and its quorum gathers it (`Gathering`).  When the quorum has as many gradients as it needs,
it *closes*: they leave it together as one `Closing`, and it begins to gather again.

A closing becomes an `Update`.  Via ALLREDUCE a collective sums its gradients (`Reduction`).  Via
SERVER the server serves each gradient by itself (`Serve`).  Via LEADER a collective sums them, the
leader pushes the sum (`PushSum`), and the server serves it.  The update releases the ranks of the
closing, which start again.  A gradient that comes too late for a closing may be `Lost`.

Riders.  A rider is a rank that no update waits for.  Its finished gradient waits (RIDING) until the
gradient of its parent finishes.  Then it boards that gradient, and shares its fate.

Trees.  A child pushes its gradient to its parent, where it waits (RIDING).  A parent that has
finished waits too, until all its children's gradients are there.  Then they board its gradient,
which is pushed and served for all of them.

The life of a gradient as a table: its state, what moves it, and its state then.  That is a fact; or
a decision of it (`Start`, `Update`, `Lost`); or another plan, under which it is filed anew.

    from        by                      to          where
    -           Start                   COMPUTING   its rank pulls and computes [1, 5]
    COMPUTING   Start                   COMPUTING   its next private step [6b]
    COMPUTING   StepEnded               PUSHING     via SERVER [11]
    COMPUTING   StepEnded               READY       via ALLREDUCE or LEADER [11]
    COMPUTING   StepEnded               RIDING      of a rider, or in a tree [11a, 18]
    COMPUTING   StepEnded               RAN_ON      its run-on is done [6c]
    PUSHING     PushEnded               READY       at the server, which has a job for it [11]
    PUSHING     PushEnded               RIDING      at its parent in a tree [11a]
    READY       Enough, WindowExpired   CLOSED      its quorum closes [11, 17]
    RIDING      StepEnded, PushEnded    PUSHING     its tree is complete [11a]
    RIDING      Enough, WindowExpired   CLOSED      with the gradient that it is on board of [18]
    RAN_ON      Start                   COMPUTING   its rank has the update before [6c]
    CLOSED      Start                   COMPUTING   on its group's own model, by rounds [11]
    CLOSED      Update                  applied     [12]
    CLOSED      Lost                    dropped     by a cutoff [24]
    COMPUTING   Lost                    dropped     late [14], or its rank has left the plan [19]
    PUSHING     Lost                    dropped     likewise
    READY       Lost                    dropped     likewise
    RIDING      Lost                    dropped     its rank has left the plan [19]
    COMPUTING   Lost                    aborted     late [14], or ranks fail [19b, 19c]
    PUSHING     Lost                    aborted     likewise
    READY       Lost                    aborted     likewise
    RIDING      Lost                    aborted     ranks fail [19b, 19c]
    RAN_ON      Lost                    aborted     likewise
    CLOSED      Lost                    aborted     ranks fail, and all restart [19c]
    PUSHING     plan                    READY       now via a collective [19]
    PUSHING     plan                    RIDING      now of a rider or in a tree [19]
    READY       plan                    READY       in the quorum of its rank [19]
    READY       plan                    RIDING      now of a rider or in a tree [19]
    RIDING      plan                    READY       no longer of a rider or in a tree [19]
    RIDING      plan                    RIDING      with its parent, or with another one [19]
    RIDING      plan                    PUSHING     its new tree is complete [11a, 19]

An action is everything that follows from one fact at once; `receive` returns its decisions.  Where
the policy must be asked, `Ask` is the last of them, and `replan` returns the rest of the action;
where a checkpoint is due, `Save` is, and `saved` does.  Nothing follows `Finished`.

Overlap.  A rank may *run on* while its contribution is under way: it takes the first steps of its
next one on its own model, and after them waits (RAN_ON) for the update of the one before.

Order.  A driver keeps facts in an `engine.agenda.Agenda`, which tells them in the order of (time,
turn, fact); that is rule 15.  Some things happen after other facts of the same instant: a quorum
closes after all arrivals.  For these the rules decide `Wake`, and the agenda tells its fact at its
turn.

Staleness.  A fact stays in the agenda when its step is aborted or its quorum closes before its
time.  The agenda asks `expects`, and passes over a fact that is stale.

Numbers in brackets are rules of docs/semantics.md.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Mapping, Sequence

from simstrag.contract import Late, Plan, Quorum, Via, Weigh
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
    Save,
    Serve,
    ServerFree,
    Start,
    StepEnded,
    SumArrived,
    Update,
    Wake,
    WindowExpired,
)  # fmt: skip
from simstrag.engine.rule_state import (
    BY_ARRIVAL,
    BY_RANK,
    STATES,
    Closing,
    Gathering,
    Gradient,
    Job,
    JobState,
    Limits,
    State,
)
from simstrag.errors import PlanError
from simstrag.learning.noise_scale import NoiseScale, unmodelled


class Rules:
    """The state of one job under the rules.

    plan: the first plan, resolved for `workers` ranks.  learner: counts samples and progress.
    now: when the last fact happened.
    """

    def __init__(self, workers: int, plan: Plan, learner: NoiseScale, limits: Limits) -> None:
        self.workers, self.learner, self.limits = workers, learner, limits
        self.now, self.version = 0.0, 0
        self.gradients: list[Gradient | None] = [None] * workers  # that each rank holds
        self.steps = [0] * workers  # that each rank has started
        self.reviewed = (0, 0, 0.0)  # version, samples and time of the last review
        self._counts = [0] * workers  # gradients of each rank, for the bound [16]
        self._precisions: list[bool | None] = [None] * workers  # of each rank's last step
        self._idle = set(range(workers))  # ranks that hold no gradient and wait for no update
        self._blocked: set[int] = set()  # those of them that the bound forbids to start
        self._closings: dict[int, Closing] = {}  # on their way, by number
        self._jobs: list[tuple[float, int, int, Job]] = []  # a heap by (arrival, rank)
        self._serving: list[Job] = []
        self._serial = 0  # numbers closings and jobs in the order of their start [15]
        self._released: Mapping[int, Closing] | None = None  # of the update that asked the policy
        self.marks = math.inf, math.inf  # version and time from which a checkpoint is due [19c]
        self._cost = 0.0  # of the checkpoint that was just taken, or of forming the group anew
        self.failed: set[int] = set()  # ranks whose steps and pushes do not end [19a]
        self._decisions: list[Decision] = []
        self._adopt(plan)
        self._file(plan)

    # -- what a driver calls ---------------------------------------------------------------------

    def resume(
        self, version: int, now: float, reviewed: tuple[int, int, float], steps: list[int]
    ) -> None:
        """Go on from where another job was, before `begin`; no rank holds a gradient."""
        self.version, self.now, self.reviewed, self.steps = version, now, reviewed, steps

    def begin(self) -> list[Decision]:
        """All ranks of the plan start [1]."""
        self._settle({})
        return self._decided()

    def expects(self, fact: Fact, at: float) -> bool:
        """Whether a fact of that time still matters."""
        match fact:
            case StepEnded() | PushEnded():
                g, state = self._latest(fact.rank), STATES[type(fact)]
                if (
                    fact.rank in self.failed
                    or g is None
                    or g.step != fact.step
                    or g.state is not state
                ):
                    return False
                return isinstance(fact, StepEnded) or g.cancelled == fact.cancelled
            case Enough(index):
                return index < len(self.gatherings) and self.gatherings[index].is_full
            case WindowExpired(index):
                return index < len(self.gatherings) and self.gatherings[index].expiry <= at
            case ServerFree():
                return not self._serving and self._next_job() is not None
        return True

    def is_out(self, rank: int) -> bool:
        """Whether a rank is in no quorum and holds no gradient."""
        return self.gradients[rank] is None and self._gathering_of[rank] is None

    def members(self, closing: int) -> tuple[int, ...]:
        """The ranks that contributed to a closing that is on its way."""
        return self._closings[closing].members

    def unfated(self, rank: int) -> list[int]:
        """The numbers of the steps of a rank that have not met their fate."""
        g = self.gradients[rank]
        held = [one for one in (g, g and g.ahead) if one is not None]
        return [step for one in held for step, _ in one.steps]

    @property
    def in_service(self) -> list[int]:
        """The closings whose sums the server serves."""
        return [closing.number for closing in self._closings_in_service()]

    def receive(self, fact: Fact, at: float) -> list[Decision]:
        """The decisions that follow from an expected fact."""
        self.now = at
        match fact:
            case StepEnded():
                self._end_step(self._gradient(fact.rank), fact.samples)
            case PushEnded():
                self._end_push(self._gradient(fact.rank))
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
        if _moves(self.plan, plan):
            check_refiling(self.plan)
        self._change(plan)
        if released is None:  # the policy was asked because a rank is blocked: once per action
            self._start_all({})
        else:
            self._settle(released)
        return self._decided()

    def change(self, plan: Plan, anew: bool = False) -> list[Decision]:
        """Adopt another resolved plan between reviews; the next review is due as before.

        It has another pause, or lacks ranks that are lost.  anew: file gradients anew in any case.
        """
        reviewed = self.reviewed
        self._change(plan, anew)
        self.reviewed = reviewed
        self._settle({})
        return self._decided()

    # -- failures and checkpoints [19a to 19c] -----------------------------------------------------

    def regroup(
        self, at: float, plan: Plan, lost: Sequence[int], back: Sequence[int], cost: float = 0.0
    ) -> list[Decision]:
        """Go on under a plan without lost ranks, and with ranks that are back.

        cost: seconds that ranks which start now pause more.
        """
        self.now, self._cost = at, cost
        for rank in lost:
            for member in self._repeat(rank):
                g = self.gradients[member]
                if g is not None and g.state is not State.CLOSED:
                    self._leave_parent(g)
                    self._lose(g, "aborted")
                    self._idle.add(member)
        self.failed.difference_update(back)
        return self.change(plan, anew=True)

    def _repeat(self, lost: int) -> tuple[int, ...]:
        """Who loses its step with a lost rank: all that sum their gradients with it [19b]."""
        gathering = self._gathering_of[lost]
        if gathering is None or gathering.quorum.via is Via.SERVER:
            return (lost,)
        members = gathering.quorum.members
        sums = gathering.needed == len(members) and lost in members
        return members if sums else (lost,)

    def halt(self, at: float) -> list[Decision]:
        """All ranks stop, and lose what they hold and what is under way [19c]."""
        self.now = at
        for rank in range(self.workers):
            while (g := self.gradients[rank]) is not None:
                self._lose(g, "aborted")
        self._closings, self._jobs, self._serving = {}, [], []
        self._idle, self._blocked = set(range(self.workers)), set()
        self._counts = [0] * self.workers
        self._precisions = [None] * self.workers
        self._file(self.plan)
        return self._decided()

    def restart(
        self, at: float, plan: Plan, version: int, reviewed: tuple[int, int, float]
    ) -> list[Decision]:
        """All ranks start anew from a checkpoint, after `halt`."""
        self.now, self.version, self.reviewed = at, version, reviewed
        self._adopt(plan)
        self._file(plan)
        return self.begin()

    def saved(self, cost: float) -> list[Decision]:
        """Answer `Save`; what its update lets go pauses so many seconds more."""
        released, self._released = self._released, None
        assert released is not None
        self._cost = cost
        if self._is_due():
            self._ask(released)
        else:
            self._settle(released)
        return self._decided()

    def _decided(self) -> list[Decision]:
        decisions, self._decisions = self._decisions, []
        return decisions

    def steps_left(self, rank: int) -> int:
        """The steps that follow a rank's present one in its contribution.

        The plan in force, which has the rank as a member, says how many they are.
        """
        g, gathering = self._gradient(rank), self._gathering_of[rank]
        assert gathering is not None
        quorum = gathering.quorum
        return g.run_on + quorum.steps_of(rank) - quorum.overlap - len(g.steps)

    def is_computing(self, rank: int) -> bool:
        """Whether a rank has begun a step that has not ended."""
        g = self._latest(rank)
        return g is not None and g.state is State.COMPUTING

    def _latest(self, rank: int) -> Gradient | None:
        """The contribution of a rank that it computes or has computed last."""
        g = self.gradients[rank]
        return g if g is None or g.ahead is None else g.ahead

    def _gradient(self, rank: int) -> Gradient:
        g = self._latest(rank)
        assert g is not None
        return g

    # -- steps [1, 5, 6, 6b, 6c] -----------------------------------------------------------------

    def _start(self, rank: int, closing: Closing | None) -> None:
        """Pull and compute; closing: the one whose update releases the rank, if one does."""
        self.learner.pull()
        ahead = self.gradients[rank]
        if ahead is not None:
            self._go_on(ahead)
            return
        gathering = self._gathering_of[rank] if closing is None else closing.gathering
        assert gathering is not None
        puller = self._puller(rank, gathering.quorum, closing)
        relay = dict(gathering.quorum.parents).get(rank)
        self._compute(rank, self.version, self.learner.samples, puller=puller, relay=relay)

    def _puller(self, rank: int, quorum: Quorum, closing: Closing | None) -> int | None:
        """The rank whose link carries a pull; None where a pull is free [11]."""
        if quorum.via is Via.ALLREDUCE:
            return None
        if quorum.via is Via.SERVER:
            return rank
        return quorum.members[0] if closing is None else closing.leader

    def _keep(self, g: Gradient, rounds: int, closing: int | None = None) -> None:
        """Go on without a pull, on the rank's own model [6b] or on that of its closing [11]."""
        first = self.gradients[g.rank]
        before = first if first is not g else None
        self._compute(
            g.rank, g.version, g.seen, g.steps, rounds, closing=closing, run_on=g.run_on,
            before=before,
        )  # fmt: skip

    def _run_on(self, g: Gradient, steps: int) -> None:
        """Take the first steps of the next contribution while this one is under way [6c]."""
        self._compute(g.rank, g.version, g.seen, run_on=steps, before=g)

    def _end_run_on(self, g: Gradient) -> None:
        """Wait for the update of the contribution before, or go on if it has come [6c]."""
        g.state = State.RAN_ON
        if self.gradients[g.rank] is g:
            self.learner.pull()
            self._go_on(g)

    def _go_on(self, g: Gradient) -> None:
        """Its rank has the update of the contribution before, and goes on from there [6c]."""
        g.version, g.seen = self.version, self.learner.samples
        self._keep(g, 0)

    def _compute(
        self,
        rank: int,
        version: int,
        seen: int,
        kept: tuple[tuple[int, int], ...] = (),
        rounds: int = 0,
        puller: int | None = None,
        closing: int | None = None,
        relay: int | None = None,
        run_on: int = 0,
        before: Gradient | None = None,
    ) -> None:
        step, samples, amp = self.steps[rank], self._sizes[rank], self._in_amp[rank]
        switches = self._precisions[rank] not in (None, amp)
        private = bool(kept) or before is not None
        pause = 0.0 if private else self.plan.pause + self._cost
        self.steps[rank], self._precisions[rank] = step + 1, amp
        g = Gradient(rank, step, version, seen, samples, kept, rounds, run_on)
        if before is None:
            self.gradients[rank] = g
        else:
            before.ahead = g
        self._decisions.append(
            Start(
                rank, step, version, amp, samples, private, puller, switches, closing, pause, relay
            )
        )

    def _end_step(self, g: Gradient, samples: int) -> None:
        g.samples, g.finish, done = samples, self.now, len(g.kept) + 1
        gathering = self._gathering_of[g.rank]
        if gathering is None:  # its rank has left the plan [19]
            self._drop(g, None)
            self._settle({})
        elif g.rank in self._parents and not gathering.quorum.parents:
            g.state = State.RIDING
        elif g.mark is Late.DROP and gathering.quorum.late is Late.DROP:
            self._drop(g, g.missed)
            self._settle({})
        elif done == g.run_on:
            self._end_run_on(g)
        elif done - g.run_on < gathering.quorum.steps_of(g.rank) - gathering.quorum.overlap:
            self._keep(g, g.rounds)
        else:
            self._finish(g, gathering)

    def _finish(self, g: Gradient, gathering: Gathering) -> None:
        """A contribution is complete, and its quorum accepts it."""
        if g.mark is not Late.JOIN:
            g.mark = None
        if g.rank in self._children and gathering.quorum.parents:
            g.state = State.RIDING
            self._push_sum_of_tree(g.rank)
            return
        if g.rank in self._children:
            self._board(g)
        if gathering.quorum.via is Via.SERVER:
            self._push(g)
        else:
            self._arrive(g, gathering)
        if gathering.quorum.overlap:
            self._run_on(g, gathering.quorum.overlap)

    def _push(self, g: Gradient) -> None:
        g.state = State.PUSHING
        self._decisions.append(Push(g.rank, g.step, g.cancelled))

    def _push_sum_of_tree(self, parent: int) -> None:
        """Push a parent's gradient once it and those of all its children are there [11a]."""
        family = [self.gradients[rank] for rank in (parent, *self._children[parent])]
        waiting = [g for g in family if g is not None and g.state is State.RIDING and not g.aboard]
        if len(waiting) == len(family):
            self._board(waiting[0])
            self._push(waiting[0])

    def _board(self, parent: Gradient) -> None:
        """The finished gradients of its children join a gradient [11a, 18]."""
        held = [self.gradients[child] for child in self._children[parent.rank]]
        parent.riders = tuple(
            g for g in held if g is not None and g.state is State.RIDING and g.aboard is None
        )
        for rider in parent.riders:
            rider.aboard = parent

    # -- arrivals and closings [11, 17] ----------------------------------------------------------

    def _end_push(self, g: Gradient) -> None:
        gathering = self._gathering_of[g.rank]
        assert gathering is not None
        if g.mark is Late.DROP and gathering.quorum.late is Late.DROP:
            self._drop(g, g.missed)
            self._settle({})
        elif g.rank in self._parents:  # it has arrived at its parent in a tree
            g.state = State.RIDING
            self._push_sum_of_tree(self._parents[g.rank])
        else:
            g.job = self._enqueue(g, self.now)
            self._arrive(g, gathering)

    def _arrive(self, g: Gradient, gathering: Gathering) -> None:
        g.state, g.arrival = State.READY, self.now
        was_open = gathering.opening is not None
        self._gather(g, gathering)
        if gathering.is_full or (not was_open and gathering.opening is not None):
            self._arm(gathering)

    def _gather(self, g: Gradient, gathering: Gathering) -> None:
        if g.mark is Late.JOIN:
            gathering.joining.append(g)
        else:
            insort(gathering.ready, g, key=BY_ARRIVAL)

    def _arm(self, gathering: Gathering) -> None:
        """Ask the driver to tell when a quorum closes; an expiry that is past is now."""
        if gathering.is_full:
            self._decisions.append(Wake(self.now, Enough(gathering.index)))
        elif gathering.expiry < math.inf:
            expiry = max(self.now, gathering.expiry)
            self._decisions.append(Wake(expiry, WindowExpired(gathering.index)))

    def _close(self, gathering: Gathering) -> None:
        ready = gathering.ready
        needed = len(ready) if gathering.quorum.grace else gathering.needed
        contributors, gathering.ready = ready[:needed] + gathering.joining, ready[needed:]
        gathering.joining = []
        closing = self._make_closing(gathering, contributors)
        self._turn_away(gathering, closing)
        if closing.quorum.via is not Via.SERVER:
            ridden = tuple(sorted([g.rank for g in closing.riders]))
            via, average = closing.quorum.via, closing.plan.average
            self._decisions.append(Reduction(
                closing.number, closing.members, ridden, via, average, closing.among,
                closing.plan.fragments, closing.quorum.rounds,
            ))  # fmt: skip
        elif not closing.undone:
            self._decisions.append(Wake(self.now, CollectiveEnded(closing.number)))
        self._arm(gathering)
        self._settle({})

    def _make_closing(self, gathering: Gathering, contributors: list[Gradient]) -> Closing:
        riders = [rider for g in contributors for rider in g.riders]
        closing = Closing(self._number(), gathering, self.plan, contributors, riders)
        self._closings[closing.number] = closing
        for g in (*contributors, *riders):
            g.state, g.closing = State.CLOSED, closing
        if gathering.quorum.via is Via.SERVER:
            for g in contributors:
                assert g.job is not None, "a gradient is ready at a server once it has a job"
                closing.undone += g.job.state is not JobState.DONE
        return closing

    def _number(self) -> int:
        self._serial += 1
        return self._serial

    # -- from a closing to its update: collectives and the server [11] ---------------------------

    def _end_collective(self, closing: Closing) -> None:
        if closing.quorum.via is not Via.LEADER:
            self._update([closing])
        elif self._goes_on(closing):
            del self._closings[closing.number]
            for g in sorted(closing.contributors, key=BY_RANK):
                self._keep(g, g.rounds + 1, closing.number)
        else:
            self._decisions.append(PushSum(closing.leader, closing.number))

    def _goes_on(self, closing: Closing) -> bool:
        """Whether its group goes on with its own model, without a push."""
        rounds = max(g.rounds for g in closing.contributors) + 1
        return rounds < closing.quorum.rounds and closing.gathering in self.gatherings

    def _enqueue(self, owner: Gradient | Closing, arrival: float) -> Job:
        job = Job(owner, arrival)
        rank = owner.rank if isinstance(owner, Gradient) else owner.leader
        heapq.heappush(self._jobs, (arrival, rank, self._number(), job))
        self._call_server()
        return job

    def _call_server(self) -> None:
        """The server takes its next job after everything else of the instant."""
        if not self._serving and self._next_job() is not None:
            self._decisions.append(Wake(self.now, ServerFree()))

    def _next_job(self) -> Job | None:
        while self._jobs and self._jobs[0][-1].state is JobState.WITHDRAWN:
            heapq.heappop(self._jobs)
        return self._jobs[0][-1] if self._jobs else None

    def _serve(self) -> None:
        """Serve the next job; one that fuses together with all others that do."""
        *_, head = heapq.heappop(self._jobs)
        self._serving = [head]
        if head.fuses:
            self._serving += [job for *_, job in sorted(self._jobs) if job.fuses]
            self._jobs = [entry for entry in self._jobs if not entry[-1].fuses]
            heapq.heapify(self._jobs)
        for job in self._serving:
            job.state = JobState.IN_SERVICE
        closings = self._closings_in_service()
        union = sorted(rank for c in closings for rank in c.members) if len(closings) > 1 else ()
        numbers = tuple(closing.number for closing in closings)
        self._decisions.append(Serve(self._number(), numbers, tuple(union)))

    def _closings_in_service(self) -> list[Closing]:
        return [job.owner for job in self._serving if isinstance(job.owner, Closing)]

    def _end_job(self) -> None:
        closings, (head, *_) = self._closings_in_service(), self._serving
        self._serving = []
        self._call_server()
        if closings:
            self._update(closings)
        else:
            head.state, g = JobState.DONE, head.owner
            assert isinstance(g, Gradient)
            if g.job is head:  # else its parent pushes it anew
                self._end_service(g)

    def _end_service(self, g: Gradient) -> None:
        """The server has served a gradient, which may be lost or filed elsewhere by now."""
        closing = g.closing
        if self.gradients[g.rank] is not g or closing is None or g.aboard is not None:
            return
        if closing.quorum.via is Via.SERVER:
            closing.undone -= 1
            if not closing.undone:
                self._update([closing])

    # -- an update [12, 23, 24] ------------------------------------------------------------------

    def _update(self, closings: Sequence[Closing]) -> None:
        """Apply the gradients that no cutoff drops; then end, ask the policy or release ranks."""
        fresh: list[Gradient] = []
        released: dict[int, Closing] = {}
        for closing in closings:
            closing.is_over = True
            del self._closings[closing.number]
            released |= dict.fromkeys(closing.waiting, closing)
        gradients = [g for closing in closings for g in (*closing.contributors, *closing.riders)]
        for g in sorted(gradients, key=BY_RANK):
            assert g.closing is not None
            released[g.rank] = g.closing
            if g.closing.plan.damping.drops(self.version - g.version):
                self._lose(g, "dropped", g.closing.number)
            else:
                self._leave(g)
                fresh.append(g)
        for rank in released:
            ahead = self.gradients[rank]
            if ahead is None or ahead.state is State.RAN_ON:
                self._idle.add(rank)  # else it goes on after its run-on [6c]
        if not fresh:
            self._settle(released)
            return
        self._apply(fresh)
        if self.limits.reached(self.version, self.learner):
            self._decisions.append(Finished())
        elif self.version >= self.marks[0] or self.now >= self.marks[1]:
            self._released = released
            self._decisions.append(Save())
        elif self._is_due():
            self._ask(released)
        else:
            self._settle(released)

    def _apply(self, fresh: Sequence[Gradient]) -> None:
        contents = [g.steps for g in fresh]
        sizes = [sum([samples for _, samples in steps]) for steps in contents]
        together, world = sum(sizes), self.workers * self.learner.batch
        applied = []
        for g, steps in zip(fresh, contents, strict=True):
            assert g.closing is not None
            plan, number = g.closing.plan, g.closing.number
            whole = together if plan.average or plan.weigh is Weigh.MEMBERS else world
            for step, n in steps:
                weight = n / whole
                if plan.damping.power:
                    weight *= plan.damping.factor(self.version - g.version)
                applied.append(Applied(g.rank, step, g.version, g.seen, n, weight, number))
        self.learner.apply(zip(sizes, [g.seen for g in fresh], strict=True))
        self.version += 1
        self._decisions.append(Update(self.version, tuple(applied)))

    # -- gradients that are late, and what becomes of their ranks [13, 14] -----------------------

    def _turn_away(self, gathering: Gathering, closing: Closing) -> None:
        """Drop, abort or mark the gradients of members that a closing was made without."""
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
                g.mark, g.missed = late, closing
                gathering.joining.append(g)
        for rank in closing.quorum.members:
            running = self.gradients[rank]
            if running is None or running.state not in (State.COMPUTING, State.PUSHING):
                continue
            if late is Late.ABORT:
                self._abort(running, closing)
            else:
                running.mark, running.missed = late, closing

    def _drop(self, g: Gradient, closing: Closing | None) -> None:
        """Drop a gradient; its rank starts with the update of `closing`, or now if that is over."""
        self._lose(g, "dropped")
        if closing is None or closing.is_over:
            self._idle.add(g.rank)
        else:
            closing.waiting.append(g.rank)

    def _abort(self, g: Gradient, closing: Closing) -> None:
        self._lose(g, "aborted")
        closing.waiting.append(g.rank)

    def _lose(self, g: Gradient, fate: str, closing: int | None = None) -> None:
        """A contribution is not applied; closing: the one whose cutoff drops it, if one does."""
        self._withdraw(g)
        self._leave(g, counts=fate == "dropped")
        for step, _ in g.steps:
            self._decisions.append(Lost(g.rank, step, fate, closing))

    def _leave(self, g: Gradient, counts: bool = True) -> None:
        """A contribution has met its fate; if it was lost, its riders may board again [16, 18]."""
        self.gradients[g.rank] = g.ahead
        g.missed = None  # or each closing would keep the one before in memory
        if counts:
            self._counts[g.rank] += len(g.kept) + 1
        for rider in g.riders:
            rider.aboard = None

    def _withdraw(self, g: Gradient) -> None:
        """Cancel its push, and its job if that still waits; a job in service goes on."""
        if g.state is State.PUSHING:
            g.cancelled += 1
            self._decisions.append(CallOff(g.rank, g.step))
        if g.job is not None and g.job.state is JobState.WAITING:
            g.job.state, g.job = JobState.WITHDRAWN, None

    # -- starts and the bound [13, 16] -----------------------------------------------------------

    def _settle(self, released: Mapping[int, Closing]) -> None:
        """Start the ranks that may; ask the policy if a rank became blocked by this action [20]."""
        if self._start_all(released) and self.plan.review.on_block:
            self._ask(None)

    def _start_all(self, released: Mapping[int, Closing]) -> bool:
        """Start the idle ranks that the bound allows, by rank; whether one became blocked."""
        ready = sorted([rank for rank in self._idle if self._gathering_of[rank] is not None])
        before, self._blocked = self._blocked, self._beyond_bound(ready)
        for rank in ready:
            if rank not in self._blocked:
                self._idle.discard(rank)
                self._start(rank, released.get(rank))
        self._cost = 0.0
        return bool(self._blocked - before)

    def _beyond_bound(self, ranks: Sequence[int]) -> set[int]:
        """Those that are too far ahead of the slowest rank in a quorum to start."""
        bounds = self.plan.bound
        if bounds is None or not ranks:
            return set()
        assert isinstance(bounds, tuple)
        least = min(map(self._counts.__getitem__, self._planned))
        return {
            rank for rank in ranks
            if (bound := bounds[rank]) is not None and self._counts[rank] - least > bound
        }  # fmt: skip

    # -- reviews and new plans [19, 20] ----------------------------------------------------------

    def _is_due(self) -> bool:
        version, samples, time = self.reviewed
        since = self.version - version, self.learner.samples - samples, self.now - time
        return self.plan.review.due(*since)

    def _ask(self, released: Mapping[int, Closing] | None) -> None:
        """Ask the policy; released: the ranks that start after it, None if a rank is blocked."""
        self._released = released
        self._decisions.append(Ask())

    def _change(self, plan: Plan, anew: bool = False) -> None:
        """Adopt another plan; file again the gradients that are finished and not closed."""
        self.reviewed = self.version, self.learner.samples, self.now
        old, before = self.plan, self._planned
        if plan is not old:
            self._adopt(plan)
        if not (anew or (plan is not old and _moves(old, plan))):
            return
        self._file(plan)
        if old.bound is None:
            self._counts = [0] * self.workers
        else:
            least = min((self._counts[rank] for rank in before & self._planned), default=0)
            for rank in self._planned - before:
                self._counts[rank] = least
        for g in self.gradients:
            if g is not None and g.mark is Late.JOIN:
                g.mark = None
            if g is not None and g.state in (State.PUSHING, State.READY, State.RIDING):
                self._refile(g)
        for parent in sorted(self._children):
            self._push_sum_of_tree(parent)
        for gathering in self.gatherings:
            self._arm(gathering)

    def _adopt(self, plan: Plan) -> None:
        """Take over what a plan says about the next steps and about progress."""
        self.plan = plan
        self._sizes = plan.samples(self.learner.batch, self.workers)
        self._in_amp: list[bool] = plan.in_amp.tolist()
        self.learner.lost = self.learner.lost or unmodelled(plan)

    def _file(self, plan: Plan) -> None:
        """Take over which ranks are in which quorum, and which have which parent."""
        self.gatherings = [Gathering(i, q, q.needed) for i, q in enumerate(plan.quorums)]
        self.uses_server = any(q.via is not Via.ALLREDUCE for q in plan.quorums)  # its load is on
        self._gathering_of: list[Gathering | None] = [None] * self.workers
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}
        for gathering in self.gatherings:
            for rank in gathering.quorum.members:
                self._gathering_of[rank] = gathering
            for child, parent in (*gathering.quorum.riders, *gathering.quorum.parents):
                self._gathering_of[child], self._parents[child] = gathering, parent
                self._children.setdefault(parent, []).append(child)
        self._planned = {
            rank for rank, gathering in enumerate(self._gathering_of) if gathering is not None
        }

    def _refile(self, g: Gradient) -> None:
        """File a finished gradient that is not closed in the quorum of its rank."""
        gathering, parent = self._gathering_of[g.rank], self._parents.get(g.rank)
        if g.aboard is not None and g.aboard.rank != parent:
            self._leave_parent(g)
        if gathering is None:
            self._drop(g, None)
        elif gathering.quorum.parents and (parent is not None or g.rank in self._children):
            self._refile_in_tree(g, parent)
        elif parent is not None:
            self._withdraw(g)
            g.state = State.RIDING
        elif gathering.quorum.via is not Via.SERVER:
            self._withdraw(g)
            g.state, g.arrival = State.READY, g.finish
            self._gather(g, gathering)
        elif g.state is not State.PUSHING:
            self._refile_at_server(g, gathering)

    @staticmethod
    def _leave_parent(g: Gradient) -> None:
        """Take a gradient off its parent, if it is on board."""
        if g.aboard is not None:
            g.aboard.riders = tuple(rider for rider in g.aboard.riders if rider is not g)
            g.aboard = None

    def _refile_at_server(self, g: Gradient, gathering: Gathering) -> None:
        if g.job is None:
            g.job = self._enqueue(g, g.finish)
        g.state, g.arrival = State.READY, g.job.arrival
        self._gather(g, gathering)

    def _refile_in_tree(self, g: Gradient, parent: int | None) -> None:
        """A child's is with its parent; a parent's waits unless all its children's are on board."""
        children = [self.gradients[child] for child in self._children.get(g.rank, ())]
        if g.state is State.PUSHING and parent is not None:
            return
        if parent is None and all(child is not None and child.aboard is g for child in children):
            if g.state is not State.PUSHING:
                gathering = self._gathering_of[g.rank]
                assert gathering is not None
                self._refile_at_server(g, gathering)
            return
        self._withdraw(g)
        g.state = State.RIDING
        for rider in g.riders:
            rider.aboard = None
        g.riders = ()


def _moves(old: Plan, new: Plan) -> bool:
    """Whether gradients have to be filed anew where one plan follows another [19]."""
    return (old.quorums, old.bound, old.fuse) != (new.quorums, new.bound, new.fuse)


def check_refiling(old: Plan) -> None:
    """Raise `PlanError` where a plan in force does not let gradients be filed anew [6c, 19]."""
    if any(quorum.overlap for quorum in old.quorums):
        raise PlanError(
            "a plan with overlap cannot be replaced by one with other quorums, bound or fuse"
        )
