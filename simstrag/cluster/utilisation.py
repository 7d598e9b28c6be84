"""Utilisation: the share of what each node has that jobs used.

Seconds of computing become seconds of processors and devices by the speed and precision at which
they were computed; gradients become bytes and services by the quorum that carried them.  So both
are counted wherever a speed or a plan changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.cluster.demands import Demands
from simstrag.cluster.job import RunningJob
from simstrag.cluster.job_costs import server_messages
from simstrag.cluster.negotiation import RESOURCES, Nodes
from simstrag.contract import Plan, Via

UTILISATION = (*(f"{name}_used" for name in RESOURCES), "gpus_held")
"""Columns of a node's utilisation."""
COUNTED = ("quorums", "precision", "fragments")
"""Fields of a plan that say what a step and a gradient use."""


class JobUse:
    """Counts what a job uses, from its start on.

    take: gets what was used since its last call: seconds and bytes in the fields of `Demands`.
    """

    def __init__(self, job: RunningJob, take: Callable[[RunningJob, Demands], None]) -> None:
        self._job, self._take = job, take
        ranks: Floats = np.zeros(job.job.workers)
        self._started = self._applied = np.zeros(job.job.workers, np.int64)
        self._version = 0
        self._computed, self._host, self._gpu = ranks, ranks.copy(), ranks.copy()

    def count_computing(self, at: float) -> None:
        """Count at the speeds of now what was computed until a time of the job's own clock."""
        computed = self._job.kernel.usage(at)[0]
        host, gpu = self._job.costs.parts(self._job.kernel.plan, self._job.slowdowns)
        seconds = computed - self._computed
        self._host += seconds * host
        self._gpu += seconds * gpu
        self._computed = computed

    def count(self, at: float) -> None:
        """Count all until a time, to which the job was advanced, and hand it over."""
        job, kernel = self._job, self._job.kernel
        self.count_computing(at)
        started, applied = kernel.started_by_rank, kernel.applied_by_rank
        plan, updates = kernel.plan, kernel.version - self._version
        made, begun, ring = (np.zeros(job.job.workers) for _ in range(3))
        for quorum in plan.quorums:
            those = quorum.indices
            made[those] = (applied - self._applied)[those] / np.array(quorum.steps)
            begun[those] = (started - self._started)[those] / np.array(quorum.steps)
            if quorum.via is not Via.SERVER:
                ring[those] = made[those] * job.costs.ring_bytes(quorum) / plan.fragments
        push, served = server_messages(plan, made, updates)
        pull, _ = server_messages(plan, begun)
        self._take(job, Demands(
            self._host, self._gpu, push * job.costs.bytes, pull * job.costs.bytes, ring,
            served * job.costs.service_seconds,
        ))  # fmt: skip
        self._host, self._gpu = np.zeros_like(self._host), np.zeros_like(self._gpu)
        self._started, self._applied, self._version = started, applied, kernel.version

    def follow(self, plan: Plan, old: Plan) -> None:
        """A plan takes force in place of another one."""
        if plan is not old and not plan.changes(old).isdisjoint(COUNTED):
            self.count(self._job.kernel.now)


class UseOfNodes:
    """What jobs have used of each node: seconds of processors and devices, bytes of cards.

    used: shape (nodes, 4), columns as in `RESOURCES`.
    held: seconds for which workers held devices.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.used: Floats = np.zeros_like(nodes.capacity)
        self.held: Floats = np.zeros(len(nodes.kinds))

    def counter(self, job: RunningJob) -> JobUse:
        """Counts what a job uses from now on."""
        return JobUse(job, self._take)

    def _take(self, job: RunningJob, used: Demands) -> None:
        self.used += self._nodes.asked(job, used)

    def hold(self, job: RunningJob, until: float) -> None:
        """A job has held its devices from its start until then."""
        np.add.at(self.held, job.nodes, until - job.start)

    def rows(self, seconds: float, workers_per_gpu: int) -> list[dict[str, Any]]:
        """A row for each node: shares of its capacity in so many seconds; NaN without a limit."""
        capacity = np.column_stack([
            self._nodes.capacity, workers_per_gpu * self._nodes.capacity[:, -1],
        ])  # fmt: skip
        shares = np.column_stack([self.used, self.held]) / (capacity * seconds)
        shares[np.isinf(capacity)] = math.nan
        return [
            {"node": node, **dict(zip(UTILISATION, row, strict=True))}
            for node, row in enumerate(shares.tolist())
        ]


def mean_utilisation(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over the nodes whose resource has a limit; NaN where none has.

    >>> half = dict.fromkeys(UTILISATION, 0.5)
    >>> mean_utilisation([half, half | {"cores_used": 1.0, "gpus_used": math.nan}])["cores_used"]
    0.75
    """
    columns = {name: [row[name] for row in rows] for name in UTILISATION}
    known = {name: [x for x in own if not math.isnan(x)] for name, own in columns.items()}
    return {name: float(np.mean(own)) if own else math.nan for name, own in known.items()}
