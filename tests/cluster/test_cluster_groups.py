"""What groups with a leader ask for is what they use: rules 11 and C6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from simstrag.cluster.demands import Demands, Slowdowns
from simstrag.cluster.job import RunningJob
from simstrag.cluster.job_costs import JobCosts
from simstrag.cluster.placers import Placement
from simstrag.cluster.study import ClusterStudy
from simstrag.cluster.study_sections import WorkloadSection
from simstrag.cluster.utilisation import JobUse
from simstrag.contract import Plan, Quorum, Via, View

SECONDS, BYTES = 100.0, 1e7
ONE, FAST, SLOW, ROUNDS = 0.236, 0.131, 0.231, 0.241
"""Seconds per update: of all ranks, of pairs, the second's devices slowed, of two rounds."""


@dataclass(frozen=True)
class Groups:
    """Ranks 0 and 2 beside ranks 1 and 3, or all in one group."""

    two: bool = True
    rounds: int = 1
    fuse: bool = True

    def plan(self, view: View) -> Plan:
        first = Quorum((0, 2), via=Via.LEADER, rounds=self.rounds)
        pairs = first, Quorum((1, 3), via=Via.LEADER)
        return Plan.standing(*(pairs if self.two else (Quorum(via=Via.LEADER),)), fuse=self.fuse)


SLOWED = replace(Slowdowns.none(4), gpu=np.array([1.0, 3.0, 1.0, 3.0]))


def asked_and_used(
    parameters: str, service: float = 0.001, slowed: Slowdowns = SLOWED
) -> tuple[RunningJob, Demands, Demands]:
    """In all; a step takes 0.1 s, a push, a pull and an all-reduce of two ranks 0.01 s each.

    The server is on the node of ranks 2 and 3; the devices of ranks 1 and 3 take 0.15 s for 0.05 s.
    """
    scenario = {
        "step": {"compute": 0.1, "host_share": 0.5}, "learner": {"batch": 8},
        "allreduce": {"bytes": BYTES, "bandwidth": 1e9},
        "server": {"service": service, "push": 0.01, "pull": 0.01},
    }  # fmt: skip
    study = ClusterStudy.of({
        "nodes": [{"gpus": 2, "cores": 8, "nic_in": 1e9, "nic_out": 1e9, "count": 2}],
        "workloads": {"small": {"scenario": scenario}},
        "jobs": [{"workload": "small", "workers": 4, "samples": 1_000_000}],
    })  # fmt: skip
    (job,) = study.arriving(f"{__name__}:Groups:{parameters}", 0)
    used = list[Demands]()
    running = RunningJob(
        study, job, Placement((0, 0, 1, 1), (1,)), range(4), 0.0, 0,
        counter=lambda job: JobUse(job, lambda _, taken: used.append(taken)),
    )  # fmt: skip
    running.slow(0.0, slowed)
    running.stop(SECONDS)
    asked = Demands.split(SECONDS * running.demands(SECONDS).joined(), 4)
    return running, asked, used[-1]


@pytest.mark.parametrize(
    ("parameters", "pushes", "reductions", "reduced"),
    [
        ("two=False", [1 / ONE, 0.0], [1 / ONE, 1 / ONE], 2 * 3 / 4),
        ("fuse=False", [1 / FAST, 1 / SLOW], [1 / FAST, 1 / SLOW], 2 * 1 / 2),
        ("rounds=2,fuse=False", [1 / ROUNDS, 1 / SLOW], [2 / ROUNDS, 1 / SLOW], 2 * 1 / 2),
    ],
)
def test_a_group_all_reduces_and_its_leader_alone_pushes_and_pulls(
    parameters: str, pushes: Sequence[float], reductions: Sequence[float], reduced: float
) -> None:
    """Leaders are ranks 0 and 1; of two rounds the first has neither a pull nor a push."""
    _, asked, used = asked_and_used(parameters)
    for of in asked, used:
        sent = [SECONDS * BYTES * each for each in (*pushes, 0, 0)]
        assert of.push == pytest.approx(sent, rel=0.01)
        assert of.pull == pytest.approx(sent, rel=0.01)
        ring = [SECONDS * BYTES * reduced * each for each in (*reductions, *reductions)]
        assert of.ring == pytest.approx(ring, rel=0.01)
        assert of.service == pytest.approx([SECONDS * 0.001 * sum(pushes)], rel=0.01)
    assert asked.push == pytest.approx(used.push, abs=BYTES)
    assert asked.pull == pytest.approx(used.pull, abs=BYTES)
    assert asked.ring == pytest.approx(used.ring, abs=2 * BYTES)
    assert asked.service == pytest.approx(used.service)


def test_groups_that_wait_together_are_one_service() -> None:
    running, asked, used = asked_and_used("fuse=True", service=0.1)
    assert asked.push == pytest.approx(used.push, abs=BYTES)
    assert running.updates < 0.95 * asked.push.sum() / BYTES
    assert asked.service == pytest.approx(used.service)
    assert used.service == pytest.approx([0.1 * running.updates])


def test_groups_ask_for_what_they_would_use_if_nothing_slowed_them() -> None:
    net = np.array([2.0, 1.0, 4.0, 3.0])
    slowed = replace(Slowdowns.none(4), net=net, server=5.0)
    _, asked, used = asked_and_used("fuse=False", slowed=slowed)
    assert asked.push == pytest.approx(used.push * net, abs=BYTES * 4)
    assert asked.ring == pytest.approx(used.ring * net, abs=BYTES * 4)
    assert asked.service == pytest.approx(used.service * 5)


def test_groups_that_share_nodes_do_not_reduce_together_on_them() -> None:
    """So each rank moves twice the bytes that it moves where the two ranks of a node are one."""
    running, _, _ = asked_and_used("fuse=False")
    inputs = running.scenario.inputs
    by_node = replace(inputs, allreduce=replace(inputs.allreduce, algorithm="hierarchical"))
    costs = JobCosts(WorkloadSection(scenario={}), by_node, (0, 0, 1, 1))
    plan, none = running.kernel.plan, Slowdowns.none(4)
    asked = costs.demands(plan, none, np.ones(4), np.ones(4)).ring
    assert asked == pytest.approx([BYTES] * 4)
    assert costs.ring_bytes(Quorum((0, 1, 2, 3))) == pytest.approx([BYTES / 2] * 4)
    assert np.all(costs.at_full_speed(plan).ring <= costs.most.ring)
