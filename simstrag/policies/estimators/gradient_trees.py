"""Gradient trees of one level: the ranks of a node push one message, their parent's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from simstrag.arrays import Bools, Floats
from simstrag.contract import ALL, Quorum, Via, View
from simstrag.policies.estimators.predictors import median


def with_trees(quorums: Iterable[Quorum], view: View, slow: Bools) -> tuple[Quorum, ...]:
    """The quorums, each with a tree for every node where it waits for all its ranks at a server.

    slow: the ranks that straggle.
    """
    assert view.hints.nodes is not None
    nodes, link = view.hints.nodes, np.nan_to_num(median(view, "communication"))
    found = []
    for quorum in quorums:
        parents = quorum.parents
        if quorum.via is Via.SERVER and quorum.count is None:
            ranks = range(view.world_size) if quorum.ranks is ALL else quorum.indices.tolist()
            parents = tuple(pairs(ranks, nodes, slow, link))
        found.append(replace(quorum, parents=parents))
    return tuple(found)


def pairs(
    members: Iterable[int], nodes: tuple[int, ...], slow: Bools, link: Floats
) -> Iterator[tuple[int, int]]:
    """(child, parent) of every member that is no parent.

    The parent is the one of its node that communicates in the least time and does not straggle.

    link: seconds of communication of each rank.

    >>> [*pairs(range(3), (0, 0, 1), np.array([True, False, False]), np.zeros(3))]
    [(0, 1)]
    """
    by_node: dict[int, list[int]] = {}
    for rank in members:
        by_node.setdefault(nodes[rank], []).append(rank)
    for _, ranks in sorted(by_node.items()):
        parent = min(ranks, key=lambda rank: (slow[rank], link[rank], rank))
        yield from ((rank, parent) for rank in ranks if rank != parent)
