"""Seconds of an all-reduce on an idle network, by algorithm.

n: ranks.  alpha: seconds per hop.  size: bytes reduced.  bandwidth: bytes per second of one link.
Additions cost nothing, links are full duplex and not shared, and one rank alone takes no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence


def ring(n: int, alpha: float, size: float, bandwidth: float) -> float:
    """Seconds of a ring all-reduce over `n` ranks: 2(n-1) hops, each rank sends 2(n-1)/n of it.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", JPDC 69(2), 2009.

    >>> ring(4, alpha=0.001, size=20e6, bandwidth=1e9)
    0.036
    """
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * size / bandwidth


def tree(n: int, alpha: float, size: float, bandwidth: float) -> float:
    """Seconds over two pipelined binary trees: ceil(log2 n) hops up and as many down.

    Each tree carries half of the data both ways, so a link carries all data twice, whatever n.
    Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
    and scan", Parallel Computing 35(12), 2009; the pipeline is taken to be full from the first hop.

    >>> tree(5, alpha=0.001, size=20e6, bandwidth=1e9)
    0.046
    """
    if n == 1:
        return 0.0
    hops = (n - 1).bit_length()
    return 2 * hops * alpha + 2 * size / bandwidth


def halving_doubling(n: int, alpha: float, size: float, bandwidth: float) -> float:
    """Seconds of recursive halving, then doubling: 2 log2 n hops, 2(n-1)/n of the data sent.

    That holds for powers of two.  Otherwise the ranks beyond the largest power p first hand their
    data to a partner, and get the result from it at the end: one hop each way with all data.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", IJHPCA 19(1), 2005.

    >>> halving_doubling(4, alpha=0.001, size=20e6, bandwidth=1e9)
    0.034
    >>> round(halving_doubling(5, alpha=0.001, size=20e6, bandwidth=1e9), 9)   # + 2 (1 ms + 20 ms)
    0.076
    """
    doublings = n.bit_length() - 1
    p = 1 << doublings
    seconds = 2 * doublings * alpha + 2 * (p - 1) / p * size / bandwidth
    return seconds if n == p else seconds + 2 * (alpha + size / bandwidth)


def hierarchical(
    ranks_per_node: Sequence[int],
    alpha: float,
    size: float,
    bandwidth: float,
    intra_alpha: float,
    intra_bandwidth: float,
) -> float:
    """Seconds of an all-reduce that crosses the slow links with one shard of the data per rank.

    A ring reduce-scatter inside every node (the largest ends last), a ring all-reduce between the
    nodes among the ranks of the same shard (shards are largest on the node with the fewest ranks),
    and a ring all-gather inside every node.

    ranks_per_node: members on each node.
    alpha, bandwidth: for links between nodes.
    Source: Cho, Finkler, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning on
    heterogeneous network hierarchy", SysML 2019; the rings are those of Patarasuk and Yuan.

    >>> hierarchical([4, 4], alpha=0.01, size=20e6, bandwidth=1e9,
    ...              intra_alpha=0.001, intra_bandwidth=1e10)   # 2 x 4.5 ms inside, 25 ms between
    0.034
    """
    p = max(ranks_per_node)
    inside = (p - 1) * intra_alpha + (p - 1) / p * size / intra_bandwidth
    between = ring(len(ranks_per_node), alpha, size / min(ranks_per_node), bandwidth)
    return 2 * inside + between


def ranks_per_node(members: Collection[int], nodes: Sequence[int] | None) -> tuple[int, ...]:
    """The number of members on each node that has any.

    nodes: the node of each rank; None if every rank has a node to itself.

    >>> ranks_per_node([0, 1, 3], nodes=[7, 7, 8, 8])
    (2, 1)
    """
    if nodes is None:
        return (1,) * len(members)
    return tuple(Counter(nodes[rank] for rank in members).values())
