"""One running job of a cluster: what it asks of its nodes, and how its shares slow it down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simstrag import policies
from simstrag.cluster.demands import Demands, Floats, Slowdowns
from simstrag.cluster.gate import Gate, is_barrier
from simstrag.cluster.job_costs import JobCosts
from simstrag.cluster.placer import Placement
from simstrag.cluster.study import ArrivingJob, ClusterStudy
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import Engine, Simulation
from simstrag.plan import NEVER, Plan
from simstrag.quorum import Via
from simstrag.runs.run import Run
from simstrag.timing.noise import Noise, keys
from simstrag.view import View

Ints = npt.NDArray[np.int64]


STRAGGLES = 0.2
"""A rank straggles if its iteration is longer than the fastest rank's by more than this share."""
CYCLES = 8
"""Least steps over which use is averaged; over fewer it depends on where an interval begins."""


def straggle(seconds: Floats) -> npt.NDArray[np.bool_]:
    """The ranks whose iterations are too long.

    >>> straggle(np.array([1.0, 1.2, 1.3]))
    array([False, False,  True])
    """
    slow: npt.NDArray[np.bool_] = seconds > (1 + STRAGGLES) * seconds.min()
    return slow


class CountsUse(Protocol):
    """Counts what a job uses of its nodes; times are of the job's own clock."""

    def count_computing(self, at: float) -> None:
        """Its speed changes then."""

    def count(self, at: float) -> None:
        """It was advanced until then, and may have ended."""

    def follow(self, plan: Plan, old: Plan) -> None:
        """A plan takes force in place of another one."""


class RunningJob:
    """A job on its nodes, from its start to its end.

    devices: the number of each rank's device.
    start: seconds of the cluster's clock at its own time 0.
    seed: of the study.  That of its noise follows from this and from the job's number, so that a
        job has the same luck whatever runs beside it.
    gate: holds it at its barrier; None where its policy decides alone.
    telemetry: of nodes the windows of their monitors, for a policy that reads them.
    counter: makes what counts its use; None where nobody asks.
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
        noise = Noise(self.seed, inputs.step.noise)
        self.costs = JobCosts(workload, inputs, placement.workers, noise)
        self.shares, self.most = inputs.server.shards, self.costs.most
        self.transfer_seconds, self.quickest = self.costs.transfer_seconds, self.costs.quickest
        self.slowdowns = Slowdowns.none(job.workers)
        policy, self.gate = policies.load(job.policy), gate
        self._use: CountsUse | None = None
        shown = None
        if telemetry is not None and getattr(policy, "reads_telemetry", False):
            shown = partial(telemetry, self.nodes)
        self._simulation = Simulation(
            self.scenario, policy, job.policy, self.seed, Recorder(keep_updates=False),
            timing=self.costs.timing(self.slowdowns), permit=self._permit, telemetry=shown,
        )  # fmt: skip
        if counter is not None:
            self._use = counter(self)
        self._past: list[tuple[float, float, Floats]] = []
        self._seen = np.zeros((2, job.workers))
        self._seen_at = 0.0
        self._counted, self._counted_at = self._seen, 0.0
        self.end: float | None = None
        self.delayed = 0.0
        self._at_end: tuple[Floats, ...] | None = None
        self._judged, self._straggled = np.zeros(job.workers, np.int64), 0

    # -- time ----------------------------------------------------------------------------------

    def advance(self, until: float) -> bool:
        """Go on to that time of its own clock, or to its end; whether it ends."""
        if self._simulation.advance(until):
            kernel = self._simulation.kernel
            self._at_end = kernel.usage(kernel.now)  # `end` accounts for the last steps, too
            if self._use is not None:
                self._use.count(kernel.now)
            kernel.end()
            self._judge()
            self.end = self.start + kernel.now
            return True
        return False

    @property
    def next_event(self) -> float:
        """When something happens in it next, on its own clock."""
        self._simulation.kernel.pause(self._simulation.kernel.now)
        return self._simulation.kernel.next_event

    def earliest_end(self) -> float:
        """A time of its own clock before which it cannot end, whatever its shares.

        All ranks compute without a pause, at their quickest, what is left beyond the gradients that
        they hold now.
        """
        kernel, scenario, batch = (
            self._simulation.kernel,
            self.scenario,
            self.scenario.learner.batch,
        )
        kernel.pause(kernel.now)
        samples, progress = kernel.applied
        left = 0.0
        if scenario.sample_target is not None:
            left = scenario.sample_target - samples
        if scenario.progress_target is not None:  # an open visible update is worth less than 1
            much = scenario.progress_target - progress - 1
            left = max(left, much * max(scenario.learner.noise_scale, 1.0))
        held = max(max(q.steps, q.rounds) for q in kernel.plan.quorums) + 1
        left -= self.job.workers * batch * held
        return kernel.now + max(left, 0.0) * self.quickest / (self.job.workers * batch)

    @property
    def is_slowed(self) -> bool:
        """Whether any of its ranks, or its server, is slowed."""
        return not self.slowdowns.equals(Slowdowns.none(self.job.workers))

    def slow(self, now: float, slowdowns: Slowdowns) -> None:
        """From `now` on, go on at other speeds."""
        if not slowdowns.equals(self.slowdowns):
            kernel, at = self._simulation.kernel, now - self.start
            kernel.pause(at)
            self._judge()
            if self._use is not None:
                self._use.count_computing(at)
            kernel.retime(at, self.costs.timing(slowdowns))
            self.slowdowns = slowdowns

    def count_use(self, now: float) -> None:
        """Advance it until then, and hand over what it has used."""
        ends = self.advance(now - self.start)
        assert not ends, "a job that ends is found before"
        if self._use is not None:
            self._use.count(now - self.start)

    def discard(self) -> None:
        """Free its engine, which refers back to the job, once nobody asks it anything."""
        del self._simulation, self._use

    def _permit(self, plan: Plan) -> Plan:
        """The plan that takes force, which its gate may choose."""
        plan = plan if self.gate is None else self.gate(plan)
        if self._use is not None:
            self._use.follow(plan, self.kernel.plan)
        return plan

    @property
    def kernel(self) -> Engine:
        """Its engine."""
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
        made = self._simulation.kernel.applied_by_rank
        self._straggled += int((made - self._judged)[straggle(self.iteration_seconds())].sum())
        self._judged = made

    # -- what a manager sees, and what it does -------------------------------------------------

    @property
    def may_ask(self) -> bool:
        """Whether its policy is asked again, and then a manager may have to be."""
        return self.gate is not None and self._simulation.kernel.plan.review != NEVER

    @property
    def at_barrier(self) -> bool:
        """Whether its updates wait for all ranks, and it is not about to leave."""
        about_to = self.gate is not None and self.gate.permitted
        return is_barrier(self._simulation.kernel.plan) and not about_to

    @property
    def gradients(self) -> float:
        """How many it has applied."""
        return self._simulation.kernel.applied[0] / self.scenario.learner.batch

    @property
    def updates(self) -> int:
        """How many it has made."""
        return self._simulation.kernel.version

    def iteration_seconds(self) -> Floats:
        """Of each rank, a step and its communication at the speeds of now, without noise."""
        s = self.slowdowns
        return self._seconds_of_step(s) + self._seconds_of_communication(s)

    def delay(self, now: float, seconds: float) -> None:
        """From `now` on its ranks pause so much longer before each step (rule C14)."""
        ends = self.advance(now - self.start)
        assert not ends, "a job that ends is found before"
        if seconds != self.delayed:
            self._simulation.delay(now - self.start, seconds)
            self.delayed = seconds

    def paused(self, now: float) -> float:
        """Seconds of the delayed rank that pauses longest, in the steps that it has begun."""
        if not self.delayed:
            return 0.0
        seconds = float(self._usage(now - self.start)[2].max())
        return (
            seconds * self.delayed / self.kernel.plan.pause
        )  # a policy's own pause is not the delay's

    # -- what it asks for ----------------------------------------------------------------------

    def demands(self, now: float) -> Demands:
        """By its use since the last call; back-to-back steps at first (rule C6)."""
        at = now - self.start
        since = at - self._seen_at
        if since <= 0:
            return self._mean_of_past() if self._past else self._at_full_speed()
        seen = np.array(self._usage(at)[:2])
        steps, gradients = self._rates((seen - self._seen) / since)
        self._seen, self._seen_at = seen, at
        values = [each.joined() for each in (self._demands(steps, gradients), self._limits(steps))]
        self._past.append((since, float(steps.mean() * since), np.concatenate(values)))
        left, kept = float(CYCLES), 0
        while kept < len(self._past) and left > 0:
            kept += 1
            left -= self._past[-kept][1]
        self._past = self._past[-kept:]
        return self._mean_of_past()

    def _usage(self, at: float) -> tuple[Floats, ...]:
        """What its engine counts until a time of its own clock, or until its end."""
        if self._at_end is not None:
            return self._at_end
        self.kernel.pause(at)
        return self.kernel.usage(at)

    def _rates(self, busy: Floats) -> tuple[Floats, Floats]:
        """Steps and gradients per second; busy: shares of time in computing and communication."""
        computed, communicated = busy
        step, communication = (
            of(self.slowdowns) for of in (self._seconds_of_step, self._seconds_of_communication)
        )
        steps, timed = computed / step, communication > 0
        return steps, np.where(timed, communicated / np.where(timed, communication, 1.0), steps)

    def used(self, now: float) -> tuple[float, Demands]:
        """Seconds since the last call, and what it used per second of them (`telemetry`)."""
        at, s = now - self.start, self.slowdowns
        since = at - self._counted_at
        if since <= 0:
            return 0.0, self.most
        seen = np.array(self._usage(at)[:2])
        steps, gradients = self._rates((seen - self._counted) / since)
        self._counted, self._counted_at = seen, at
        d = self._demands(steps, gradients)
        return since, Demands(
            d.host / s.host, d.gpu / s.gpu, d.push / s.net, d.pull / s.net, d.ring / s.net,
            d.service / s.server,
        )  # fmt: skip

    def view(self) -> View:
        """What its policy would see now, with the truth."""
        kernel = self._simulation.kernel
        return kernel.view(self._simulation.hints, kernel.truth)

    def local_seconds(self, slowed: bool = True) -> Floats:
        """Of each rank, computing plus push plus pull, without noise or waiting."""
        s = self.slowdowns if slowed else Slowdowns.none(self.job.workers)
        moved = sum(self.transfer_seconds) if self.uses_server else 0.0
        seconds: Floats = self._seconds_of_step(s) + moved * s.net
        return seconds

    def _mean_of_past(self) -> Demands:
        """Over `CYCLES` steps at least.

        Means are limited, not what they are of: the gradients of an interval come in bursts.
        """
        seconds = np.array([each for each, _, _ in self._past])
        means = seconds / seconds.sum() @ np.array([values for _, _, values in self._past])
        used, most = (Demands.split(part, self.job.workers) for part in np.split(means, 2))
        return used.within(most)

    def _at_full_speed(self) -> Demands:
        """The demands of back-to-back steps that nothing slows."""
        none = Slowdowns.none(self.job.workers)
        seconds = self._seconds_of_step(none)
        communication = self._seconds_of_communication(none)
        steps = 1 / (seconds + communication)
        before, self.slowdowns = self.slowdowns, none
        demands = self._demands(steps, steps)
        demands = demands.within(self._limits(steps))
        self.slowdowns = before
        return demands

    def _limits(self, steps: Floats) -> Demands:
        """A rank asks for one gradient per step at most, a server shard is busy all the time."""
        most = self._demands(steps, 1 / self._seconds_of_step(self.slowdowns))
        return replace(most, service=np.minimum(most.service, self.costs.server_cores))

    def _demands(self, steps: Floats, gradients: Floats) -> Demands:
        """From steps and gradients per second of each rank."""
        return self.costs.demands(steps, gradients, self.slowdowns, self._in_amp(), self._senders)

    def parts(self) -> tuple[Floats, Floats]:
        """Of each rank, processor and device seconds of one second of computing now."""
        return self.costs.parts(self.slowdowns, self._in_amp())

    def _seconds_of_step(self, s: Slowdowns) -> Floats:
        return self.costs.seconds_of_step(s, self._in_amp())

    def _seconds_of_communication(self, s: Slowdowns) -> Floats:
        return self.costs.seconds_of_communication(s, self._senders)

    @property
    def _senders(self) -> Ints | None:
        """`parents`; None where no gradient goes through the server."""
        return self.parents if self.uses_server else None

    @property
    def uses_server(self) -> bool:
        """Whether any quorum of its plan goes through the server."""
        plan = self._simulation.kernel.plan
        return any(quorum.via is not Via.ALLREDUCE for quorum in plan.quorums)

    @property
    def parents(self) -> npt.NDArray[np.int64]:
        """Of each rank its parent in the gradient tree of its plan, -1 without one."""
        found = np.full(self.job.workers, -1)
        for quorum in self._simulation.kernel.plan.quorums:
            for child, parent in quorum.parents:
                found[child] = parent
        return found

    def ends(self, shard: int) -> npt.NDArray[np.int64]:
        """Of each rank the node at the other end of what is of a shard: in a tree its parent's."""
        parents = self.parents
        return np.where(parents < 0, shard, self.nodes[parents])

    def _in_amp(self) -> npt.NDArray[np.bool_]:
        return self._simulation.kernel.plan.in_amp
