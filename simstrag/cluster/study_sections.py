"""Sections of a cluster study: a kind of node, a workload, a job."""

from __future__ import annotations

import math
from typing import Any, Self

from pydantic import model_validator

from simstrag import policies
from simstrag.cluster.arrivals import Instant, Work
from simstrag.scenario.sections import Amount, Count, Endless, NonNegative, Positive, Section
from simstrag.timing.constants import AllReduce

OF_JOB = ("workers", "samples", "target_progress", "policies", "seeds", "nodes", "ranks_per_node")
"""Keys of a scenario that a job states, or its placement."""
NOT_SHARED = (
    "worker",
    "trace",
    "server_load",
    "placeholders",
    "updates",
    "durations",
    "contention",
)
"""Keys of a scenario that have no meaning where contention follows from what jobs do."""


class NodeSection(Section):
    """A kind of node.

    count: how many there are.
    gpus: devices.  cores: of its processors.
    nic_in, nic_out: bytes/s of its network card.
    """

    count: Amount = 1
    gpus: Count
    cores: Positive
    nic_in: Endless = math.inf
    nic_out: Endless = math.inf


class WorkloadSection(Section):
    """The costs of a workload's jobs.

    scenario: keys of a scenario: step, noise, allreduce, server, learner, profile and others.
    host_cores: cores that the host part of a step keeps busy.
    server_cores: cores that the service of a gradient keeps busy at a server shard.
    gradient_bytes: size of a gradient on the network; `allreduce.bytes` by default.
    colocates_as: its name in the study's law of co-location; a typical workload by default.
    """

    scenario: dict[str, Any]
    host_cores: NonNegative = 1.0
    server_cores: NonNegative = 1.0
    gradient_bytes: NonNegative | None = None
    colocates_as: str | None = None

    @model_validator(mode="after")
    def _keys_are_of_a_workload(self) -> Self:
        for key in self.scenario:
            if key in OF_JOB:
                raise ValueError(f"scenario.{key} is a key of the jobs, not of their workload")
            if key in NOT_SHARED:
                raise ValueError(
                    f"scenario.{key}: contention follows from the jobs of the cluster; leave it out"
                )
        if "failures" in self.scenario:
            raise ValueError(
                "scenario.failures: what the nodes of a failed rank do for other jobs is not "
                "modelled; leave it out, and compare one job by itself"
            )
        learner = self.scenario.get("learner")
        if isinstance(learner, dict) and learner.get("kind") == "real":
            raise ValueError(
                "scenario.learner.kind: jobs of a cluster train no model; leave it out, and "
                "compare one job by itself"
            )
        return self

    def bytes_of(self, allreduce: AllReduce) -> float:
        """Size of a gradient; allreduce: of the workload's scenario."""
        return allreduce.bytes if self.gradient_bytes is None else self.gradient_bytes


class JobSection(Section):
    """A job, or several alike.

    workers: ranks, one device each.
    samples, target_progress: what ends it.
    arrival: seconds; `every` seconds later comes the next of `count` jobs.
    policy: in place of the study's.
    """

    workload: str
    workers: Amount
    samples: Work | None = None
    target_progress: Positive | None = None
    arrival: Instant = 0.0
    count: Amount = 1
    every: Instant = 0.0
    policy: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _it_can_run(self) -> Self:
        if self.samples is None and self.target_progress is None:
            raise ValueError("nothing ends the job: give samples or target_progress")
        if self.policy is not None:
            policies.load(self.policy)
        return self
