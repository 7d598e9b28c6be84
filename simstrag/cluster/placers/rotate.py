"""Rotates over the nodes: job k has its server on node k, and two workers on each that follows.

That is how the launchers released with STAR place jobs by hand: eight workers on the four nodes
after the server's.  Zhang and Shen, "STAR", arXiv 2512.09685, github.com/pcl-projects/
Training-Sync-Mode at 6c596a7.  Ours: a node without room is passed over, and the server's own node
is the last; further shards of a server go to the nodes that follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from simstrag.cluster.placer import NodeView, Placement, Placer, Request

EACH = 2
"""Workers on a node, before the rotation comes back to it."""


class RotatingPlacer:
    """A turn of the cluster for each job."""

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """See the module."""
        n, first = len(nodes), request.number % len(nodes)
        turn = [nodes[(first + k) % n] for k in range(1, n + 1)]
        free, workers = [node.free for node in turn], list[int]()
        while len(workers) < request.workers:
            for k, node in enumerate(turn):
                taken = min(EACH, free[k], request.workers - len(workers))
                free[k] -= taken
                workers += [node.node] * taken
        servers = tuple(nodes[(first + k) % n].node for k in range(request.shards))
        return Placement(tuple(workers), servers)


def make(seed: int) -> Placer:
    """A placer; it draws nothing."""
    return RotatingPlacer()
