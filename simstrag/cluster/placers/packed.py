"""Packs a job onto as few nodes as it fits on; its servers are on the node of its first worker.

The tightest node on which the whole job fits, else the nodes with the most free devices first.
"""

from __future__ import annotations

from collections.abc import Sequence

from simstrag.cluster.placer import NodeView, Placement, Placer, Request, fill_in_order


def pack(nodes: Sequence[NodeView], workers: int) -> tuple[int, ...]:
    """The node of each worker."""
    whole = [node for node in nodes if node.free >= workers]
    if whole:
        return (min(whole, key=lambda node: (node.free, node.node)).node,) * workers
    return fill_in_order(sorted(nodes, key=lambda node: (-node.free, node.node)), workers)


class PackedPlacer:
    """As few nodes as possible."""

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """See the module."""
        workers = pack(nodes, request.workers)
        return Placement(workers, (workers[0],) * request.shards)


def make(seed: int) -> Placer:
    """A placer; it draws nothing."""
    return PackedPlacer()
