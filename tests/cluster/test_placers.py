"""Placers: which nodes the workers of a job and its servers go to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simstrag.cluster import study
from simstrag.cluster.placers import (
    PLACERS,
    STREAM,
    NodeView,
    Placement,
    Request,
    load_placer,
)
from simstrag.timing.noise import OFFSET_STREAM


def node(number: int, free: int, **changes: float) -> NodeView:
    """A node of eight devices, 100 cores and 1 GB/s."""
    return NodeView(number, free, 8, 100.0, 1e9, 1e9, **changes)  # type: ignore[arg-type]


def request(workers: int, shards: int = 1, *, busy: bool = True) -> Request:
    """A job whose server uses 10 cores and 100 MB/s."""
    return Request(0, workers, shards, 10.0, 1e8, busy)


@pytest.mark.parametrize("name", PLACERS)
@pytest.mark.parametrize("workers", [1, 5, 12])
def test_workers_go_where_devices_are_free(name: str, workers: int) -> None:
    nodes = [node(0, 4), node(1, 0), node(2, 8)]
    placement = load_placer(name, 3).place(nodes, request(workers, 2))
    assert len(placement.workers) == workers
    assert all(placement.workers.count(one.node) <= one.free for one in nodes)
    assert len(placement.servers) == 2
    assert placement == load_placer(name, 3).place(nodes, request(workers, 2))


def test_packed_takes_the_tightest_node_on_which_the_job_fits_or_the_emptiest_first() -> None:
    nodes, packed = [node(0, 8), node(1, 3), node(2, 4)], load_placer("packed", 0)
    assert packed.place(nodes, request(3, 2)) == Placement((1, 1, 1), (1, 1))
    assert packed.place(nodes, request(10)) == Placement((0,) * 8 + (2,) * 2, (0,))


def test_spread_takes_the_emptiest_node_for_each_worker_and_each_server() -> None:
    """After 1, 1 and 2 every node has two devices left: the lowest is next."""
    nodes = [node(0, 2, servers=2), node(1, 4), node(2, 3, servers=1)]
    placement = load_placer("spread", 0).place(nodes, request(4, 3))
    assert placement == Placement((0, 1, 1, 2), (1, 1, 2))


def test_rotate_has_two_workers_on_each_node_after_the_servers() -> None:
    """Node 2 has room for one; after a turn, the server's node last, it goes round again."""
    nodes = [node(k, 1 if k == 2 else 8) for k in range(5)]
    placement = load_placer("rotate", 0).place(nodes, replace(request(12), number=6))
    assert placement == Placement((2, 3, 3, 4, 4, 0, 0, 1, 1, 3, 3, 4), (1,))


def test_star_keeps_the_servers_of_busy_workloads_apart() -> None:
    """Node 0 has the most left, and a busy server; a server that is not busy goes there."""
    nodes = [node(0, 8, high_load=1), node(1, 8, cores_asked=50.0), node(2, 8, cores_asked=60.0)]
    star = load_placer("star", 0)
    assert star.place(nodes, request(8)).servers == (1,)
    assert star.place(nodes, request(8, busy=False)).servers == (0,)
    assert star.place(nodes, request(8, 3)).servers == (1, 2, 0)


def test_star_puts_a_server_where_it_fits_and_else_where_most_is_left() -> None:
    """The smaller of what is left of the processors and of the card counts."""
    star = load_placer("star", 0)
    full = node(0, 8, cores_asked=95.0)
    assert star.place([full, node(1, 8, nic_asked=8e8)], request(1)).servers == (1,)
    assert star.place([full, node(1, 8, nic_asked=9.6e8)], request(1)).servers == (0,)


def test_star_puts_workers_beside_their_server_last() -> None:
    nodes = [node(0, 8), node(1, 2), node(2, 4)]
    star = load_placer("star", 0)
    assert star.place(nodes, request(7)) == Placement((2,) * 4 + (1,) * 2 + (0,), (0,))


def test_what_is_placed_at_random_and_what_is_drawn_of_arrivals_have_their_own_numbers() -> None:
    """A stream per job; another one, and that of a trace's beginning, lie beyond them all."""
    streams = {STREAM - number for number in range(10_000)}
    assert not streams & {study.STREAM, OFFSET_STREAM}
    assert study.STREAM != OFFSET_STREAM
