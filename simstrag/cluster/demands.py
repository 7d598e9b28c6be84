"""What a job would use of its nodes, and by how much it is slowed where it gets less."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from simstrag.arrays import Floats, Ints

CYCLES = 8
"""Least steps over which use is averaged; over fewer it depends on where an interval begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """What a job would use per second if nothing slowed it (rule C6).

    host, gpu: of each rank, processor and device seconds per second.
    push, pull: of each rank, bytes/s to and from each server shard together; 0 by all-reduce.
    ring: of each rank, bytes/s that an all-reduce sends and receives; 0 via a server.
    service: of each server shard, processor seconds per second.
    """

    host: Floats
    gpu: Floats
    push: Floats
    pull: Floats
    ring: Floats
    service: Floats

    def within(self, most: Demands) -> Demands:
        """These demands, with communication and service of `most` at the most."""
        names = ("push", "pull", "ring", "service")
        return replace(
            self, **{name: np.minimum(getattr(self, name), getattr(most, name)) for name in names}
        )

    def joined(self) -> Floats:
        """All values in one array."""
        return np.concatenate([getattr(self, each.name) for each in fields(self)])

    @classmethod
    def split(cls, values: Floats, workers: int) -> Demands:
        """The demands that `joined` made one array of."""
        return cls(*np.split(values, workers * np.arange(1, 6)))


class RecentDemands:
    """The demands of a job, averaged over its last `CYCLES` steps at least."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._past: list[tuple[float, float, Floats]] = []

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return not self._past

    def add(self, seconds: float, steps: float, demands: Demands, limits: Demands) -> None:
        """So many seconds in which a rank made so many steps."""
        values = np.concatenate([demands.joined(), limits.joined()])
        self._past.append((seconds, steps, values))
        left, kept = float(CYCLES), 0
        while kept < len(self._past) and left > 0:
            kept += 1
            left -= self._past[-kept][1]
        self._past = self._past[-kept:]

    def mean(self) -> Demands:
        """Means are limited, not what they are of: the gradients of an interval come in bursts."""
        seconds = np.array([each for each, _, _ in self._past])
        means = seconds / seconds.sum() @ np.array([values for _, _, values in self._past])
        demands, limits = (Demands.split(part, self._workers) for part in np.split(means, 2))
        return demands.within(limits)


@dataclass(slots=True, eq=False)
class Slowdowns:
    """By how much a job is slowed, at least 1: of each rank, and of its slowest server shard."""

    host: Floats
    gpu: Floats
    net: Floats
    server: float = 1.0

    @classmethod
    def none(cls, workers: int) -> Slowdowns:
        """Factors of 1 for so many workers: no contention."""
        return cls(np.ones(workers), np.ones(workers), np.ones(workers))

    def equals(self, other: Slowdowns) -> bool:
        """Whether both slow every rank alike, to the last bit."""
        return self.server == other.server and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("host", "gpu", "net")
        )


def ring_bytes(size: float, nodes: Ints, contributors: int, hierarchical: bool) -> Floats:
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
