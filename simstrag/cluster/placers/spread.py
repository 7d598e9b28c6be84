"""Spreads a job: each worker, then each server, goes where most is free."""

from __future__ import annotations

from collections.abc import Sequence

from simstrag.cluster.placer import NodeView, Placement, Placer, Request


class SpreadPlacer:
    """As many nodes as possible."""

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """Workers by free devices, servers by the number of servers; ties by the lowest node."""
        free = {node.node: node.free for node in nodes}
        workers = []
        for _ in range(request.workers):
            node = min(free, key=lambda k: (-free[k], k))
            free[node] -= 1
            workers.append(node)
        held = {node.node: node.servers for node in nodes}
        servers = []
        for _ in range(request.shards):
            node = min(held, key=lambda k: (held[k], k))
            held[node] += 1
            servers.append(node)
        return Placement(tuple(sorted(workers)), tuple(servers))


def make(seed: int) -> Placer:
    """A placer; it draws nothing."""
    return SpreadPlacer()
