"""Advances a standing plan from event to event, until somebody outside must decide.

The kernel knows steps, quorums, collectives and the server; it knows neither policies nor SimPy.
`advance` runs until the plan asks for a review, the run reaches its end, the next event lies
beyond the horizon, or nothing is left; the driver answers a review with `replan`.  The rules it
follows are numbered in docs/semantics.md; times come from `Timing` alone (rule 0).
"""

from __future__ import annotations

import enum
import heapq
import math
from dataclasses import dataclass
from typing import Any

from simstrag.bound import Bound
from simstrag.fifo import Fifo, Job, JobState
from simstrag.filing import Filing
from simstrag.gradient import Closing, Gradient, State
from simstrag.learning.noise_scale import NoiseScale, unmodelled
from simstrag.plan import Plan, Precision
from simstrag.quorum import Late, Via
from simstrag.recorder import Recorder
from simstrag.timing import Timing

__all__ = ["Kernel", "Limits", "Stop"]

# Rule 15: what comes first among events of one instant. Closings stand between ARRIVE and END;
# they are not scheduled but found, once every finish and arrival of the instant is in. Expiries of
# windows are looked up too: they hang on who is ready, which any event may change.
ARRIVE, END, EXPIRE, TAKE = 0, 2, 3, 4


class Stop(enum.Enum):
    """Why `Kernel.advance` came back."""

    DONE = "done"
    REVIEW = "review"
    HORIZON = "horizon"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a run: the first update at which every limit that is set is reached (rule 23)."""

    updates: int | None = None
    samples: int | None = None
    progress: float | None = None

    def reached(self, updates: int, samples: int, progress: float | None) -> bool:
        if self.progress is not None:
            assert progress is not None, "a target is refused where progress is unknown"
            if progress < self.progress:
                return False
        return (self.updates is None or updates >= self.updates) and (
            self.samples is None or samples >= self.samples
        )


class Kernel:
    """The state of one job between two decisions of the outer world.

    plan: a resolved plan for `world_size` ranks; it starts at time 0 when `advance` is called.
    """

    def __init__(
        self,
        world_size: int,
        timing: Timing,
        plan: Plan,
        learner: NoiseScale,
        limits: Limits,
        recorder: Recorder,
    ) -> None:
        ranks = range(world_size)
        self.world_size = world_size
        self.timing = timing
        self.learner = learner
        self.limits = limits
        self.recorder = recorder
        self.now = 0.0
        self.version = 0
        self.started = [0] * world_size
        self.current: list[Gradient | None] = [None for _ in ranks]
        self._amp: list[bool | None] = [None for _ in ranks]
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._serial = 0
        self._fifo = Fifo()
        self._take_due = False
        self._idle = set(ranks)
        self._blocked: set[int] = set()
        self._filing = Filing(plan, world_size)
        self._bound = Bound(self._filing, world_size)
        self._to_release: list[Closing] = []
        self._asked = False
        self._reviewed = (0, 0, 0.0)
        self._begun = False
        self._refiled = 0
        self._adopt(plan)

    # -- the driver's side -------------------------------------------------------------------

    def advance(self, until: float = math.inf) -> Stop:
        """Go on to the next moment at which the driver must act; events at `until` included."""
        stop = None if self._begun else self._release([])
        self._begun = True
        while stop is None:
            head = self._head()
            arrivals_first = head is not None and head[0] == self.now and head[1] == ARRIVE
            if self._filing.closable and not arrivals_first:
                stop = self._close(min(self._filing.closable))
                continue
            expiry = self._next_expiry() if self._filing.windowed else None
            if expiry is not None and (head is None or expiry < head[:3]):
                if expiry[0] > until:
                    return Stop.HORIZON
                self.now = expiry[0]
                stop = self._close(expiry[2])
            elif head is None:
                return Stop.STALLED
            elif head[0] > until:
                return Stop.HORIZON
            else:
                stop = self._handle(*heapq.heappop(self._heap))
        return stop

    def replan(self, plan: Plan) -> Stop | None:
        """Answer a review with a resolved plan; releases and starts follow within the action.

        Returns what `advance` would, where the same action calls for another review.
        """
        self._reviewed = (self.version, self.learner.samples, self.now)
        old = self.plan
        self._adopt(plan)
        closings, self._to_release = self._to_release, []
        if (plan.quorums, plan.bound, plan.fuse) != (old.quorums, old.bound, old.fuse):
            self._filing = Filing(plan, self.world_size)
            self._bound.change(self._filing)
            self._refile()
        return self._release(closings)

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self._samples = plan.samples(self.learner.batch, self.world_size)
        self._loaded = any(quorum.via is not Via.ALLREDUCE for quorum in plan.quorums)
        self.recorder.planned(plan, self.version, self.now)
        self.learner.lost = self.learner.lost or unmodelled(plan)

    # -- a new plan -------------------------------------------------------------------------

    def _refile(self) -> None:
        """Rule 19: what is finished and not closed over is filed anew, by rank."""
        self._refiled += 1
        for g in self.current:
            if g is not None and g.joins:
                g.marked = None
        filed = [
            g
            for g in self.current
            if g is not None and g.state not in (State.COMPUTING, State.CLOSED, State.GONE)
        ]
        for g in filed:
            if g.rank not in self._filing.named:
                self._drop(g)
                self._idle.add(g.rank)
        for g in filed:
            if g.state is State.GONE:
                continue
            parent = self._filing.parent.get(g.rank)
            if parent is None:
                self._leave_parent(g)
                self._refile_member(g)
            elif g.aboard is None or g.aboard.rank != parent:
                self._put_ashore(g)
        self._filing.sort()

    def _refile_member(self, g: Gradient) -> None:
        if self._filing.quorum(g.rank).via is Via.SERVER:
            if g.state is State.PUSHING:
                return
            if g.job is None:
                g.arrival = g.finish
                self._enqueue(Job(g.finish, g.rank, g, None))
            g.arrival = g.job.arrival if g.job is not None else g.finish
        else:
            self._end_push(g)
            self._withdraw(g)
            g.arrival = g.finish
        g.state = State.READY
        self._filing.add(g)

    # -- events ------------------------------------------------------------------------------

    def _schedule(self, time: float, kind: int, key: int, what: Any) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time, kind, key, self._serial, what))

    def _head(self) -> tuple[float, int, int, int, Any] | None:
        """The next event; steps and pushes that were cancelled are taken off."""
        heap = self._heap
        while heap:
            time, kind, _, _, what = heap[0]
            if kind != ARRIVE or isinstance(what, Closing):
                return heap[0]
            if what.state is State.COMPUTING or (
                what.state is State.PUSHING and time == what.arrival
            ):
                return heap[0]
            heapq.heappop(heap)
        return None

    def _next_expiry(self) -> tuple[float, int, int] | None:
        """The window that expires next, in the order of rule 15; one that is past expires now."""
        filing = self._filing
        time, index = min((filing.expiry(index), index) for index in filing.windowed)
        return None if time == math.inf else (max(time, self.now), EXPIRE, index)

    def _handle(self, time: float, kind: int, key: int, serial: int, what: Any) -> Stop | None:
        self.now = time
        if kind == TAKE:
            return self._take()
        if isinstance(what, Gradient):
            return self._finish(what) if what.state is State.COMPUTING else self._arrive(what)
        if isinstance(what, Closing):
            return self._closing_event(what, arrived=kind == ARRIVE)
        return self._job_end(what)

    def _finish(self, g: Gradient) -> Stop | None:
        rank, filing = g.rank, self._filing
        if rank not in filing.named:
            self._drop(g)
            self._idle.add(rank)
            return None
        if rank in filing.parent:
            g.state = State.ASHORE
            return None
        quorum = filing.quorum(rank)
        if g.marked is not None and quorum.late is Late.DROP:
            return self._drop_late(g, g.marked)
        if len(g.kept) + 1 < quorum.steps:
            self._keep_on(g, g.rounds)
            return None
        if not g.joins:
            g.marked = None  # filed and accepted: from here on only a new mark can make it late
        for child in filing.children[rank]:
            rider = self.current[child]
            if rider is not None and rider.state is State.ASHORE:
                rider.state, rider.aboard = State.ABOARD, g
                g.riders.append(rider)
        g.arrival = self._push(rank) if quorum.via is Via.SERVER else g.finish
        if g.arrival > g.finish:
            g.state = State.PUSHING
            self._schedule(g.arrival, ARRIVE, rank, g)
            return None
        return self._arrive(g)

    def _arrive(self, g: Gradient) -> Stop | None:
        g.pushed = g.arrival - g.finish
        quorum = self._filing.quorum(g.rank)
        if g.marked is not None and quorum.late is Late.DROP:
            return self._drop_late(g, g.marked)
        if quorum.via is Via.SERVER:
            self._enqueue(Job(g.arrival, g.rank, g, None))
        g.state = State.READY
        self._filing.add(g)
        return None

    def _close(self, index: int) -> Stop | None:
        quorum = self.plan.quorums[index]
        contributors, rest = self._filing.take(index)
        closing = Closing(quorum, self.plan, contributors, self.now, self._refiled)
        for g in closing.carriers:
            g.state, g.closing = State.CLOSED, closing
        if quorum.late is not Late.QUEUE:
            self._turn_away(rest, closing)
        if quorum.via is not Via.SERVER:
            end = self.timing.reduce(closing.members, self.now, self._loaded)
            closing.busy = end - self.now
            self._schedule(end, END, self._number(), closing)
        else:
            closing.busy = self.timing.server.job
            closing.undone = sum(
                g.job is not None and g.job.state is not JobState.DONE for g in contributors
            )
            if not closing.undone:
                self._schedule(self.now, END, self._number(), closing)
        dropped = quorum.late is Late.DROP and bool(rest)
        return self._release([]) if dropped and self._blocked else None

    def _turn_away(self, rest: list[Gradient], closing: Closing) -> None:
        """Rule 14: what DROP, ABORT and JOIN do to gradients that come too late."""
        late = closing.quorum.late
        for g in rest:
            if late is Late.DROP:
                self._drop(g)
                closing.waiting.append(g.rank)
            elif late is Late.ABORT:
                self._abort(g, closing)
            else:
                g.marked = closing
        for rank in closing.quorum.members:
            running = self.current[rank]
            if running is None or running.state not in (State.COMPUTING, State.PUSHING):
                continue
            if late is Late.ABORT:
                self._abort(running, closing)
            else:
                running.marked = closing

    def _closing_event(self, closing: Closing, arrived: bool) -> Stop | None:
        """A collective has ended, a leader's push has arrived, or a closing found its jobs done."""
        if closing.quorum.via is not Via.LEADER:
            return self._update([closing])
        if not arrived:
            if not closing.last_round and closing.refiled == self._refiled:
                self._next_round(closing)
                return None
            arrival = self._push(closing.leader)
            closing.busy += arrival - self.now
            if arrival > self.now:
                self._schedule(arrival, ARRIVE, closing.leader, closing)
                return None
        self._enqueue(Job(self.now, closing.leader, None, closing))
        return None

    def _next_round(self, closing: Closing) -> None:
        """A group goes on with its own model, without a push."""
        for g in sorted(closing.contributors, key=lambda g: g.rank):
            self.recorder.kept(g, closing.busy)
            self._keep_on(g, g.rounds + 1)

    # -- the server --------------------------------------------------------------------------

    def _enqueue(self, job: Job) -> None:
        if job.gradient is not None:
            job.gradient.job = job
        self._fifo.put(job)
        self._call_server()

    def _call_server(self) -> None:
        """The idle server takes its next job after all other events of the instant."""
        if self._fifo and not self._fifo.busy and not self._take_due:
            self._take_due = True
            self._schedule(self.now, TAKE, 0, None)

    def _take(self) -> Stop | None:
        self._take_due = False
        jobs = self._fifo.take()
        if not jobs:
            return None
        closings = [job.closing for job in jobs if job.closing is not None]
        union = sorted(rank for closing in closings for rank in closing.members)
        fused = tuple(union) if len(closings) > 1 else ()
        end = self.timing.serve(self.now, fused, self._loaded)
        for closing in closings:
            closing.busy += end - self.now
        self._schedule(end, END, self._number(), jobs)
        return None

    def _job_end(self, jobs: list[Job]) -> Stop | None:
        self._fifo.finish(jobs)
        self._call_server()
        if jobs[0].closing is not None:
            return self._update([job.closing for job in jobs if job.closing is not None])
        g = jobs[0].gradient
        assert g is not None
        closing = g.closing
        if closing is None or closing.quorum.via is not Via.SERVER or g.aboard is not None:
            return None  # not closed over yet, or filed elsewhere since
        closing.undone -= 1
        return None if closing.undone else self._update([closing])

    def _withdraw(self, g: Gradient) -> None:
        if g.job is not None and g.job.state is JobState.WAITING:
            g.job.state = JobState.WITHDRAWN
            g.job = None

    def _number(self) -> int:
        self._serial += 1
        return self._serial

    # -- fates -------------------------------------------------------------------------------

    def _update(self, closings: list[Closing]) -> Stop | None:
        """Rule 12: apply, version += 1, stop test, review if due, then release."""
        applied: list[tuple[Gradient, Closing]] = []
        for closing in closings:
            closing.updated = True
            damping = closing.plan.damping
            for carrier in closing.carriers:
                self.current[carrier.rank] = None
                for g in carrier.whole:
                    g.state = State.GONE
                    self._bound.count(g.rank)
                    if damping.drops(self.version - g.version):
                        self.recorder.dropped(g, closing.busy)
                    else:
                        applied.append((g, closing))
        if not applied:
            return self._release(closings)
        if len(applied) > 1:
            applied.sort(key=lambda pair: pair[0].rank)
        before = self.learner.samples
        self.learner.applied((g.samples, g.seen) for g, _ in applied)
        samples, progress = self.learner.samples, self.learner.progress
        for g, closing in applied:
            self.recorder.applied(g, closing, self.version, before, samples - before)
        self.version += 1
        self.recorder.updated(
            self.now, self.version, samples, progress, [g for g, _ in applied], self.plan.suspects
        )
        if self.limits.reached(self.version, samples, progress):
            return Stop.DONE
        updates0, samples0, time0 = self._reviewed
        if self.plan.review.due(self.version - updates0, samples - samples0, self.now - time0):
            self._to_release = closings
            return Stop.REVIEW
        return self._release(closings)

    def _drop_late(self, g: Gradient, mark: Closing) -> Stop | None:
        self._drop(g)
        if not mark.updated:
            mark.waiting.append(g.rank)
            return self._release([]) if self._blocked else None
        return self._release([], (g.rank,))

    def _drop(self, g: Gradient) -> None:
        self._give_up(g)
        for lost in g.whole:
            self._bound.count(g.rank)
            self.recorder.dropped(lost)

    def _abort(self, g: Gradient, closing: Closing) -> None:
        self._give_up(g)
        g.got = min(g.got, self.now)
        for lost in g.whole:
            self.recorder.aborted(lost, self.now)
        closing.waiting.append(g.rank)

    def _give_up(self, g: Gradient) -> None:
        self._clear(g)
        for lost in g.whole:
            lost.state = State.GONE
        self.current[g.rank] = None

    def _put_ashore(self, g: Gradient) -> None:
        """A finished gradient waits for its parent's next finish."""
        self._clear(g)
        g.state = State.ASHORE

    def _clear(self, g: Gradient) -> None:
        """Call off its push and job; it leaves its parent, and its riders leave it."""
        self._end_push(g)
        self._withdraw(g)
        self._leave_parent(g)
        for rider in g.riders:
            rider.state, rider.aboard = State.ASHORE, None
        g.riders = []

    def _end_push(self, g: Gradient) -> None:
        if g.state is State.PUSHING:
            g.pushed = self.now - g.finish

    def _leave_parent(self, g: Gradient) -> None:
        if g.aboard is not None:
            g.aboard.riders.remove(g)
            g.aboard = None

    # -- starts ------------------------------------------------------------------------------

    def _release(self, closings: list[Closing], dropped: tuple[int, ...] = ()) -> Stop | None:
        """Start, by rank, whom an update or drop lets go, whom it frees, and who has entered."""
        named = self._filing.named
        pullers = {rank: puller for closing in closings for rank, puller in closing.pullers()}
        for rank in (*dropped, *(self._idle & named), *(self._blocked & named)):
            pullers[rank] = self._filing.puller(rank)
        released = pullers.keys() | self._blocked
        self._idle |= released - named
        waiting = self._bound.waiting(released & named)
        ask = not waiting <= self._blocked and self.plan.review.on_block and not self._asked
        self._asked = ask
        self._blocked = waiting
        starting = sorted((released & named) - waiting)
        self._idle.difference_update(starting, waiting)
        for rank in starting:
            self._start(rank, pullers[rank])
        return Stop.REVIEW if ask else None

    def _start(self, rank: int, puller: int | None) -> None:
        self.learner.pulled()
        got = self.now
        if puller is not None:
            got = self.timing.pull(puller, self.now, self._loaded)
        self._compute(rank, got, self.version, self.learner.samples)

    def _keep_on(self, g: Gradient, rounds: int) -> None:
        """The next step of a contribution, on a model of the rank's or its group's own."""
        g.state = State.KEPT
        self._compute(g.rank, self.now, g.version, g.seen, g.whole, rounds)

    def _compute(
        self,
        rank: int,
        got: float,
        version: int,
        seen: int,
        kept: list[Gradient] | None = None,
        rounds: int = 0,
    ) -> None:
        """Begin a step with the parameters that the rank has from `got` on."""
        plan, timing = self.plan, self.timing
        assert isinstance(plan.precision, tuple)
        amp = plan.precision[rank] is Precision.AMP
        start = got
        if self._amp[rank] not in (None, amp):
            start += timing.step.amp_switch
        step, samples = self.started[rank], self._samples[rank]
        share = samples / self.learner.batch
        if plan.deadline is None:
            finish = timing.compute(rank, step, start, amp, share, self._loaded)
        else:
            finish, done = timing.cut(rank, step, start, amp, share, plan.deadline, self._loaded)
            samples = max(samples * done // timing.step.microbatches, 1)
        g = Gradient(rank, step, version, seen, samples, share, amp, self.now, got, start, finish)
        g.kept, g.rounds = kept or [], rounds
        self._amp[rank] = amp
        self.started[rank] = step + 1
        self.current[rank] = g
        self.recorder.started(g)
        self._schedule(finish, ARRIVE, rank, g)

    def _push(self, rank: int) -> float:
        """When what `rank` sends now is at the server."""
        return self.timing.push(rank, self.now, self._loaded)
