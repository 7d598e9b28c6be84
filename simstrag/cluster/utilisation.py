"""Utilisation: the share of what each node has that jobs used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.cluster.demands import Demands
from simstrag.cluster.job import RunningJob
from simstrag.cluster.negotiation import RESOURCES, Nodes

Floats = npt.NDArray[np.float64]

UTILISATION = (*(f"{name}_used" for name in RESOURCES), "gpus_held")
"""Columns of a node's utilisation."""


class UseOfNodes:
    """What jobs have used of each node: seconds of processors and devices, bytes of cards.

    used: shape (nodes, 4), columns as in `RESOURCES`.
    held: seconds for which workers held devices.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.used: Floats = np.zeros_like(nodes.capacity)
        self.held: Floats = np.zeros(len(nodes.kinds))

    def take(self, job: RunningJob, used: Demands) -> None:
        """A job has used so much."""
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
