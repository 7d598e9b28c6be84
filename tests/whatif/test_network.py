"""A network that degrades: found in drawn jobs, and not where nothing is wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simstrag.arrays import Reals
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record
from simstrag.whatif.diagnosis import diagnose
from simstrag.whatif.network import slower_network
from simstrag.whatif.operation_array import Layout


def layout(transfer: Reals, random: np.random.Generator, ranks: int = 8) -> Layout:
    """The operations of `record`."""
    return Layout.of(record(transfer, random, ranks))


def record(transfer: Reals, random: np.random.Generator, ranks: int = 8) -> Record:
    """Ranks that compute .9 s, one of them 1.3 times as long, and then wait for each other."""
    shape = len(transfer), ranks
    own = 0.9 * random.lognormal(0, 0.03, shape) * np.where(np.arange(ranks) == 3, 1.3, 1.0)
    parts = {COMPUTE: own, ALL_REDUCE: own.max(axis=1, keepdims=True) - own + transfer[:, None]}
    steps = np.arange(len(transfer))
    return Record.of_ranks(steps, np.arange(ranks), parts, "drawn", "drawn")


def drawn(random: np.random.Generator, ratio: float, grows: bool = False) -> tuple[Layout, int]:
    """A job whose transfer is `ratio` times as long in a third of its steps, and where it begins.

    grows: it grows to that until the end of the record instead.
    """
    steps, spread = int(random.integers(60, 600)), random.uniform(0.02, 0.3)
    begin = int(random.integers(0, 2 * steps // 3))
    slower = np.ones(steps)
    slower[begin : begin + steps // 3] = ratio
    if grows:
        begin = steps // 3
        slower[begin:] = np.linspace(1, ratio, steps - begin)
    transfer = 0.13 * random.lognormal(0, spread, steps) * slower
    transfer[random.random(steps) < 0.01] *= 5  # single pauses
    return layout(transfer, random), begin


def test_a_third_at_one_and_a_half_times_the_transfer_is_found() -> None:
    """At least 95 % of drawn jobs, with where it began to a tenth of the record."""
    random, found = np.random.default_rng(43), 0
    for _ in range(100):
        job, begin = drawn(random, 1.5)
        slow = slower_network(job)
        found += slow is not None and abs(slow.since - begin) <= 0.1 * len(job.step)
    assert found >= 95


def test_growth_is_found() -> None:
    """To twice the transfer, beside a spread of up to 30 %: 85 % of drawn jobs."""
    random = np.random.default_rng(44)
    found = sum(slower_network(drawn(random, 2.0, grows=True)[0]) is not None for _ in range(40))
    assert found >= 34


def test_clean_jobs_raise_no_alarm() -> None:
    random = np.random.default_rng(45)
    assert sum(slower_network(drawn(random, 1.0)[0]) is not None for _ in range(200)) <= 2


def test_the_loss_is_that_of_the_run_in_the_mean_over_all_steps() -> None:
    transfer = np.where((np.arange(90) >= 30) & (np.arange(90) < 60), 0.3, 0.2)
    slow = slower_network(layout(transfer, np.random.default_rng(1)))
    assert (slow.since, slow.until) == (30, 59)
    assert slow.ratio == pytest.approx(1.5)
    assert slow.lost == pytest.approx(0.1 / 3)


def test_a_network_that_becomes_faster_was_slower_before() -> None:
    """The first half is the slow one; a loss is never negative."""
    transfer = np.where(np.arange(80) < 40, 0.3, 0.2)
    slow = slower_network(layout(transfer, np.random.default_rng(1)))
    assert (slow.since, slow.until) == (0, 39)
    assert slow.lost == pytest.approx(0.05)


def test_one_rank_or_no_collective_tells_nothing_of_the_network() -> None:
    random = np.random.default_rng(1)
    transfer = np.where(np.arange(80) < 40, 0.3, 0.2)
    assert slower_network(layout(transfer, random, ranks=1)) is None
    own = {COMPUTE: random.lognormal(0, 0.1, (40, 4))}
    record = Record.of_ranks(np.arange(40), np.arange(4), own, "drawn", "drawn")
    assert slower_network(Layout.of(record)) is None


@pytest.mark.parametrize(
    ("hosts", "cause"), [(1, "what its ranks share on their host"), (2, "the network")]
)
def test_on_one_host_a_slower_collective_is_not_the_network(hosts: int, cause: str) -> None:
    transfer = np.where(np.arange(120) < 60, 0.1, 0.3)
    job = record(transfer, np.random.default_rng(0))
    job = dataclasses.replace(job, hosts={rank: f"host{rank % hosts}" for rank in range(8)})
    assert f": {cause}, and no rank." in str(diagnose(job, compare=[]))
