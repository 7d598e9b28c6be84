"""What the steps and gradients of a job cost: seconds, and what they use of its nodes.

Under a plan and slowdowns, without noise and without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simstrag.arrays import Floats, Ints
from simstrag.cluster.demands import Demands, Slowdowns, ring_bytes
from simstrag.cluster.study_sections import WorkloadSection
from simstrag.contract import Plan, Quorum, Via
from simstrag.scenario.resolved_inputs import Inputs
from simstrag.timing.collectives import ranks_per_node
from simstrag.timing.constants import amp_gain
from simstrag.timing.contention import Contention
from simstrag.timing.noise import Noise
from simstrag.timing.timing import Timing


def uses_server(plan: Plan) -> bool:
    """Whether any quorum goes through the server."""
    return any(quorum.via is not Via.ALLREDUCE for quorum in plan.quorums)


def parents_of(plan: Plan, workers: int) -> Ints:
    """Of each rank its parent in the gradient tree, -1 without one."""
    found = np.full(workers, -1)
    for quorum in plan.quorums:
        for child, parent in quorum.parents:
            found[child] = parent
    return found


def groups_of(plan: Plan) -> tuple[Quorum, ...]:
    """The quorums that all-reduce, and whose leader then pushes the sum [11]."""
    return tuple(quorum for quorum in plan.quorums if quorum.via is Via.LEADER)


def server_messages(
    plan: Plan, gradients: Floats, updates: float | None = None
) -> tuple[Floats, float]:
    """Of each rank its messages to the server and its children's parent, and the services of all.

    A group's leader, its lowest rank, sends one for all members and rounds; groups that wait
    together are one service, and one update.  A child's message is served in its parent's [11a].

    gradients: of each rank.
    updates: made with them; None where that is unknown, and then no service is of several groups.
    """
    if not uses_server(plan):
        return np.zeros(len(gradients)), 0.0
    sent, served = gradients.copy(), parents_of(plan, len(gradients)) < 0
    groups, led = groups_of(plan), 0.0
    for quorum in groups:
        those = quorum.indices
        sums = gradients[those].sum() / (quorum.needed * quorum.rounds)
        sent[those], served[those] = 0.0, False
        sent[those[0]] = sums
        led += sums
    if groups and updates is not None:
        if len(groups) == len(plan.quorums):
            led = updates
        elif plan.fuse:
            led = min(led, updates)
    return sent, float(sent[served].sum() + led)


class JobCosts:
    """The costs of a job.

    nodes: of each rank.
    bytes: size of a gradient.
    shares: of the service at each server shard.
    transfer_seconds: of a push and of a pull.
    """

    def __init__(self, workload: WorkloadSection, inputs: Inputs, nodes: Sequence[int]) -> None:
        step, allreduce, server = inputs.step, inputs.allreduce, inputs.server
        self._step, self._allreduce, self._server = step, allreduce, server
        self._host_cores, self._server_cores = workload.host_cores, workload.server_cores
        self._nodes, self.workers = tuple(nodes), len(nodes)
        self._gain = amp_gain(step) if step.amp_ratio else 1.0
        self.bytes = workload.bytes_of(allreduce)
        self.shares = server.shards
        self.transfer_seconds = server.push, server.pull
        self._reduces_by_node = allreduce.algorithm == "hierarchical"
        self._ring = ring_bytes(self.bytes, np.array(nodes), self.workers, self._reduces_by_node)
        self._reduced_in = allreduce.seconds(ranks_per_node(range(self.workers), self._nodes))

    # -- seconds -------------------------------------------------------------------------------

    def timing(self, s: Slowdowns, noise: Noise) -> Timing:
        """The same for an engine."""
        server = self._server
        if s.server != 1:
            server = replace(server, service=server.service * s.server)
        contention = Contention.constant(s.host, s.gpu, s.net)
        return Timing(self._step, self._allreduce, server, contention, noise, self._nodes)

    def step_seconds(self, plan: Plan, s: Slowdowns) -> Floats:
        """Seconds of each rank's step, in its precision."""
        host, device = self._host_seconds(plan) * s.host, self._device_seconds(plan) * s.gpu
        seconds: Floats = np.maximum(host, device) if self._step.overlaps else host + device
        return seconds

    def communication_seconds(self, plan: Plan, s: Slowdowns) -> Floats:
        """Seconds of communication of each rank's gradient."""
        server = self._server
        if uses_server(plan):
            seconds: Floats = (server.push + server.pull) * s.net + server.job * s.server
            parents = parents_of(plan, self.workers)
            seconds[parents >= 0] += server.pull * s.net[parents[parents >= 0]]
            for quorum in groups_of(plan):
                those = quorum.indices
                reduced = self._allreduce.seconds(
                    ranks_per_node(quorum.members[: quorum.needed], self._nodes)
                )
                seconds[those] = seconds[those[0]] / quorum.rounds + reduced * s.net[those].max()
            return seconds
        return np.full(self.workers, self._reduced_in * float(s.net.max()))

    def local_seconds(self, plan: Plan, s: Slowdowns) -> Floats:
        """Seconds of each rank's computing, push and pull."""
        moved = sum(self.transfer_seconds) if uses_server(plan) else 0.0
        seconds: Floats = self.step_seconds(plan, s) + moved * s.net
        return seconds

    def quickest(self, noise: Noise) -> float:
        """No step of a nominal batch takes fewer seconds in any precision, with any noise."""
        step, drawn, factor = self._step, noise.distribution, 1.0
        if drawn is not None:
            tables = drawn.quantiles, drawn.marginal
            factor = min(float(table.min()) for table in tables if table.size)
        least = self._least_seconds if step.amp is None else min(step.gpu, step.amp[1])
        return max(least * factor * (1 - step.fixed_share), 0.0)

    def _host_seconds(self, plan: Plan) -> Floats:
        amp = self._step.amp
        return np.where(plan.in_amp, self._step.host if amp is None else amp[0], self._step.host)

    def _device_seconds(self, plan: Plan) -> Floats:
        return np.where(plan.in_amp, self._step.gpu / self._gain, self._step.gpu)

    @property
    def _least_seconds(self) -> float:
        """Least seconds of a step without noise, in any precision."""
        if self._step.amp is not None:
            return min(self._step.clean, max(self._step.amp))
        return self._step.host + self._step.gpu / max(self._gain, 1.0)

    # -- use of nodes --------------------------------------------------------------------------

    def parts(self, plan: Plan, s: Slowdowns) -> tuple[Floats, Floats]:
        """Of each rank, processor and device seconds of one second of computing.

        A worker that waits for its share of either uses neither meanwhile.
        """
        seconds = self.step_seconds(plan, s)
        host = self._host_seconds(plan) * self._host_cores
        return host / seconds, self._device_seconds(plan) / seconds

    def rates(self, plan: Plan, s: Slowdowns, busy: Floats) -> tuple[Floats, Floats]:
        """Steps and gradients per second of each rank.

        busy: shape (2, N), the shares of time in which it computes and communicates.
        """
        computed, communicated = busy
        steps, seconds = computed / self.step_seconds(plan, s), self.communication_seconds(plan, s)
        timed = seconds > 0
        return steps, np.where(timed, communicated / np.where(timed, seconds, 1.0), steps)

    @property
    def service_seconds(self) -> Floats:
        """Processor seconds of a message at each server shard."""
        return self._server.service * np.array(self.shares) * self._server_cores

    def ring_bytes(self, quorum: Quorum) -> Floats:
        """Of each member, bytes that an all-reduce of a quorum sends and receives."""
        nodes = np.array(self._nodes)[quorum.indices]
        return ring_bytes(self.bytes, nodes, quorum.needed, self._reduces_by_node)

    def demands(
        self,
        plan: Plan,
        s: Slowdowns,
        steps: Floats,
        gradients: Floats,
        updates: float | None = None,
    ) -> Demands:
        """What ranks would use that make so many steps and gradients per second while slowed.

        updates: per second; see `server_messages`.
        """
        step, gain = self._step, np.where(plan.in_amp, self._gain, 1.0)
        messages, services = server_messages(plan, gradients, updates)
        ring = np.zeros(self.workers) if uses_server(plan) else self._ring
        for quorum in groups_of(plan):
            ring[quorum.indices] = self.ring_bytes(quorum)
        return Demands(
            steps * self._host_seconds(plan) * self._host_cores * s.host,
            steps * step.gpu / gain * s.gpu,
            messages * s.net * self.bytes,
            messages * s.net * self.bytes,
            gradients * s.net * ring,
            services * s.server * self._server.service * np.array(self.shares) * self._server_cores,
        )

    def limits(self, plan: Plan, s: Slowdowns, steps: Floats) -> Demands:
        """A rank asks for one gradient per step at most, a server shard is busy all the time."""
        most = self.demands(plan, s, steps, 1 / self.step_seconds(plan, s))
        return replace(most, service=np.minimum(most.service, self._server_cores))

    def at_full_speed(self, plan: Plan) -> Demands:
        """The demands of back-to-back steps that nothing slows."""
        none = Slowdowns.none(self.workers)
        steps = 1 / (self.step_seconds(plan, none) + self.communication_seconds(plan, none))
        return self.demands(plan, none, steps, steps).within(self.limits(plan, none, steps))

    @property
    def most(self) -> Demands:
        """More than it can ask for while nothing slows it: steps without any communication.

        Ranks of a node may be in groups of their own, which do not reduce together.
        """
        n, least = self.workers, np.full(self.workers, self._least_seconds)
        ring = ring_bytes(self.bytes, np.array(self._nodes), n, hierarchical=False)
        served = np.minimum(n / least[0] * self._server.service * np.array(self.shares), 1.0)
        moved = self.bytes / least
        host = max(self._step.host, self._step.amp[0] if self._step.amp else 0.0)
        return Demands(
            np.full(n, self._host_cores * host / least[0]), np.ones(n), moved, moved,
            ring / least, served * self._server_cores,
        )  # fmt: skip
