"""What a job has used of its nodes, counted by its engine.

Seconds of computing become seconds of processors and devices by the speed and precision at which
they were computed; gradients become bytes and services by the quorum that carried them.  So both
are counted wherever a speed or a plan changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simstrag.cluster.demands import Demands
from simstrag.plan import Plan
from simstrag.quorum import Quorum, Via

if TYPE_CHECKING:
    from collections.abc import Callable

    from simstrag.cluster.job import RunningJob

Floats = npt.NDArray[np.float64]
COUNTED = ("quorums", "precision")
"""Fields of a plan that say what a step and a gradient use."""


def ring_bytes(
    size: float, nodes: npt.NDArray[np.int64], contributors: int, hierarchical: bool
) -> Floats:
    """Bytes that each rank sends, and receives, through the card of its node in an all-reduce.

    A ring's 2(n-1)/n of the gradient; with a hierarchical algorithm those of a node count once.

    size: bytes of a gradient.
    nodes: of each member.
    contributors: n, how many members' gradients are reduced.

    >>> ring_bytes(8.0, np.array([0, 0, 1, 1]), 4, hierarchical=False)
    array([12., 12., 12., 12.])
    >>> ring_bytes(8.0, np.array([0, 0, 1, 1]), 4, hierarchical=True)
    array([4., 4., 4., 4.])
    """
    _, where, counts = np.unique(nodes, return_inverse=True, return_counts=True)
    m = len(counts)
    if m == 1:
        return np.zeros(len(nodes))
    if hierarchical:
        shared: Floats = 2 * (m - 1) / m * size / counts[where]
        return shared
    return np.full(len(nodes), 2 * (contributors - 1) / contributors * size)


class JobUse:
    """Counts what a job uses, from its start on.

    take: gets what was used since its last call: seconds and bytes in the fields of `Demands`.
    """

    def __init__(self, job: RunningJob, take: Callable[[RunningJob, Demands], None]) -> None:
        self._job, self._take = job, take
        ranks = np.zeros(job.job.workers)
        self._computed, self._started, self._applied = ranks, ranks, ranks
        self._version = 0
        self._host, self._gpu = ranks.copy(), ranks.copy()

    def count_computing(self, at: float) -> None:
        """Count at the speeds of now what was computed until a time of the job's own clock."""
        computed = self._job.kernel.usage(at)[0]
        host, gpu = self._job.seconds_of_parts()
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
        push, pull, ring = (np.zeros(job.job.workers) for _ in range(3))
        parents, served = job.parents, 0.0
        for quorum in plan.quorums:
            those = quorum.indices
            made = (applied - self._applied)[those] / quorum.steps
            if quorum.via is Via.SERVER:
                push[those] = made
                pull[those] = (started - self._started)[those] / quorum.steps
                served += push[those][parents[those] < 0].sum()
                continue
            ring[those] = made * self._ring_bytes(quorum)
            if quorum.via is Via.LEADER:
                push[those[0]] = pull[those[0]] = made[0] / quorum.rounds
        led = sum(push[q.indices[0]] for q in plan.quorums if q.via is Via.LEADER)
        served += min(led, updates) if plan.fuse else led  # what fuses is one service an update
        self._take(job, Demands(
            self._host, self._gpu, push * job.bytes, pull * job.bytes, ring,
            served * job.service_seconds,
        ))  # fmt: skip
        self._host, self._gpu = np.zeros_like(self._host), np.zeros_like(self._gpu)
        self._started, self._applied, self._version = started, applied, kernel.version

    def follow(self, plan: Plan, old: Plan) -> None:
        """A plan takes force in place of another one."""
        if plan is not old and plan.changes(old, COUNTED):
            self.count(self._job.kernel.now)

    def _ring_bytes(self, quorum: Quorum) -> Floats:
        job = self._job
        return ring_bytes(job.bytes, job.nodes[quorum.indices], quorum.needed, job.reduces_by_node)
