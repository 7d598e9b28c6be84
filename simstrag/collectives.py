"""How long a collective takes on an idle network."""

from __future__ import annotations

__all__ = ["ring"]


def ring(n: int, alpha: float, size: float, bandwidth: float) -> float:
    """Seconds of a ring all-reduce over `n` ranks: 2(n-1) hops, each rank sends 2(n-1)/n of it.

    alpha: seconds per hop.  size: bytes reduced.  bandwidth: bytes per second of one link.
    Nothing is reduced, and nothing paid, among one rank.
    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009.

    >>> ring(4, alpha=0.001, size=20e6, bandwidth=1e9)
    0.036
    """
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * size / bandwidth
