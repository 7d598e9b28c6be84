"""What a manager's grants promise and take: rules C12 to C14."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from simstrag.cluster.barrier_gate import Gate
from simstrag.cluster.constants import Constants
from simstrag.cluster.demands import Slowdowns
from simstrag.cluster.job import RunningJob
from simstrag.cluster.leave_grants import Grants
from simstrag.cluster.managers import load_manager
from simstrag.cluster.placers import Placement
from simstrag.cluster.study import ClusterStudy
from simstrag.contract import Plan, Quorum, Review, Via, View

NEXT = Review(updates=1)


@dataclass(frozen=True)
class Leaves:
    def plan(self, view: View) -> Plan:
        return Plan.standing(Quorum(count=1, via=Via.SERVER), review=NEXT)


@dataclass(frozen=True)
class Shifts:
    """Ranks 0 and 1 make 50 updates, ranks 2 and 3 the others."""

    def plan(self, view: View) -> Plan:
        return Plan.standing(Quorum((0, 1) if view.version < 50 else (2, 3)), review=NEXT)


@dataclass(frozen=True)
class Pauses:
    """Pauses by itself before each of its first ten steps."""

    def plan(self, view: View) -> Plan:
        return Plan.standing(pause=2.0 if view.version < 10 else 0.0, review=NEXT)


def running(policy: str, nodes: tuple[int, ...] = (0, 1), number: int = 0) -> RunningJob:
    """Steps of 0.1 s without noise; the server is on node 0."""
    workers = len(nodes)
    study = ClusterStudy.of({
        "nodes": [{"gpus": 4, "cores": 8, "count": 2}],
        "workloads": {"small": {"scenario": {"step": {"compute": 0.1}, "learner": {"batch": 8}}}},
        "jobs": [{"workload": "small", "workers": workers, "samples": 10**6, "count": number + 1}],
    })  # fmt: skip
    job = study.arriving(policy, 0)[number]
    return RunningJob(study, job, Placement(nodes, (0,)), range(workers), 0.0, 0, Gate(workers))


def test_what_a_job_leaves_idle_is_promised_once() -> None:
    """Rank 0 of the donor waits 0.2 s for rank 1, in which it frees 0.4 cores of node 0.

    Both other jobs ask for 0.3 cores at once, and none is free.  The first gets them for nothing.
    Of those of the second 0.2 are missing, which a delay of 0.1 s frees: it saves 0.2 s.
    """
    leaves = f"{__name__}:Leaves"
    jobs = [running(leaves), running(leaves, (1, 1), 1), running("bsp", number=2)]
    for job in jobs:
        job.slow(0.0, replace(Slowdowns.none(2), gpu=np.array([1.0, 3.0])))
        job.advance(1.0)
    grants = Grants(load_manager("star"), {"small": Constants(0.3, 0.0, 2.0, 0.0, 1.0, 1.0)})
    grants.settle(1.0, jobs, lambda: np.zeros((2, 3)))
    assert [job.gate is not None and job.gate.permitted for job in jobs] == [True, True, False]
    assert jobs[-1].delayed == pytest.approx(0.1)


def test_a_donor_lost_what_the_rank_with_the_most_lost_under_the_delay() -> None:
    """Ranks 0 and 1 had paused for longer before it than ranks 2 and 3, which it delays."""
    job = running(f"{__name__}:Shifts", nodes=(0, 0, 1, 1))
    job.delay(0.0, 0.4)
    job.advance(40.0)  # 50 updates of 0.5 s, then 30 more
    job.delay(40.0, 0.0)
    assert job.lost(40.0) == pytest.approx([50 * 0.4] * 2 + [31 * 0.4] * 2, abs=0.5)
    before, updates = job.lost(40.0), job.updates
    job.delay(40.0, 0.4)
    job.advance(50.0)
    taken = 0.4 * (job.updates - updates)
    assert job.lost(50.0) - before == pytest.approx([0, 0, taken, taken], abs=0.4)


def test_a_pause_of_its_own_is_no_loss_of_a_donor() -> None:
    job = running(f"{__name__}:Pauses")
    job.delay(0.0, 0.4)
    job.advance(40.0)
    assert job.updates > 20
    assert job.lost(40.0) == pytest.approx([0.4 * job.updates] * 2, abs=0.4 + 1e-9)
