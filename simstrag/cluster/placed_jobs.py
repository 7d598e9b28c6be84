"""What is placed on each node: workers on its devices, and server shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simstrag.cluster.job import RunningJob
from simstrag.cluster.placers import NodeView, Placement, Placer, Request
from simstrag.cluster.study import ArrivingJob, ClusterStudy


@dataclass(slots=True, eq=False)
class _Node:
    """What is placed on a node: workers on each of its devices, and server shards."""

    first_device: int
    held: list[int]
    servers: int = 0
    high_load: int = 0
    cores_asked: float = 0.0
    nic_asked: float = 0.0


class PlacedJobs:
    """The nodes of a study, and what is on them.

    jobs: all that will come; their sizes say what servers of a workload ask for at most.
    """

    def __init__(self, study: ClusterStudy, jobs: Sequence[ArrivingJob]) -> None:
        self.study = study
        self._held: list[_Node] = []
        first = 0
        for kind in study.each_node:
            self._held.append(_Node(first, [0] * kind.gpus))
            first += kind.gpus
        self._loads = {name: self._load_of(name, jobs) for name in study.workloads}
        self._median = {
            k: float(np.median([load[k] for load in self._loads.values()])) for k in (0, 1)
        }

    def take(self, job: RunningJob, sign: int = 1) -> None:
        """Take the devices and server places of a job; with `sign` -1 give them back."""
        cores, bytes_ = self._loads[job.job.workload]
        for node, device in zip(job.nodes.tolist(), job.devices, strict=True):
            self._held[node].held[device - self._held[node].first_device] += sign
        for node in job.servers.tolist():
            held = self._held[node]
            held.servers += sign
            held.high_load += sign * self._is_high_load(job.job.workload)
            held.cores_asked += sign * cores
            held.nic_asked += sign * bytes_

    def place(self, job: ArrivingJob, placer: Placer) -> Placement | None:
        """Where a placer puts a job; None where devices are missing."""
        views = self._views()
        if sum(view.free for view in views) < job.workers:
            return None
        cores, bytes_ = self._loads[job.workload]
        shards = len(self.study.scenario(job.workload, 1, samples=1).inputs.server.shards)
        high_load = self._is_high_load(job.workload)
        request = Request(job.number, job.workers, shards, cores, bytes_, high_load)
        return placer.place(views, request)

    def devices(self, nodes: tuple[int, ...]) -> list[int]:
        """The device of each worker: of its node the one with the fewest workers."""
        more: dict[int, list[int]] = {}
        devices = []
        for node in nodes:
            held = more.setdefault(node, list(self._held[node].held))
            device = held.index(min(held))
            held[device] += 1
            devices.append(self._held[node].first_device + device)
        return devices

    def _views(self) -> list[NodeView]:
        room = self.study.workers_per_gpu
        return [
            NodeView(
                k, sum(room - n for n in held.held), kind.gpus, kind.cores, kind.nic_in,
                kind.nic_out, held.servers, held.high_load, held.cores_asked, held.nic_asked,
            )
            for k, (kind, held) in enumerate(zip(self.study.each_node, self._held, strict=True))
        ]  # fmt: skip

    def _load_of(self, workload: str, jobs: Sequence[ArrivingJob]) -> tuple[float, float]:
        """What a server shard of a workload uses of a processor, and bytes/s in one direction.

        Of the largest job of it in the study, under asgd without waiting.
        """
        sizes = [job.workers for job in jobs if job.workload == workload] or [1]
        scenario = self.study.scenario(workload, max(sizes), samples=1)
        inputs, section = scenario.inputs, self.study.workloads[workload]
        server, share = inputs.server, max(inputs.server.shards)
        cycle = inputs.step.clean + server.push + server.pull + server.job
        pushes = max(sizes) / cycle
        busy = min(pushes * server.service * share, 1.0) * section.server_cores
        return busy, pushes * section.bytes_of(inputs.allreduce) * share

    def _is_high_load(self, workload: str) -> bool:
        load = self._loads[workload]
        return any(load[k] > self._median[k] for k in (0, 1))
