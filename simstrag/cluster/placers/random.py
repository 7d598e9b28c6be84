"""Draws a free device for each worker, and a node for each server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.cluster.placer import NodeView, Placement, Placer, Request
from simstrag.timing.noise import stream

STREAM = 2**64 - 3
"""Less the job's number: the stream of random numbers that places it; no rank has it."""


class RandomPlacer:
    """The same draws for the same seed and number of the job."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """Of all free devices alike, without putting one back."""
        draws = stream(self.seed, STREAM - request.number)
        free = np.repeat([node.node for node in nodes], [node.free for node in nodes])
        workers = sorted(draws.choice(free, request.workers, replace=False).tolist())
        servers = draws.integers(len(nodes), size=request.shards).tolist()
        return Placement(tuple(workers), tuple(nodes[k].node for k in servers))


def make(seed: int) -> Placer:
    """A placer that draws by this seed."""
    return RandomPlacer(seed)
