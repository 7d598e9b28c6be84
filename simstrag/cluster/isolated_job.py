"""One job by itself on given nodes, where no other job is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simstrag.cluster.leave_grants import Grants
from simstrag.cluster.placers import NodeView, Placement, Request
from simstrag.cluster.shared_nodes import SharedNodes
from simstrag.cluster.study import ArrivingJob, ClusterStudy
from simstrag.timing.contention import Contention


@dataclass(frozen=True, slots=True)
class FixedPlacer:
    """Places every job on the same nodes."""

    placement: Placement

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """The fixed placement, whatever the nodes hold."""
        return self.placement


def seconds_alone(
    study: ClusterStudy,
    job: ArrivingJob,
    placement: Placement,
    seed: int,
    others: Contention | None = None,
    grants: Grants | None = None,
) -> float:
    """How long a job that arrives at 0 s takes; NaN where it does not end before the horizon.

    others: the load of others; none by default.
    """
    simulation = SharedNodes(
        study, [job], FixedPlacer(placement), seed, record=False,
        others=Contention() if others is None else others, grants=grants,
    )  # fmt: skip
    simulation.watch()
    simulation.go()
    end: float = simulation.rows()[0]["end"]
    return end
