"""Decisions of the server: events in, commands out, with neither socket, tensor nor clock.

`simstrag.engine.live.Live` applies the policy's rules; the coordinator knows which rank computes,
which gradient is where, and which command has to wait for it. Times are arguments, in seconds.

A rank is *away* from its `Compute` command until its report or withdrawal arrives. Its next step
waits until then; an abort does not wait.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from simstrag.contract import Outer, Plan
from simstrag.ddp.journal.journal import facts_to_json
from simstrag.ddp.pickled_policy import pack_policy
from simstrag.ddp.server.commanded_allreduces import Reductions
from simstrag.ddp.server.deliveries import Deliveries
from simstrag.ddp.server.messages import (
    Abort,
    Apply,
    Command,
    Compute,
    Finish,
    GradientRoute,
    Handover,
    Keep,
)
from simstrag.ddp.server.worker_state import (
    ReducedSum,
    WorkerState,
    describe_update,
    is_served,
    route,
)
from simstrag.engine.live import Live, Lost, Reduction, Start, Update
from simstrag.errors import NobodyLeft, PlanError
from simstrag.learning.noise_scale import unmodelled
from simstrag.learning.update_rule import WEIGHTED_SUM, UpdateRule


class Coordinator:
    """Turns events at ranks into commands.

    live: the engine, made with `fixed=worker_state.is_fixed`, at its beginning.
    batch: samples of a gradient at a share of 1.
    is_synchronous: whether a plan is better run without the server; if so, the ranks are handed
        over after the next update from which all begin together.
    over: whether there is nothing left to decide.
    """

    def __init__(
        self,
        live: Live,
        world_size: int,
        batch: int,
        is_synchronous: Callable[[Plan], bool] = lambda plan: False,
    ) -> None:
        self.live, self.over = live, False
        self.dead: set[int] = set()
        self._ungrouped = False  # no group all-reduces during backward any more
        self._whole, self._first = world_size * batch, live.version
        self._is_synchronous = is_synchronous
        self._workers = [WorkerState() for _ in range(world_size)]
        self._reductions = Reductions(live, self._workers, self.dead, self._whole)
        self._deliveries = Deliveries(self._workers, self.dead)
        self._pending: deque[Command] = deque()
        self._averaging: tuple[UpdateRule, bool] | None = None  # and whether it is at the server
        self._averages_since = 0  # version

    # -- events ------------------------------------------------------------------------------

    def begin(self) -> list[Command]:
        """All ranks have begun."""
        return self._decide(self.live.now)

    def on_step(
        self,
        rank: int,
        step: int,
        at: float,
        seconds: float,
        *,
        here: bool,
        finite: bool = True,
        squared_norm: float = math.nan,
    ) -> list[Command]:
        """A rank has finished a step.

        seconds: computing time.
        here: whether its gradient has arrived too.
        squared_norm: of the gradient, NaN where it is unknown.
        """
        prepares = self._work_of(rank).prepares
        if self._take_back(rank, step):
            worker = self._workers[rank]
            worker.delivered, worker.finite = here, finite
            worker.squared_norm = squared_norm
            if prepares:
                worker.prepared, worker.samples = (worker.samples, finite), 0
            self.live.finish_step(rank, at, seconds)
        return self._decide(at)

    def on_group(
        self, rank: int, step: int, at: float, members: Mapping[int, tuple[float, bool, float]]
    ) -> list[Command]:
        """The sum of a group has come from `rank`; members: as of `StepReport`."""
        work = self._work_of(rank)
        if work.step != step or set(members) != set(work.members):
            raise ConnectionError(f"rank {rank} sends the sum of a group that is not under way")
        alive = sorted(set(members) - self.dead)
        weights = {other: self._work_of(other).weight for other in alive}
        total = ReducedSum(rank, work.members, weights, average=False)
        if len(alive) < len(members):  # the engine has forgotten the part of the dead rank
            for other in alive:
                self._workers[other].broken = True
            self._regroup()
            return self._decide(at)
        for other, (seconds, finite, squared_norm) in sorted(members.items()):
            worker = self._workers[other]
            worker.work, worker.finite, worker.sum = None, finite, total
            worker.squared_norm = squared_norm
            self.live.finish_step(other, at, seconds)
        return self._decide(at)

    def on_withdrawal(self, rank: int, step: int, at: float) -> list[Command]:
        """A rank is back from a step that was aborted."""
        if self._take_back(rank, step):
            raise ConnectionError(f"rank {rank} gave up step {step}, which was not aborted")
        return self._decide(at)

    def on_delivery(self, rank: int, at: float, closing: int | None = None) -> list[Command]:
        """The gradient that had stayed at a rank has come, or the sum of an all-reduce."""
        self._deliveries.receive(rank, closing)
        return self._decide(at)

    def on_reduction(self, rank: int, closing: int, at: float) -> list[Command]:
        """An all-reduce has ended at a rank; the sum of the lowest member has come."""
        self._pending += self._reductions.on_report(rank, closing, at, failed=False)
        return self._decide(at)

    def on_failure(self, rank: int, at: float, closing: int | None = None) -> list[Command]:
        """A collective failed at a rank: the all-reduce `closing`, or its group's all-reduce."""
        if closing is None:
            self._work_of(rank)
            self._workers[rank].broken = self._ungrouped = True
            self._regroup()
        else:
            self._pending += self._reductions.on_report(rank, closing, at, failed=True)
        return self._decide(at)

    def on_loss(self, rank: int, at: float) -> list[Command]:
        """A rank has left, or died; gradients that it has sent remain valid."""
        if rank in self.dead:
            return []
        self.dead.add(rank)
        worker = self._workers[rank]
        worker.work = worker.next_work = None
        if len(self.dead) == len(self._workers):
            self.over = True
            return []
        try:
            self.live.lose_rank(rank, at)
        except NobodyLeft:  # the plan needs ranks that are all gone
            self.over = True
            return [Finish(other) for other in range(len(self._workers)) if other not in self.dead]
        self._pending += self._reductions.on_loss(at)
        self._regroup()
        return self._decide(at)

    def on_time(self, at: float) -> list[Command]:
        """Nothing has happened until `at`, but a window may have ended."""
        self.live.wait(at)
        return self._decide(at)

    @property
    def expiry(self) -> float:
        """Latest time for the next call of `on_time`, in seconds."""
        return math.inf if self.over else self.live.expiry

    def _work_of(self, rank: int) -> Compute:
        work = self._workers[rank].work
        if work is None:
            raise ConnectionError(f"rank {rank} reports a step, but it was given none")
        return work

    def _take_back(self, rank: int, step: int) -> bool:
        """Note that a rank is back from a step; whether its gradient is still wanted."""
        own, worker = self._work_of(rank).step, self._workers[rank]
        if own != step:
            raise ConnectionError(f"rank {rank} is back from step {step} instead of {own}")
        wanted, worker.work, worker.aborted = not worker.aborted, None, False
        return wanted

    # -- decisions of the engine -------------------------------------------------------------

    def _decide(self, at: float) -> list[Command]:
        while news := self.live.news():
            for event in news:
                if isinstance(event, Update):
                    self._describe(event)
                elif isinstance(event, Start):
                    self._start(event)
                elif isinstance(event, Reduction):
                    self._pending += self._reductions.begin(event, at)
                else:
                    self._lose(event)
        self._hand_over()
        self._align_groups()
        steps = [each for each in self._pending if isinstance(each, Compute)]
        if not all(each.pull or each.local or each.is_round for each in steps):
            raise PlanError(
                f"policy {self.live.name} averages models and then does not; that is possible "
                "where all ranks are there, begin together, and need no server from then on"
            )
        return self._issue()

    def _describe(self, update: Update) -> None:
        for gradient in update.gradients:
            self._workers[gradient.rank].averaged = update.version
        rule = WEIGHTED_SUM if self._averaging is None else self._averaging[0]
        apply = describe_update(update, self._workers, rule)
        is_sum = unmodelled(self.live.plan) is None  # of gradients, each weighed by its samples
        measures = self.live.measures(sum(each.samples for each in update.gradients))
        apply = dataclasses.replace(apply, norms=apply.norms if is_sum else (), measures=measures)
        self._deliveries.expect(apply)
        self._pending.append(apply)

    def _start(self, start: Start) -> None:
        worker, plan = self._workers[start.rank], self.live.plan
        served, takes = is_served(plan, len(self._workers)), None
        if plan.average:
            self._check_average(start, plan, served)
            takes = self._fragment_of(start, plan)
        is_next = start.private and start.version == worker.started  # of one contribution
        worker.samples = start.samples + (worker.samples if start.private and plan.average else 0)
        if not start.private:
            worker.version, worker.rounds = start.version, ()
        elif start.closing is not None:
            assert worker.sum is not None
            worker.rounds += (worker.sum,)
        way, members = route(start.rank, plan)
        if self._ungrouped:
            way, members = GradientRoute.READY, ()
        members = tuple(rank for rank in members if rank not in self.dead)
        overlaps = any(quorum.overlap for quorum in plan.quorums)
        self._pending.append(
            Compute(
                start.rank, start.step, start.version, start.amp, start.samples, way,
                pull=start.closing is None and not (worker.private and (is_next or not served)),
                is_round=start.closing is not None, local=plan.average,
                outer=self._outer, fragments=plan.fragments, served=served, takes=takes,
                prepares=overlaps and not self.live.steps_left(start.rank), members=members,
                weight=start.samples / self._whole if members else 1.0, applied=self.live.samples,
                pause=start.pause, measures=self.live.measures(),
            )
        )  # fmt: skip
        worker.private, worker.started = plan.average, start.version

    @property
    def _outer(self) -> Outer | None:
        """The optimizer of the global model of private steps; None where there is none."""
        rule = WEIGHTED_SUM if self._averaging is None else self._averaging[0]
        return rule.outer_or_mean if rule.has_global_model else None

    def _fragment_of(self, start: Start, plan: Plan) -> int | None:
        """The fragment that a rank takes over where it pulls, of its last update; None for all."""
        worker = self._workers[start.rank]
        if not worker.private:
            worker.averaged = 0  # updates before it has a model of its own do not count
        assert self._averaging is not None
        is_next = self._averaging[0].server or start.private or start.version == worker.averaged
        return (worker.averaged - 1) % plan.fragments if worker.averaged and is_next else None

    def _check_average(self, start: Start, plan: Plan, served: bool) -> None:
        """Raise `PlanError` where no one has the model or state from which a rank would go on."""
        how = UpdateRule.of(plan), served
        if self._averaging is None:
            self._averaging, self._averages_since = how, start.version
        if how != self._averaging:
            raise PlanError(
                f"policy {self.live.name} changes in mid-run how models are averaged (outer, "
                "fragments, overlap, via, or whether all ranks are in each update); that is not "
                "possible on real ranks"
            )
        worker, first = self._workers[start.rank], self._averages_since
        if served:
            return
        if not worker.private and start.version != first:
            raise PlanError(
                f"policy {self.live.name} begins to average models at update {first}, and rank "
                f"{start.rank} enters at {start.version}; all ranks must begin together"
            )
        if worker.private and not start.private and start.version != worker.averaged:
            raise PlanError(
                f"policy {self.live.name} left rank {start.rank} out of averages after update "
                f"{worker.averaged} and takes it back at {start.version}; its model is too old, "
                "and no server has the average: keep it in a quorum, or average via SERVER"
            )

    def _lose(self, lost: Lost) -> None:
        """An aborted step may be under way, waiting to be begun, or finished."""
        worker = self._workers[lost.rank]
        if worker.sum is not None and lost.closing is None:  # it stays in a sum that was sent
            worker.sum.weights.pop(lost.rank, None)
        if worker.next_work is not None and worker.next_work.step == lost.step:
            worker.next_work = None
        self._pending = deque(
            each
            for each in self._pending
            if not (isinstance(each, Compute) and (each.rank, each.step) == lost[:2])
        )
        if lost.fate == "aborted" and worker.work is not None and worker.work.step == lost.step:
            worker.aborted = True
            self._pending.appendleft(Abort(lost.rank, lost.step))

    def _align_groups(self) -> None:
        """Let ranks keep their gradients where some of their group compute outside of it.

        The others would wait for these in their backward.
        """
        steps = {each.rank: each for each in self._pending if isinstance(each, Compute)}
        for rank, worker in enumerate(self._workers):
            if (work := worker.next_work or worker.work) is not None:
                steps.setdefault(rank, work)
        for number, each in enumerate(self._pending):
            if isinstance(each, Compute) and any(
                rank not in steps or steps[rank].members != each.members for rank in each.members
            ):
                self._pending[number] = _alone(each)

    def _regroup(self) -> None:
        """A group whose collective failed repeats its step when all but its dead are back.

        Each member pulls the parameters again: the lowest member's broadcast may not have reached
        all. From now on no group all-reduces during backward: DDP fails after a failed reduction.
        """
        for worker in self._workers:
            if worker.work is None or not worker.broken:
                continue
            alive = tuple(other for other in worker.work.members if other not in self.dead)
            if alive != worker.work.members and all(self._workers[o].broken for o in alive):
                for other in alive:
                    work = self._work_of(other)
                    self._workers[other].work, self._workers[other].broken = None, False
                    self._pending.append(_alone(work))

    # -- commands that can be given now ------------------------------------------------------

    def _hand_over(self) -> None:
        """Hand all ranks over if they are about to begin together under a plan without a server."""
        steps = [each for each in self._pending if isinstance(each, Compute)]
        starting = {each.rank for each in steps}
        together = len(starting) == len(self._workers) and not self._reductions
        if not together or any(worker.work is not None for worker in self._workers):
            return
        if self.live.version == self._first or not self._is_synchronous(self.live.plan):
            return
        apart = not steps[0].pull
        if any(each.pull is apart or each.is_round for each in steps):  # with models of their own
            return
        facts, policy = facts_to_json(self.live.facts()), pack_policy(self.live.policy)
        self._pending = deque(each for each in self._pending if not isinstance(each, Compute))
        self._pending += [Handover(rank, facts, policy, apart) for rank in sorted(starting)]

    def _issue(self) -> list[Command]:
        """The commands that need not wait for a gradient, or a sum, on its way."""
        commands: list[Command] = []
        waiting: deque[Command] = deque()  # for an update, its own commands and all behind it
        while self._pending:
            command = self._pending.popleft()
            if waiting and not (isinstance(command, Compute) and not command.pull):
                waiting.append(command)
            elif isinstance(command, Apply):
                asked, complete = self._deliveries.request(command)
                commands += asked
                if complete is None:
                    waiting.append(command)
                else:
                    commands += [*self._keep(complete), complete]
            elif isinstance(command, Compute):
                self._workers[command.rank].next_work = command
                commands += self._start_next(command.rank)
            elif command.rank not in self.dead:
                commands.append(command)
            self.over = self.over or isinstance(command, Handover)
        self._pending = waiting
        for rank in range(len(self._workers)):
            commands += self._start_next(rank)
        return commands

    def _start_next(self, rank: int) -> list[Command]:
        """The next step of a rank, if it is back from the last one."""
        worker = self._workers[rank]
        waits = worker.next_work is None or worker.work is not None or rank in self.dead
        return [] if waits else [worker.start()]

    def _keep(self, apply: Apply) -> list[Keep]:
        """Keep the parameters that this update changes for ranks that begin from them later."""
        later = {each.rank for each in self._pending if isinstance(each, Compute)}
        return [
            Keep(rank)
            for rank, worker in enumerate(self._workers)
            if rank not in later
            and worker.next_work is not None
            and worker.next_work.pull
            and worker.next_work.version == apply.version - 1
        ]


def _alone(step: Compute) -> Compute:
    """A step of a group as one of its rank alone."""
    return replace(step, route=GradientRoute.READY, members=(), weight=1.0)
