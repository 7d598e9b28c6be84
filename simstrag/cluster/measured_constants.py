"""Constants of workloads for the managers, measured by simulation on a study's cluster.

The protocol is that of STAR's logs: the largest job of a workload, alone, its workers packed, its
server on another node where there is one.  Extra: what the server's node is asked for under asgd
over that at the barrier.  Freed: what a worker leaves where each of its steps is delayed by 1 s.
Sensitivity: the run time at half the speed of processors, or of cards, over that at full speed,
times the same at a quarter; at which two levels STAR read its times is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from simstrag.arrays import Floats
from simstrag.cluster.constants import Constants, of_star
from simstrag.cluster.job import RunningJob
from simstrag.cluster.leave_grants import Grants
from simstrag.cluster.managers import NoManager
from simstrag.cluster.placers import Placement
from simstrag.cluster.shared_nodes import seconds_alone
from simstrag.cluster.study import ArrivingJob, ClusterStudy
from simstrag.timing.contention import Contention

ITERATIONS = 200
BARRIER, FREE = "bsp:via=server", "asgd"
DELAY = 1.0
"""Delay of every job, in seconds."""
LEVELS = (2.0, 4.0)
"""Slowdowns of processors, or cards."""


def constants_of(study: ClusterStudy) -> dict[str, Constants]:
    """The constants of each workload that a study's managers use."""
    if study.constants == "star":
        cores = study.each_node[0].cores
        return {name: of_star(name, cores) for name in study.workloads}
    return measure_all(study)


def measure_all(study: ClusterStudy) -> dict[str, Constants]:
    """The constants of each workload by simulation: the same under every seed of a study."""
    return {name: measure(study, name, workers) for name, workers in largest(study).items()}


def largest(study: ClusterStudy) -> dict[str, int]:
    """The most workers of a job that each workload may have; for one without jobs those of any."""
    jobs = [(job.workload, job.workers) for job in study.jobs]
    if study.arrivals is not None:
        drawn = tuple(study.arrivals.weights(tuple(study.workloads)))
        for row in study.rows():
            names = drawn if row.workload is None else (row.workload,)
            jobs += [(name, row.workers) for name in names]
    any_ = max(workers for _, workers in jobs)
    return {
        name: max((workers for own, workers in jobs if own == name), default=any_)
        for name in study.workloads
    }


def measure(study: ClusterStudy, workload: str, workers: int) -> Constants:
    """The constants of a workload whose job has so many workers."""
    section = study.workloads[workload]
    scenario = study.scenario(workload, workers, samples=1)
    inputs, gradients = scenario.inputs, ITERATIONS * workers
    placement = _apart(study, workers, len(inputs.server.shards))
    whole = [1.0] * len(study.each_node)

    def seconds(
        policy: str = BARRIER, host: float = 1.0, net: float = 1.0, grants: Grants | None = None
    ) -> float:
        samples = gradients * scenario.learner.batch
        job = ArrivingJob(0, workload, workload, workers, 0.0, policy, samples, None)
        others = Contention.constant([host] * len(whole), whole, [net] * len(whole))
        return seconds_alone(study, job, placement, 0, others, grants)

    bytes_ = section.bytes_of(inputs.allreduce)
    at_barrier, delayed = seconds(), seconds(grants=_DelaysAll(NoManager(), {}))
    more = max(gradients / seconds(FREE) - gradients / at_barrier, 0.0)
    fewer = (gradients / at_barrier - gradients / delayed) / workers / DELAY
    return Constants(
        extra_cores=more * inputs.server.service * section.server_cores,
        extra_bytes=more * bytes_,
        freed_cores=fewer * inputs.step.host * section.host_cores,
        freed_bytes=fewer * bytes_,
        sensitivity_cores=math.prod(seconds(host=level) / at_barrier for level in LEVELS),
        sensitivity_bytes=math.prod(seconds(net=level) / at_barrier for level in LEVELS),
    )


class _DelaysAll(Grants):
    """Delays every job by `DELAY`, to measure what that frees."""

    def settle(self, now: float, jobs: Sequence[RunningJob], spare: Callable[[], Floats]) -> None:
        """Delay all jobs, at each renegotiation."""
        for job in jobs:
            job.delay(now, DELAY)


def _apart(study: ClusterStudy, workers: int, shards: int) -> Placement:
    """Workers on as few nodes as possible, in their order; the server on the next one."""
    room = [
        node
        for node, kind in enumerate(study.each_node)
        for _ in range(kind.gpus * study.workers_per_gpu)
    ]
    chosen = tuple(room[:workers])
    server = min(chosen[-1] + 1, len(study.each_node) - 1)
    return Placement(chosen, (server,) * shards)
