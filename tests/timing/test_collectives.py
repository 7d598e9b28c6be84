"""All-reduce times, against a count of who sends what when, and in their limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from simstrag.timing.collectives import halving_doubling, hierarchical, ranks_per_node, ring, tree

SIZE = 20e6
LINK = (0.001, SIZE, 1e9)
FLAT = (ring, tree, halving_doubling)
WORLDS = (2, 3, 4, 5, 7, 8, 12, 16, 31, 64)


def seconds(messages: Iterator[float], alpha: float = 0.001, bandwidth: float = 1e9) -> float:
    """One message after the other, each of so many bytes."""
    return sum(alpha + size / bandwidth for size in messages)


def ring_messages(n: int, size: float, laps: int = 2) -> Iterator[float]:
    """A lap is a reduce-scatter or an all-gather: n-1 chunks, from neighbour to neighbour."""
    for _ in range(laps * (n - 1)):
        yield size / n


def halving_messages(n: int, size: float) -> Iterator[float]:
    """Fold in, exchange half, a quarter, ..., then the same backwards, and hand out."""
    rounds = int(math.log2(n))
    folded = [size] if 2**rounds < n else []
    halves = [size / 2 ** (k + 1) for k in range(rounds)]
    yield from [*folded, *halves, *reversed(halves), *folded]


# -- closed forms


@pytest.mark.parametrize("n", WORLDS)
def test_a_ring_sends_two_laps_of_one_nth(n: int) -> None:
    assert ring(n, *LINK) == pytest.approx(seconds(ring_messages(n, SIZE)), rel=1e-12)


@pytest.mark.parametrize("n", WORLDS)
def test_halving_and_doubling_send_halves_of_halves_and_all_of_it_for_whom_is_left_over(
    n: int,
) -> None:
    expected = seconds(halving_messages(n, SIZE))
    assert halving_doubling(n, *LINK) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("n", "depth"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (64, 6), (65, 7)]
)
def test_a_tree_is_as_deep_as_the_logarithm_up_and_down_and_sends_everything_twice(
    n: int, depth: int
) -> None:
    assert tree(n, 0.001, 0.0, 1e9) == pytest.approx(2 * depth * 0.001, rel=1e-12)
    assert tree(n, 0.0, SIZE, 1e9) == 2 * SIZE / 1e9
    assert tree(n, *LINK) == pytest.approx(2 * depth * 0.001 + 0.04, rel=1e-12)


@pytest.mark.parametrize("algorithm", FLAT)
def test_among_one_rank_there_is_nothing_to_reduce(algorithm: Callable[..., float]) -> None:
    assert algorithm(1, *LINK) == 0.0


def test_large_data_favours_ring_and_halving_and_small_data_the_logarithm() -> None:
    small, large = (0.001, 8.0, 1e9), (0.001, 1e12, 1e9)
    assert halving_doubling(64, *small) == pytest.approx(tree(64, *small))
    assert tree(64, *small) < ring(64, *small) / 10
    assert halving_doubling(64, *large) == pytest.approx(ring(64, *large), rel=1e-3)
    assert tree(64, *large) == pytest.approx(ring(64, *large) * 64 / 63, rel=1e-3)


# -- hierarchical


INSIDE = (1e-4, 1e10)


@pytest.mark.parametrize("counts", [(4, 4), (8, 8, 8), (1, 3), (2, 4, 3), (5,), (1, 1, 1), (1,)])
def test_a_hierarchical_one_scatters_inside_reduces_between_and_gathers_inside(
    counts: tuple[int, ...],
) -> None:
    """Every phase waits for its slowest: the largest node, then the largest shards."""
    scatter = max(seconds(ring_messages(p, SIZE, laps=1), *INSIDE) for p in counts)
    between = max(seconds(ring_messages(len(counts), SIZE / p)) for p in counts)
    assert hierarchical(counts, *LINK, *INSIDE) == pytest.approx(
        scatter + between + scatter, rel=1e-12
    )


def test_with_fast_links_inside_only_a_shard_per_rank_crosses_between_the_nodes() -> None:
    free = hierarchical([8, 8], 0.0, SIZE, 1e9, 0.0, math.inf)
    assert free == pytest.approx(ring(2, 0.0, SIZE, 1e9) / 8)


# -- who is where


def test_members_are_counted_by_node_and_empty_nodes_are_left_out() -> None:
    nodes = (0, 0, 0, 1, 1, 5)
    assert sorted(ranks_per_node((0, 2, 3, 5), nodes)) == [1, 1, 2]
    assert ranks_per_node((3, 4), nodes) == (2,)
    assert ranks_per_node((3, 4), None) == (1, 1)
