"""What the steps and gradients of a job take of time and of its nodes, by its constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simstrag.cluster.demands import Demands, Floats, Slowdowns, ring_bytes
from simstrag.cluster.study import WorkloadSection
from simstrag.scenario.resolved_inputs import Inputs
from simstrag.timing.collectives import ranks_per_node
from simstrag.timing.constants import amp_gain
from simstrag.timing.contention import Contention
from simstrag.timing.noise import Noise
from simstrag.timing.timing import Timing

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class JobCosts:
    """The constants of a job on its nodes.

    bytes: size of a gradient.
    ring: bytes that each rank sends, and receives, through its node's card in an all-reduce of all.
    service: processor seconds of a message at each server shard.
    transfer_seconds: of a push and a pull.
    """

    def __init__(
        self, workload: WorkloadSection, inputs: Inputs, nodes: Sequence[int], noise: Noise
    ) -> None:
        self.inputs, self.step, self.server = inputs, inputs.step, inputs.server
        self.host_cores, self.server_cores = workload.host_cores, workload.server_cores
        stated = workload.gradient_bytes
        self.bytes = inputs.allreduce.bytes if stated is None else stated
        self.reduces_by_node = inputs.allreduce.algorithm == "hierarchical"
        self.ring = ring_bytes(self.bytes, np.array(nodes), len(nodes), self.reduces_by_node)
        self.service = self.server.service * np.array(self.server.shards) * self.server_cores
        self.transfer_seconds = self.server.push, self.server.pull
        self._nodes, self._noise = tuple(nodes), noise
        self._gain = amp_gain(self.step) if self.step.amp_ratio else 1.0
        members = ranks_per_node(range(len(nodes)), self._nodes)
        self._reduced_in = inputs.allreduce.seconds(members)

    def timing(self, slowdowns: Slowdowns) -> Timing:
        """When steps, collectives and transfers end at some speeds."""
        inputs, server = self.inputs, self.server
        if slowdowns.server != 1:
            server = replace(server, service=server.service * slowdowns.server)
        contention = Contention.constant(slowdowns.host, slowdowns.gpu, slowdowns.net)
        return Timing(inputs.step, inputs.allreduce, server, contention, self._noise, self._nodes)

    def device_seconds(self, in_amp: Flags) -> Floats:
        """Of a step of each rank, in its precision."""
        return np.where(in_amp, self.step.gpu / self._gain, self.step.gpu)

    def seconds_of_step(self, s: Slowdowns, in_amp: Flags) -> Floats:
        """Of each rank, in its precision."""
        seconds: Floats = self.step.host * s.host + self.device_seconds(in_amp) * s.gpu
        return seconds

    def parts(self, s: Slowdowns, in_amp: Flags) -> tuple[Floats, Floats]:
        """Of each rank, processor and device seconds of one second of computing.

        A worker that waits for its share of either uses neither meanwhile.
        """
        seconds = self.seconds_of_step(s, in_amp)
        return self.step.host * self.host_cores / seconds, self.device_seconds(in_amp) / seconds

    def seconds_of_communication(self, s: Slowdowns, parents: Ints | None) -> Floats:
        """Of one gradient of each rank, without waiting for others.

        parents: in a gradient tree, else -1; None where no gradient goes through the server.
        """
        if parents is None:
            return np.full(len(self._nodes), self._reduced_in * float(s.net.max()))
        server = self.server
        seconds: Floats = (server.push + server.pull) * s.net + server.job * s.server
        seconds[parents >= 0] += server.pull * s.net[parents[parents >= 0]]
        return seconds

    def demands(
        self, steps: Floats, gradients: Floats, s: Slowdowns, in_amp: Flags, parents: Ints | None
    ) -> Demands:
        """From steps and gradients per second of each rank; parents: as above."""
        gradients, shards = gradients * s.net, np.array(self.server.shards)
        gain = np.where(in_amp, self._gain, 1.0)
        none, served = np.zeros(len(steps)), 0.0
        pushed, reduced = (none, gradients) if parents is None else (gradients, none)
        if parents is not None:  # a child's gradient is in its parent's message [11a]
            served = gradients[parents < 0].sum() / s.net.mean() * s.server
        return Demands(
            steps * self.step.host * self.host_cores * s.host,
            steps * self.step.gpu / gain * s.gpu,
            pushed * self.bytes,
            pushed * self.bytes,
            reduced * self.ring,
            served * self.server.service * shards * self.server_cores,
        )

    @property
    def most(self) -> Demands:
        """More than it can ask for while nothing slows it: steps without any communication."""
        step, n = self.step, len(self._nodes)
        least = np.full(n, step.host + step.gpu / max(self._gain, 1.0))
        shards = np.array(self.server.shards)
        served = np.minimum(n / least[0] * self.server.service * shards, 1.0)
        moved = self.bytes / least
        return Demands(
            np.full(n, self.host_cores * step.host / least[0]), np.ones(n), moved, moved,
            self.ring / least, served * self.server_cores,
        )  # fmt: skip

    @property
    def quickest(self) -> float:
        """No step of a nominal batch takes fewer seconds in any precision, with any noise."""
        step, factor = self.step, 1.0
        if step.noise is not None:
            tables = step.noise.quantiles, step.noise.marginal
            factor = min(float(table.min()) for table in tables if table.size)
        quickest = step.host + step.gpu / max(self._gain, 1.0)
        return max(quickest * factor * (1 - step.fixed_share), 0.0)
