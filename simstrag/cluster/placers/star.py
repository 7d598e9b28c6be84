"""Keeps busy servers apart (our reading of STAR's prevention; its release has no placer).

A server goes, among the nodes where its demand fits, to those with the fewest high-load servers if
it is one itself; ties by the largest residual share of processor and card, whichever is smaller,
then by the lowest node.  Where it fits nowhere, the largest residual decides.  Workers fill the
nodes with the most free devices first, the server's nodes last.

Zhang and Shen, "STAR", arXiv 2512.09685: its abstract says that it prevents stragglers by not
overloading processors and bandwidth when it allocates parameter servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simstrag.cluster.placer import NodeView, Placement, Placer, Request, fill_in_order


class StarPlacer:
    """Never two high-load servers on a node where that can be avoided."""

    def place(self, nodes: Sequence[NodeView], request: Request) -> Placement:
        """See the module."""
        left, servers = list(nodes), []
        for _ in range(request.shards):
            node = self._node_of_server(left, request)
            servers.append(node.node)
            with_it = replace(
                node,
                cores_asked=node.cores_asked + request.server_cores,
                nic_asked=node.nic_asked + request.server_bytes,
                high_load=node.high_load + request.is_high_load,
            )
            left = [with_it if other is node else other for other in left]
        own = set(servers)
        order = sorted(left, key=lambda node: (node.node in own, -node.free, node.node))
        return Placement(fill_in_order(order, request.workers), tuple(servers))

    @staticmethod
    def _node_of_server(nodes: Sequence[NodeView], request: Request) -> NodeView:
        fitting = [node for node in nodes if _residual(node, request) >= 0]

        def rank(node: NodeView) -> tuple[float, float, int]:
            busy = node.high_load if request.is_high_load else 0
            return busy, -_residual(node, request), node.node

        if fitting:
            return min(fitting, key=rank)
        return min(nodes, key=lambda node: (-_residual(node, request), node.node))


def _residual(node: NodeView, request: Request) -> float:
    """The smaller share of processor or card that is left beside one more shard."""
    cores = 1 - (node.cores_asked + request.server_cores) / node.cores
    card = 1 - (node.nic_asked + request.server_bytes) / min(node.nic_in, node.nic_out)
    return min(cores, card)


def make(seed: int) -> Placer:
    """A placer; it draws nothing."""
    return StarPlacer()
