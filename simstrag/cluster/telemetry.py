"""Monitors: what each node's processor and network card carried in recent intervals (rule C18).

STAR's monitors read the used share of a server's processor and the bytes/s into and out of its
network card once per second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simstrag import policies
from simstrag.arrays import Floats, Ints
from simstrag.cluster.job import RunningJob
from simstrag.cluster.negotiation import RESOURCES, Nodes
from simstrag.contract.view import INTERVALS, MONITORED

PLACES = [RESOURCES.index(name) for name in ("cores", "nic_in", "nic_out")]
"""The columns of a node's resources that are monitored, in the order of `MONITORED`."""


def reads_telemetry(policy: str) -> bool:
    """Whether a policy uses `View.telemetry`.

    >>> reads_telemetry("bsp")
    False
    """
    return bool(getattr(policies.load(policy), "reads_telemetry", False))


class Monitors:
    """The monitors of all nodes.

    interval: seconds.
    windows: shape (nodes, 30, 3), of the last intervals, newest last, NaN before the first: used
        share of the processor, bytes/s in and out.
    """

    def __init__(self, nodes: Nodes, interval: float) -> None:
        self.interval = interval
        self.windows: Floats = np.full((len(nodes.kinds), INTERVALS, len(MONITORED)), math.nan)
        self._nodes = nodes
        self._used = np.zeros_like(nodes.capacity)
        self._ended = 0
        self._began = 0.0

    def of(self, nodes: Ints) -> Floats:
        """The windows of some nodes, one for each."""
        return self.windows[nodes]

    def count(self, jobs: Sequence[RunningJob], now: float) -> bool:
        """Count what jobs have used until now; whether this is the end of an interval."""
        for job in jobs:
            seconds, used = job.used(now if job.end is None else job.end)
            if seconds:
                self._used += seconds * self._nodes.asked(job, used)
        ended = math.floor(now / self.interval + 1e-9)
        if ended == self._ended:
            return False
        rates = self._used[:, PLACES] / (now - self._began)
        rates[:, 0] /= self._nodes.capacity[:, 0]
        self.windows = np.concatenate([self.windows[:, 1:], rates[:, np.newaxis]], axis=1)
        self._used = np.zeros_like(self._used)
        self._ended, self._began = ended, now
        return True
