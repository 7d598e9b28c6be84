"""Renegotiation: from the demands of all jobs to the share, and so the slowdown, of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.cluster.colocation import ColocationLaw, colocated_slowdowns
from simstrag.cluster.demands import Demands, Slowdowns
from simstrag.cluster.job import RunningJob
from simstrag.cluster.sharing import fair_level, fill, slowdowns
from simstrag.cluster.study_sections import NodeSection
from simstrag.timing.contention import Contention

RESOURCES = ("cores", "nic_in", "nic_out", "gpus")


class Nodes:
    """The nodes of a cluster, and the load of others on them.

    others: by node; values hold from one of its times to the next.
    colocation: how workers on one device slow each other.
    """

    def __init__(
        self, kinds: Sequence[NodeSection], others: Contention, colocation: ColocationLaw
    ) -> None:
        self.kinds, self.colocation = tuple(kinds), colocation
        self.capacity = np.array([[k.cores, k.nic_in, k.nic_out, k.gpus] for k in kinds], float)
        self._others = others.slowdowns

    def next_change(self, now: float) -> float:
        """When the load of others changes next; infinity where it never does."""
        return min((piece.at(now)[1] for piece in self._others.values()), default=math.inf)

    def others(self, now: float) -> dict[str, Floats]:
        """Slowdowns of each node by others at a time, by resource; `step` slows host and device."""
        found = {name: np.ones(len(self.kinds)) for name in ("host", "gpu", "net")}
        for (node, resource), piece in self._others.items():
            for name in ("host", "gpu") if resource == "step" else (resource,):
                found[name][node] *= piece.at(now)[0]
        return found

    def may_be_full(self, jobs: Sequence[RunningJob]) -> Bools:
        """Whether each node could not satisfy its jobs if each asked for the most it can."""
        asked = np.zeros_like(self.capacity)
        devices: dict[int, float] = {}
        for job in jobs:
            asked += self.asked(job, job.most)
            for device in job.devices:
                devices[device] = devices.get(device, 0.0) + 1
        full: Bools = np.any(asked[:, :3] > self.capacity[:, :3], axis=1)
        for job in jobs:
            for node, device in zip(job.nodes.tolist(), job.devices, strict=True):
                full[node] |= devices[device] > 1
        return full

    def asked(self, job: RunningJob, demands: Demands) -> Floats:
        """What a job asks of each node; both its ways of communicating count."""
        table = np.zeros_like(self.capacity)
        np.add.at(table[:, 0], job.nodes, demands.host)
        np.add.at(table[:, 0], job.servers, demands.service)
        np.add.at(table[:, 3], job.nodes, demands.gpu)
        for column in (1, 2):
            np.add.at(table[:, column], job.nodes, demands.ring)
        for shard, share in zip(job.servers.tolist(), job.shares, strict=True):
            ends = job.ends(shard)
            away, below = job.nodes != ends, ends != shard
            np.add.at(table[:, 2], job.nodes[away], demands.push[away] * share)
            np.add.at(table[:, 1], job.nodes[away], demands.pull[away] * share)
            table[shard, 1] += demands.push[away & ~below].sum() * share
            table[shard, 2] += demands.pull[away & ~below].sum() * share
            np.add.at(table[:, 1], ends[away & below], demands.push[away & below] * share)
            np.add.at(table[:, 2], ends[away & below], demands.pull[away & below] * share)
        return table


def negotiate(
    nodes: Nodes, jobs: Sequence[RunningJob], demands: Sequence[Demands], now: float
) -> list[Slowdowns]:
    """The slowdowns of each job until the next renegotiation (rules C7 to C10)."""
    others = nodes.others(now)
    host, served = _of_processors(nodes, jobs, demands)
    gpu, net = _of_devices(nodes, jobs, demands), _of_networks(nodes, jobs, demands)
    return [
        Slowdowns(
            h * others["host"][job.nodes],
            g * others["gpu"][job.nodes],
            n * others["net"][job.nodes],
            float((s * others["host"][job.servers] * np.array(job.shares)).max() / max(job.shares)),
        )
        for job, h, s, g, n in zip(jobs, host, served, gpu, net, strict=True)
    ]


def _split(values: Floats, sizes: Sequence[int]) -> list[Floats]:
    return np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []


def _of_processors(
    nodes: Nodes, jobs: Sequence[RunningJob], demands: Sequence[Demands]
) -> tuple[list[Floats], list[Floats]]:
    """Of each rank's host work, and of each server shard's service."""
    asked = np.concatenate([*(d.host for d in demands), *(d.service for d in demands)])
    where = np.concatenate([*(job.nodes for job in jobs), *(job.servers for job in jobs)])
    levels = np.full(len(nodes.kinds), math.inf)
    totals = np.bincount(where, asked, len(levels))
    for node in np.flatnonzero(totals > nodes.capacity[:, 0]).tolist():
        levels[node] = fair_level(asked[where == node], nodes.capacity[node, 0])
    slowed = slowdowns(asked, np.minimum(asked, levels[where]))
    sizes = [len(d.host) for d in demands] + [len(d.service) for d in demands]
    parts = _split(slowed, sizes)
    return parts[: len(jobs)], parts[len(jobs) :]


def _of_devices(
    nodes: Nodes, jobs: Sequence[RunningJob], demands: Sequence[Demands]
) -> list[Floats]:
    busy = np.concatenate([d.gpu for d in demands])
    devices = np.concatenate([job.devices for job in jobs])
    names = [job.colocates_as for job in jobs for _ in job.devices]
    slowed = np.ones(len(busy))
    found, counts = np.unique(devices, return_counts=True)
    for device in found[counts > 1].tolist():
        those = np.flatnonzero(devices == device)
        beside = [names[k] for k in those.tolist()]
        slowed[those] = colocated_slowdowns(busy[those], nodes.colocation, beside)
    return _split(slowed, [len(d.gpu) for d in demands])


def _of_networks(
    nodes: Nodes, jobs: Sequence[RunningJob], demands: Sequence[Demands]
) -> list[Floats]:
    """Of each rank: its slowest flow in each direction, over the time of a push and a pull."""
    asked, routes, sizes = list[Floats](), list[Ints](), list[int]()
    for job, d in zip(jobs, demands, strict=True):
        out, into = 2 * job.nodes, 2 * job.nodes + 1
        asked.append(d.ring)
        routes.append(np.stack([out, into], axis=1))
        for shard, share in zip(job.servers.tolist(), job.shares, strict=True):
            ends = job.ends(shard)
            away = job.nodes != ends
            for bytes_, first, second in (
                (d.push, out, 2 * ends + 1),
                (d.pull, 2 * ends, into),
            ):
                asked.append(np.where(away, bytes_ * share, 0.0))
                routes.append(np.stack([first, second], axis=1))
        sizes.append(len(job.nodes) * (1 + 2 * len(job.shares)))
    cards = nodes.capacity[:, [2, 1]].ravel()  # out, then in, of each node
    wanted = np.concatenate(asked)
    slowed = slowdowns(wanted, fill(wanted, np.concatenate(routes), cards))
    found = []
    for job, part in zip(jobs, _split(slowed, sizes), strict=True):
        flows = part.reshape(1 + 2 * len(job.shares), len(job.nodes))
        ring, pushes, pulls = flows[0], flows[1::2].max(axis=0), flows[2::2].max(axis=0)
        push, pull = job.costs.transfer_seconds
        moved = push + pull
        server = (push * pushes + pull * pulls) / moved if moved else np.maximum(pushes, pulls)
        found.append(np.maximum(ring, server))
    return found
