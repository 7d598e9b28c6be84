"""STAR's model of the time to progress of each mode of synchronisation.

A mode's time to progress is the mean time between its updates times the number of updates for a
fixed amount of progress.  With noise scale phi, batch b and x gradients per update that number is,
relatively, U(x) = 1 + phi/(x*b): S/S_min of McCandlish et al., "An Empirical Model of Large-Batch
Training", 2018, arXiv:1812.06162.  The versions of the released code differ in the mean time
between updates, hence `Interval`.  U(x) does not depend on staleness: with a physically possible
interval one gradient per update always wins (docs/star.md), hence this project's factor
1 + c*(N/x - 1).

Times are seconds per step and rank, shape (N,), all known and above 0.

Source: the code released with Zhang & Shen, "Straggler Tolerant and Resilient DL Training on
Homogeneous GPUs" (STAR), 2025, arXiv:2512.09685.  Only the paper's abstract and the first sentences
of its introduction were at hand, and they do not state this model: it is read from the code alone.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract.compiled import address, contiguous, loops
from simstrag.contract.ties import TOLERANCE, argsort, is_less

SIMULATED_UPDATES = 1000
"""Updates in the mean of the simulated interval, as in the released code."""


class Interval(enum.Enum):
    """The model of the mean time between updates of x gradients.

    p_1 <= ... <= p_N are the times; H = 1 / sum(1/p_i) is the interval of asynchronous updates.
    """

    ORDER = "order"
    """p_x, as if all ranks started together: the released all-reduce form."""
    INTERP = "interp"
    """From H at x=1 to p_N at x=N in proportion to p_x: the newest released server form."""
    SIMULATED = "simulated"
    """A simulated server that waits for x gradients: an unused function of the released code."""


def find_stragglers(times: Floats, ratio: float) -> frozenset[int]:
    """The ranks whose step is longer than the fastest rank's by more than `ratio` of it.

    >>> sorted(find_stragglers(np.array([1.0, 1.2, 1.3]), ratio=0.2))
    [2]
    """
    return frozenset(np.flatnonzero(straggle(times, ratio)).tolist())


def straggle(times: Floats, ratio: float) -> Bools:
    """Whether each rank is one of `find_stragglers`; shape (..., N)."""
    return is_less((1 + ratio) * np.minimum.reduce(times, axis=-1, keepdims=True), times)


def ward_clusters(times: Floats, threshold: float) -> list[Ints]:
    """Ranks of similar times: agglomerative clusters by Ward's linkage.

    Two clusters A and B cost sqrt(2|A||B| / (|A|+|B|)) * |mean_A - mean_B| to merge; the cheapest
    pair is merged while its cost does not exceed `threshold`, in seconds.  That is scikit-learn's
    `AgglomerativeClustering(n_clusters=None, distance_threshold=threshold)`, as STAR calls it,
    except at ties: a cost equal to the threshold merges, and of equally cheap pairs the faster one.
    Returns clusters of ranks in ascending order, by their lowest rank, as arrays.

    On a line the cheapest pair are neighbours: with B between A and C, and a, b, c their sizes, the
    smaller of the costs of A-B and B-C is less than that of A-C, since
    sqrt(2ab/(a+b)) < sqrt(2a) and sqrt(a)+sqrt(c) >= sqrt(a+c).

    >>> ward_clusters(np.array([0.20, 0.40, 0.21, 0.20]), threshold=0.05)
    [array([0, 2, 3]), array([1])]
    """
    order, n = argsort(times), len(times)
    sizes = cluster_sizes(times[order], threshold)
    keys = np.arange(0, n * len(sizes), n).repeat(sizes) + order
    keys.sort()  # by cluster, then by rank
    ranks, ends = keys % n, itertools.accumulate(sizes)
    groups = [ranks[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return sorted(groups, key=lambda group: int(group[0]))


def cluster_sizes(times: Floats, threshold: float) -> list[int]:
    """The sizes of the clusters of ascending times.

    By Ward's linkage a merger makes no pair cheaper than itself. So a pair that costs no more than
    the pairs on both sides of it may be merged at once, whatever is cheaper elsewhere: in a walk
    from the fastest to the slowest (the nearest-neighbour chain of Murtagh, "Multidimensional
    Clustering Algorithms", 1985).
    """
    tie, n, native = TOLERANCE * float(times[-1]), len(times), loops()
    limit = threshold + tie
    if native is None:
        return _walk(times.tolist(), limit, tie)
    times, sizes = contiguous(times, np.float64), np.empty(n, dtype=np.int64)
    count = native.ward_sizes(address(times), n, limit, tie, address(sizes))
    if count < 0:
        raise MemoryError
    found: list[int] = sizes[:count].tolist()
    return found


def _walk(times: list[float], limit: float, tie: float) -> list[int]:
    """The same in Python; limit: the largest cost of a merger."""
    ahead = [(mean, 1) for mean in reversed(times)]  # the nearest last
    walked: list[tuple[float, int, float]] = []  # with the cost to merge with the one before
    (mean, size), back = ahead.pop(), math.inf
    while True:
        front = math.inf
        if ahead:
            following, count = ahead[-1]
            front = math.sqrt(2 * size * count / (size + count)) * (following - mean)
        if walked and back <= limit and back <= front + tie:
            before, count, _ = walked.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
            back = math.inf
            if walked:
                before, count, cost = walked[-1]
                back = math.sqrt(2 * count * size / (count + size)) * (mean - before)
                if cost <= limit and cost <= back + tie:
                    ahead.append((mean, size))
                    mean, size, back = walked.pop()
        elif ahead:
            walked.append((mean, size, back))
            (mean, size), back = ahead.pop(), front
        else:
            return [*(size for _, size, _ in walked), size]


def intervals(times: Floats, how: Interval) -> Floats:
    """The mean seconds between updates of x = 1, ..., N gradients each; shape (N,).

    Where all times are equal INTERP is 0/0, and the interval is p_N for every x.

    >>> intervals(np.array([1.0, 2.0, 4.0]), Interval.ORDER)
    array([1., 2., 4.])
    >>> intervals(np.array([1.0, 1.0]), Interval.SIMULATED)
    array([0.5, 1. ])
    """
    p: Floats = np.sort(times)
    if how is Interval.ORDER:
        return p
    fastest, slowest, harmonic = float(p[0]), float(p[-1]), float(1 / np.sum(1 / p))
    if how is Interval.INTERP:
        equal = not is_less(fastest, slowest)
        share = np.ones_like(p) if equal else (p - fastest) / (slowest - fastest)
        return harmonic + (slowest - harmonic) * share
    return np.concatenate([[harmonic], _simulated(p), [slowest]])[-len(p) :]


def _simulated(p: Floats) -> Floats:
    """The mean interval for every 1 < x < N, where the first x ranks restart at each update.

    remaining: shape (N-2, N), one row per x, seconds until each rank's gradient.
    """
    x = np.arange(2, len(p))[:, np.newaxis]
    remaining = np.tile(p, (len(x), 1))
    total = np.zeros_like(x, dtype=np.float64)
    for _ in range(SIMULATED_UPDATES):
        order = argsort(p[-1] + remaining)
        waited = np.take_along_axis(remaining, np.take_along_axis(order, x - 1, axis=1), axis=1)
        position = np.argsort(order, axis=1, kind="stable")
        remaining = np.where(position < x, p, remaining - waited)
        total += waited
    return total[:, 0] / SIMULATED_UPDATES


def relative_updates(x: Floats, phi: float, batch: float) -> Floats:
    """U(x) = 1 + phi/(x*b): the relative number of updates for a fixed amount of progress.

    x: gradients per update, any shape.
    phi: noise scale in samples.
    batch: b, samples of a gradient.

    >>> relative_updates(np.array([1.0, 8.0]), phi=1024, batch=128)
    array([9., 2.])
    """
    return 1 + phi / (x * batch)


def static_times(
    times: Floats, how: Interval, phi: float, batch: float, staleness: float = 0.0
) -> Floats:
    """The time to progress of x = 1, ..., N gradients per update; shape (N,).

    staleness: c of the factor 1 + c*(N/x - 1); a straggler's gradient is about N/x - 1 updates old.

    >>> static_times(np.array([1.0, 1.0, 2.0]), Interval.ORDER, phi=128, batch=128)
    array([2.        , 1.5       , 2.66666667])
    """
    n = len(times)
    x = np.arange(1.0, n + 1)
    seconds = intervals(times, how) * relative_updates(x, phi, batch)
    return seconds * (1 + staleness * (n / x - 1)) if staleness else seconds


def dynamic_time(
    times: Floats,
    groups: Sequence[Ints],
    phi: float,
    batch: float,
    staleness: float = 0.0,
) -> float:
    """The time to progress of groups that update independently, whose rates add up.

    A group G makes one update of |G| gradients every max(t_i of G) seconds.

    >>> groups = [np.array([0, 1]), np.array([2])]
    >>> dynamic_time(np.array([1.0, 1.0, 2.0]), groups, phi=128, batch=128)
    1.090909090909091
    """
    sizes = np.array([len(group) for group in groups])
    slowest = np.maximum.reduceat(times[np.concatenate(groups)], sizes.cumsum() - sizes)
    seconds = slowest * relative_updates(sizes, phi, batch)
    if staleness:
        seconds *= 1 + staleness * (len(times) / sizes - 1)
    return float(1 / np.add.reduce(1 / seconds))


def ring_and_riders(times: Floats, x: int) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The x fastest ranks, and a (child, parent) pair for every other rank.

    Ring and children are in order of time, tied ones by rank; the j-th child gets the (j mod x)-th
    rank of the ring.  The released code orders by rank, so that its answer depends on the numbers.

    >>> ring_and_riders(np.array([3.0, 1.0, 2.0, 4.0]), x=2)
    ((1, 2), ((0, 1), (3, 2)))
    """
    order = argsort(times).tolist()
    ring, children = order[:x], order[x:]
    riders = tuple((child, ring[j % x]) for j, child in enumerate(children))
    return tuple(ring), riders
