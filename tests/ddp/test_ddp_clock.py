"""The clock of a step: what it counts, and what it makes of the cores there are."""

from __future__ import annotations

import pytest
import torch

from simstrag.ddp import local_step_timer
from simstrag.ddp.collector.step_marks import StepMarks, StepSeconds
from simstrag.ddp.local_step_timer import (
    StepTimer,
    cores_per_rank,
    measure_cores_per_rank,
    shared_core_clock,
)
from simstrag.processes.affinity import cores
from simstrag.workloads import clocks
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]


class HostClocks:
    """The clocks of a host, which a test sets: seconds, and the CPU seconds of gloo's threads."""

    def __init__(self) -> None:
        self.now = self.others = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def thread_time(self) -> float:
        return self.now / 2

    def process_time(self) -> float:
        return self.now / 2 + self.others


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostClocks:
    """The clocks that timers read."""
    host = HostClocks()
    for module in (local_step_timer, clocks):
        monkeypatch.setattr(module, "time", host)
    return host


@pytest.mark.parametrize(("cores", "expected"), [(2.0, 3.0), (1.0, 2.75)])
def test_time_between_steps_counts_and_time_after_the_last_gradient_does_not(
    cores: float, expected: float, host: HostClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other threads take is subtracted where they share the rank's core."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    clock = StepTimer(shared_core_clock(cores))
    host.now, host.others = 3.0, 0.25
    clock.ended()
    host.now = 5.0
    assert clock.seconds == expected
    clock.begin()
    assert clock.start == 5.0
    host.now = 5.5
    with clock.waiting():
        host.now, host.others = 9.5, 4.0
    clock.ended()
    assert clock.seconds == 0.5


def test_marks_of_a_shared_core_leave_out_what_other_threads_take(host: HostClocks) -> None:
    marks = StepMarks(clocks.HostClock("", corrected=True), settling=1)
    marks.end()
    host.now, host.others = 3.0, 0.25
    marks.enter()
    host.now, host.others = 4.0, 5.0
    marks.end()
    host.now, host.others = 5.0, 9.0
    marks.enter()
    marks.end()
    assert list(marks.known()) == [
        StepSeconds(1, 2.75, ((0.0, 1.25),)),
        StepSeconds(2, 0.0, ((0.0, 1.0),)),
    ]


@pytest.mark.parametrize(
    ("own", "of_all", "expected"),
    [
        ([3], [[3], [5]], 1.0),
        ([0], [[0], [1], [0], [1]], 0.5),
        ([0, 1], [[0, 1]] * 4, 0.5),
        ([0, 1, 2, 3], [[0, 1], [0, 1, 2, 3]], 3.0),
    ],
)
def test_cores_are_shared_out_among_those_that_may_use_them(
    own: list[int], of_all: list[list[int]], expected: float
) -> None:
    assert cores_per_rank(own, of_all) == expected


def rank_finds_its_cores(rank: int, world: int) -> float:
    return measure_cores_per_rank()


def test_pinned_ranks_find_out_how_much_of_a_core_they_have(ranks: Ranks) -> None:
    pinned = len(cores())
    expected = [1 / len([r for r in range(4) if r % pinned == k % pinned]) for k in range(4)]
    assert ranks.run(rank_finds_its_cores, 4) == expected


@pytest.mark.parametrize(
    ("cores", "threads", "corrected", "reason"),
    [
        (1.0, 1, True, "1 core per rank"),
        (0.5, 1, True, "0.5 core per rank"),
        (1.0, 4, False, "4 threads of torch"),
        (2.0, 1, False, "2 cores per rank"),
    ],
)
def test_the_correction_is_a_choice_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, cores: float, threads: int, corrected: bool, reason: str
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    clock = shared_core_clock(cores)
    assert clock.corrected is corrected
    assert reason in clock.reason
