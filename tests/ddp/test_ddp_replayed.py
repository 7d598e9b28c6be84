"""A recorded run under a server, told again by the engine: who arrived when, and so what is stale.

The ranks here have ways to the server that differ, by rank and from step to step, as real ones do.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from simstrag import policies
from simstrag.contract import Hints, Plan, Quorum, Review, View
from simstrag.ddp.journal.communication_from_journal import round_trips
from simstrag.ddp.journal.journal import Journal
from simstrag.engine.live import Live, Reduction, Start, Update
from simstrag.validation.replay import replay

WORLD, BATCH, SERVICE = 3, 4, 0.004


def recorded(
    folder: Path, steps: int, service: float = SERVICE, clocks: tuple[float, ...] = (0.0, 0.0, 0.0)
) -> None:
    """The journal of a run under one server that serves in the order of arrivals.

    Steps of 20, 22 and 50 ms; a gradient is on its way for 1 to 9 ms, parameters for 0 to 4 ms.
    clocks: by how much that of each rank is ahead of the server's.
    """
    luck = np.random.default_rng(3)
    hints = {"amp_ratio": None, "noise_scale": None, "batch": BATCH, "clean_seconds": 0.02}
    header = {"policy": "asgd", "world_size": WORLD, "batch": BATCH, "hints": hints}
    journal = Journal(folder, header)
    live = Live(policies.load("asgd"), WORLD, BATCH, Hints(**hints), name="asgd", note=journal.note)
    live.news()
    arrivals: list[tuple[float, int, float, float]] = []

    def begin(rank: int, at: float) -> None:
        seconds = (0.020, 0.022, 0.050)[rank] * luck.uniform(0.95, 1.1)
        way = 0.001 + 0.004 * (rank == 2) + luck.uniform(0.0, 0.004)
        heapq.heappush(arrivals, (at + seconds + way, rank, at, seconds))

    for rank in range(WORLD):
        begin(rank, 0.0)
    free, rows, counts = 0.0, [], [0] * WORLD
    for _ in range(WORLD * steps):
        first, rank, begun, seconds = heapq.heappop(arrivals)
        at = max(first, free)
        live.finish_step(rank, at, seconds)
        live.news()
        free = at + service
        rows.append({
            "rank": rank, "step": counts[rank], "at": at, "seconds": seconds,
            "begun": begun + clocks[rank],
            "first": first, "received": at, "applied": free, "replied": free,
        })  # fmt: skip
        journal.note("push", rows[-1])
        counts[rank] += 1
        begin(rank, free + luck.uniform(0.0, 0.004))
    journal.note("end", live.now, {})
    journal.close()


def test_each_gradient_arrives_as_it_did_though_ways_differ(tmp_path: Path) -> None:
    recorded(tmp_path, 60)
    found = replay(tmp_path)
    lines = {line.what: line for line in found.lines}
    longer = lines["makespan"].replayed - lines["makespan"].real
    assert longer == pytest.approx(SERVICE, rel=1e-6), "a record has updates as they begin"
    one, other = (
        run.frame("gradients").query("fate == 'applied'") for run in (found.real, found.again)
    )
    count = min(len(one), len(other))
    assert count > 150
    for column in ("rank", "version"):
        assert one[column].tolist()[:count] == other[column].tolist()[:count]


def test_what_the_server_took_is_told_in_the_mean(tmp_path: Path) -> None:
    recorded(tmp_path, 60)
    known = {each.what: each for each in replay(tmp_path).constants}
    assert known["service"].value == pytest.approx(SERVICE, rel=1e-6)
    assert known["pull"].value == pytest.approx(0.002, rel=0.1)
    assert known["push"].value == pytest.approx(0.003 + 0.004 * 60 / (7 * 60 / 2), rel=0.3)
    assert known["push"].origin.startswith("mean of ")


@pytest.mark.parametrize("clocks", [(0.0, 86400.0, -3600.0), (0.0, 0.0, 0.02)])
def test_ranks_of_other_hosts_have_clocks_of_their_own(
    tmp_path: Path, clocks: tuple[float, ...]
) -> None:
    recorded(tmp_path / "apart", 60, clocks=clocks)
    recorded(tmp_path / "one", 60)
    apart, one = (replay(tmp_path / name).again.frame("gradients") for name in ("apart", "one"))
    count = int((one.fate == "applied").sum()) - WORLD
    for column in ("rank", "version"):
        assert apart[column].tolist()[:count] == one[column].tolist()[:count]


def test_so_has_one_whose_finished_steps_never_follow_each_other() -> None:
    rows = [
        {"rank": 1, "step": 2 * k, "seconds": 0.4, "begun": 86400.0 + k + 0.05,
         "first": k + 0.46, "received": k + 0.5, "at": k + 0.5, "applied": k + 0.5,
         "replied": k + 0.5}
        for k in range(3)
    ]  # fmt: skip
    (found,) = round_trips([["push", row] for row in rows]).values()
    assert [trip.push for trip in found] == [pytest.approx(0.03)] * 3


@dataclass
class Rest:
    """Rank 0 alone makes updates `first` to `last`, all ranks the others."""

    first: int
    last: float

    def plan(self, view: View) -> Plan:
        alone = self.first <= view.version < self.last
        return Plan((Quorum((0,)) if alone else Quorum(),), review=Review(updates=1))


def test_a_rank_that_rests_is_replayed_with_what_its_peer_waited_for(tmp_path: Path) -> None:
    """All-reduce, 0.1 s of change, 20 steps of rank 0 under a server, 0.2 s of change, all-reduce.

    A step takes 10 ms, what is left of an all-reduce 1 ms, a gradient under the server 2 ms to it,
    3 ms there and 4 ms back.
    """
    policy = "tests.ddp.test_ddp_replayed:Rest:first=10,last=30"
    hints = {"amp_ratio": None, "noise_scale": None, "batch": BATCH, "clean_seconds": 0.01}
    header = {"policy": policy, "world_size": 2, "batch": BATCH, "hints": hints}
    journal = Journal(tmp_path, header)
    live = Live(policies.load(policy), 2, BATCH, Hints(**hints), name=policy, note=journal.note)

    def together(at: float, steps: int) -> float:
        for _ in range(steps):
            live.lockstep(at, np.array([0.01, 0.008]))
            journal.note("lockstep", at, [0.01, 0.008], at + 0.01)
            at += 0.011
        return at

    begun = 0.1 + together(0.0, 10)
    for step in range(10, 30):
        live.news()
        at = begun + 0.012
        live.finish_step(0, at, 0.01)
        (reduction,) = live.news()
        live.finish_reduction(reduction.number, at)
        journal.note("push", {
            "rank": 0, "step": step, "version": step, "at": at, "seconds": 0.01, "begun": begun,
            "first": at, "received": at, "applied": at + 0.003, "replied": at + 0.003,
        })  # fmt: skip
        begun = at + 0.007
    end = together(begun + 0.2, 10)
    journal.note("end", end, {})
    journal.close()
    lines = {line.what: line for line in replay(tmp_path).lines}
    assert lines["makespan"].real == pytest.approx(end, abs=0.01)
    assert lines["makespan"].replayed == pytest.approx(end, abs=0.01)


def test_steps_beside_an_all_reduce_are_replayed_with_what_it_took_longer(tmp_path: Path) -> None:
    """Steps of 20, 22 and 30 ms; an all-reduce takes 50 ms from the last arrival on."""
    policy, pace = "streaming_diloco:h=3,p=1,tau=1", (0.020, 0.022, 0.030)
    hints = {"amp_ratio": None, "noise_scale": None, "batch": BATCH, "clean_seconds": 0.02}
    header = {"policy": policy, "world_size": WORLD, "batch": BATCH, "hints": hints}
    journal = Journal(tmp_path, header)
    live = Live(policies.load(policy), WORLD, BATCH, Hints(**hints), name=policy, note=journal.note)
    coming: list[tuple[float, int, int]] = []  # time, rank or -1, step or number of an all-reduce
    rows: dict[int, dict[str, float | None]] = {}
    now = 0.0
    while live.version < 20:
        for each in live.news():
            if isinstance(each, Start):
                if row := rows.pop(each.rank, None):
                    journal.note("push", row | {"replied": now})
                heapq.heappush(coming, (now + pace[each.rank], each.rank, each.step))
            elif isinstance(each, Reduction):
                heapq.heappush(coming, (now + 0.05, -1, each.number))
            elif isinstance(each, Update):
                gradients = [(g.rank, g.step, g.version, g.weight) for g in each.gradients]
                journal.note("applied", each.version, gradients, ())
                for row in rows.values():
                    row["applied"] = now
        now, rank, number = heapq.heappop(coming)
        if rank < 0:
            live.finish_reduction(number, now)
        else:
            live.finish_step(rank, now, pace[rank])
            rows[rank] = {
                "rank": rank, "step": number, "at": now, "seconds": pace[rank], "first": now,
                "begun": now - pace[rank], "received": now, "applied": None,
            }  # fmt: skip
    journal.note("end", now, {})
    journal.close()
    lines = {line.what: line for line in replay(tmp_path).lines}
    assert lines["makespan"].real == pytest.approx(20 * (2 * max(pace) + 0.05))
    assert lines["makespan"].replayed == pytest.approx(lines["makespan"].real - 0.05), (
        "the last all-reduce is nobody's wait"
    )
