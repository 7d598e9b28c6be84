"""One running job of a cluster: its engine, its speed, and what it asks of its nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from simstrag import policies
from simstrag.arrays import Floats, Ints
from simstrag.cluster.barrier_gate import Gate, is_barrier
from simstrag.cluster.demands import Demands, RecentDemands, Slowdowns
from simstrag.cluster.job_costs import JobCosts, parents_of, uses_server
from simstrag.cluster.placers import Placement
from simstrag.cluster.study import ArrivingJob, ClusterStudy
from simstrag.contract import Plan, View
from simstrag.contract.plan import NEVER
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulation import Engine, Simulation
from simstrag.errors import PlanError
from simstrag.learning.update_rule import UpdateRule
from simstrag.policies.estimators.time_to_progress import straggle
from simstrag.runs.run import Run
from simstrag.timing.noise import keys

STRAGGLES = 0.2
"""A rank straggles if its iteration is longer than the fastest rank's by more than this share."""


class CountsUse(Protocol):
    """Counts what a job uses of its nodes; times are of the job's own clock."""

    def count_computing(self, at: float) -> None:
        """Count the computing up to `at`, where the speed changes."""

    def count(self, at: float) -> None:
        """Count all use up to `at`; the job may have ended."""

    def follow(self, plan: Plan, old: Plan) -> None:
        """Count from now on by `plan` in place of `old`."""


class _Seen(NamedTuple):
    """What a job had done by a time of its own clock.

    busy: shape (2, N), seconds in which each rank computed and communicated.
    updates: how many it had made.
    """

    at: float
    busy: Floats
    updates: int


class RunningJob:
    """A job on its nodes, from its start to its end.

    devices: the number of each rank's device.
    start: seconds of the cluster's clock at its own time 0.
    seed: of the study.  That of its noise follows from this and from the job's number, so that a
        job has the same luck whatever runs beside it.
    gate: holds it at its barrier; None where its policy decides alone.
    telemetry: of nodes the windows of their monitors, for a policy that reads them.
    counter: makes the counter of what the job uses; None counts nothing.
    recorder: takes its rows; one that keeps none by default.

    `rules` has what its plans make of gradients, for a real learner, where a recorder is given.
    """

    def __init__(
        self,
        study: ClusterStudy,
        job: ArrivingJob,
        placement: Placement,
        devices: Sequence[int],
        start: float,
        seed: int,
        gate: Gate | None = None,
        telemetry: Callable[[Ints], Floats] | None = None,
        counter: Callable[[RunningJob], CountsUse] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.job, self.placement, self.start = job, placement, start
        self.nodes, self.servers = np.array(placement.workers), np.array(placement.servers)
        self.devices = tuple(devices)
        self.seed = int(keys(seed, [job.number])[0])
        workload = study.workloads[job.workload]
        self.scenario = study.scenario(
            job.workload, job.workers, job.samples, job.target_progress, placement.workers
        )
        self.colocates_as = workload.colocates_as
        inputs = self.scenario.inputs
        self.costs = costs = JobCosts(workload, inputs, placement.workers)
        self._noise = self.scenario.noise_of(self.seed)
        self.shares, self.most = costs.shares, costs.most
        self.quickest = costs.quickest(self._noise)
        self.slowdowns = Slowdowns.none(job.workers)
        policy, self.gate, self.delayed = policies.load(job.policy), gate, 0.0
        self._use: CountsUse | None = None
        self.rules: dict[UpdateRule, None] = {}
        self._recorded = recorder is not None
        shown = None
        if telemetry is not None and getattr(policy, "reads_telemetry", False):
            shown = partial(telemetry, self.nodes)
        self._simulation = Simulation(
            self.scenario, policy, job.policy, self.seed,
            Recorder(keep_updates=False) if recorder is None else recorder,
            timing=costs.timing(self.slowdowns, self._noise), permit=self._permit,
            telemetry=shown,
        )  # fmt: skip
        if counter is not None:
            self._use = counter(self)
        self._recent = RecentDemands(job.workers)
        self._seen = self._counted = _Seen(0.0, np.zeros((2, job.workers)), 0)
        self._lost = self._paused = np.zeros(job.workers)
        self.end: float | None = None
        self._at_end: tuple[Floats, ...] | None = None
        self._judged, self._straggled = np.zeros(job.workers, np.int64), 0

    # -- time ----------------------------------------------------------------------------------

    def advance(self, until: float) -> bool:
        """Go on to that time of its own clock, or to its end; whether it ends."""
        if self._simulation.advance(until):
            kernel = self.kernel
            self._at_end = kernel.usage(kernel.now)  # `end` accounts for the last steps, too
            if self._use is not None:
                self._use.count(kernel.now)
            kernel.end()
            self._judge()
            self.end = self.start + kernel.now
            return True
        return False

    def stop(self, now: float) -> None:
        """The run is over, and it is not: count what it has done, and what it used."""
        at = now - self.start
        ends = self.advance(at)
        assert not ends, "a job that ends is found before"
        self.kernel.pause(at)
        self._judge()
        if self._use is not None:
            self._use.count(at)

    @property
    def next_event(self) -> float:
        """When something happens in it next, on its own clock."""
        self.kernel.pause(self.kernel.now)
        return self.kernel.next_event

    def earliest_end(self) -> float:
        """A time of its own clock before which it cannot end, whatever its shares.

        All ranks compute without a pause, at their quickest, what is left beyond the gradients that
        they hold now.
        """
        kernel, scenario = self.kernel, self.scenario
        batch = scenario.learner.batch
        kernel.pause(kernel.now)
        samples, progress = kernel.applied
        left = 0.0
        if scenario.sample_target is not None:
            left = scenario.sample_target - samples
        if scenario.progress_target is not None:  # an open visible update is worth less than 1
            much = scenario.progress_target - progress - 1
            left = max(left, much * max(scenario.learner.noise_scale, 1.0))
        held = max(max(q.most_steps, q.rounds) for q in kernel.plan.quorums) + 1
        left -= self.job.workers * batch * held
        return kernel.now + max(left, 0.0) * self.quickest / (self.job.workers * batch)

    @property
    def is_slowed(self) -> bool:
        """Whether any of its ranks, or its server, is slowed."""
        return not self.slowdowns.equals(Slowdowns.none(self.job.workers))

    def slow(self, now: float, slowdowns: Slowdowns) -> None:
        """Go on at other speeds from `now` on."""
        if not slowdowns.equals(self.slowdowns):
            kernel, at = self.kernel, now - self.start
            kernel.pause(at)
            self._judge()
            if self._use is not None:
                self._use.count_computing(at)
            kernel.retime(at, self.costs.timing(slowdowns, self._noise))
            self.slowdowns = slowdowns

    def discard(self) -> None:
        """Free its engine, which refers back to the job; nothing of it is read afterwards."""
        del self._simulation, self._use

    def _permit(self, plan: Plan) -> Plan:
        """The plan that takes force, which its gate may choose."""
        if any(quorum.overlap or quorum.partial for quorum in plan.quorums):
            raise PlanError(
                f"policy {self.job.policy}: what overlapped and partial collectives use of a "
                "shared node is not modelled; simulate the job by itself"
            )
        plan = plan if self.gate is None else self.gate(plan)
        if self._use is not None:
            self._use.follow(plan, self.kernel.plan)
        if self.delayed:
            self._count_delays(self.kernel.usage(self.kernel.now)[2])
        if self._recorded:
            self.rules[UpdateRule.of(plan)] = None
        return plan

    @property
    def kernel(self) -> Engine:
        """The engine that advances this job."""
        return self._simulation.kernel

    def result(self) -> Run:
        """The finished run, without tables."""
        return self._simulation.result()

    @property
    def stragglers(self) -> float:
        """Of 1,000 gradients those of ranks that straggled, by times without noise."""
        gradients = int(self._judged.sum())
        return 1000 * self._straggled / gradients if gradients else math.nan

    def _judge(self) -> None:
        """Count the gradients of ranks that straggled since the last change of its speed."""
        made = self.kernel.applied_by_rank
        slow = straggle(self.iteration_seconds(), STRAGGLES)
        self._straggled += int((made - self._judged)[slow].sum())
        self._judged = made

    # -- what a manager sees, and what it does -------------------------------------------------

    @property
    def may_ask(self) -> bool:
        """Whether its policy is asked again, and then a manager may have to be."""
        return self.gate is not None and self.kernel.plan.review != NEVER

    @property
    def at_barrier(self) -> bool:
        """Whether its updates wait for all ranks, and it is not about to leave."""
        about_to = self.gate is not None and self.gate.permitted
        return is_barrier(self.kernel.plan) and not about_to

    @property
    def gradients(self) -> float:
        """Number of gradients that the job has applied."""
        return self.kernel.applied[0] / self.scenario.learner.batch

    @property
    def updates(self) -> int:
        """Number of updates that the job has made."""
        return self.kernel.version

    def iteration_seconds(self) -> Floats:
        """Seconds of each rank's step and communication at present speeds, without noise."""
        known = self.kernel.plan, self.slowdowns
        return self.costs.step_seconds(*known) + self.costs.communication_seconds(*known)

    def delay(self, now: float, seconds: float) -> None:
        """From `now` on its ranks pause so much longer before each step (rule C14)."""
        ends = self.advance(now - self.start)
        assert not ends, "a job that ends is found before"
        if seconds != self.delayed:
            self._count_delays(self._usage(now - self.start)[2])
            self._simulation.delay(now - self.start, seconds)
            self.delayed = seconds

    def lost(self, now: float) -> Floats:
        """Seconds by which delays made each rank pause, in the steps that it has begun."""
        self._count_delays(self._usage(now - self.start)[2])
        return self._lost

    def _count_delays(self, paused: Floats) -> None:
        """Count at the pause of now what ranks have paused so far in all."""
        if self.delayed:  # the policy's own pause is not the delay's
            self._lost = (
                self._lost + (paused - self._paused) * self.delayed / self.kernel.plan.pause
            )
        self._paused = paused

    # -- what it asks for ----------------------------------------------------------------------

    def demands(self, now: float) -> Demands:
        """By its use since the last call; back-to-back steps at first (rule C6)."""
        at, seconds = now - self.start, now - self.start - self._seen.at
        if seconds > 0:
            self._seen, steps, asked = self._asked_since(self._seen, at)
            limits = self.costs.limits(self.kernel.plan, self.slowdowns, steps)
            self._recent.add(seconds, float(steps.mean() * seconds), asked, limits)
        elif self._recent.empty:
            return self.costs.at_full_speed(self.kernel.plan)
        return self._recent.mean()

    def _asked_since(self, then: _Seen, at: float) -> tuple[_Seen, Floats, Demands]:
        """What it has done until a later time; its steps and demands per second since."""
        now, seconds = _Seen(at, np.array(self._usage(at)[:2]), self.updates), at - then.at
        known = self.kernel.plan, self.slowdowns
        steps, gradients = self.costs.rates(*known, (now.busy - then.busy) / seconds)
        updates = (now.updates - then.updates) / seconds
        return now, steps, self.costs.demands(*known, steps, gradients, updates)

    def _usage(self, at: float) -> tuple[Floats, ...]:
        """What its engine counts until a time of its own clock, or until its end."""
        if self._at_end is not None:
            return self._at_end
        self.kernel.pause(at)
        return self.kernel.usage(at)

    def used(self, now: float) -> tuple[float, Demands]:
        """Seconds since the last call, and what it used per second of them (`telemetry`)."""
        at, s = now - self.start, self.slowdowns
        seconds = at - self._counted.at
        if seconds <= 0:
            return 0.0, self.most
        self._counted, _, d = self._asked_since(self._counted, at)
        return seconds, Demands(
            d.host / s.host, d.gpu / s.gpu, d.push / s.net, d.pull / s.net, d.ring / s.net,
            d.service / s.server,
        )  # fmt: skip

    def view(self) -> View:
        """The view of the job's policy at this moment, with the truth."""
        return self.kernel.view(self._simulation.hints, self.kernel.truth)

    def local_seconds(self, slowed: bool = True) -> Floats:
        """Seconds of each rank's computing, push and pull, without noise or waiting."""
        s = self.slowdowns if slowed else Slowdowns.none(self.job.workers)
        return self.costs.local_seconds(self.kernel.plan, s)

    @property
    def uses_server(self) -> bool:
        """Whether any quorum of its plan goes through the server."""
        return uses_server(self.kernel.plan)

    @property
    def parents(self) -> Ints:
        """Of each rank its parent in the gradient tree of its plan, -1 without one."""
        return parents_of(self.kernel.plan, self.job.workers)

    def ends(self, shard: int) -> Ints:
        """Of each rank the node at the other end of what is of a shard: in a tree its parent's."""
        parents = self.parents
        return np.where(parents < 0, shard, self.nodes[parents])
