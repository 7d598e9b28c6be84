"""The clock of a step on a machine that does nothing else: it sees the slow rank, and no other."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from simstrag.ddp.allreduce.control_message import unpack
from simstrag.ddp.allreduce.hook import Reducer
from simstrag.ddp.local_step_timer import StepTimer, shared_core_clock
from simstrag.validation.loadgen.injector import Injector
from simstrag.validation.loadgen.schedule import Episode, Schedule
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

FORWARD, BACKWARD, LAYERS = 0.003, 0.006, 6
"""Seconds that a slowed rank computes longer in each layer: 54 ms in all."""
LOST = (FORWARD + BACKWARD) * LAYERS
SETTLING = 3
"""Steps at the start that are left out: DDP finds the order of its buckets in the first."""


def spin(seconds: float) -> None:
    """So much more computing, whatever else the core does meanwhile."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Delay(torch.autograd.Function):
    """Nothing, but late."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, late: list[bool]) -> torch.Tensor:
        context.late = late
        spin(FORWARD * late[0])
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        spin(BACKWARD * context.late[0])
        return gradients[0], None


class Net(nn.Module):
    """Layers, between which a rank can be made late."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.late = [False]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Delay.apply(layer(x).relu(), self.late)  # type: ignore[no-untyped-call]
        return x


class Watched(StepTimer):
    """A clock beside which it is measured what programs that are none of ours took of its core.

    That is local time, and rightly told; but these tests know only what their own ranks do.
    """

    def begin(self) -> None:
        super().begin()
        self.own = time.process_time()

    def ended(self) -> None:
        super().ended()
        self.taken = time.monotonic() - self.start - (time.process_time() - self.own)


def rank_is_slow(rank: int, world: int, cores: float) -> dict[str, list[tuple[float, float]]]:
    """Rank 1 is late in every other ten steps; of each step, own local and whole seconds."""
    net = Net(512)
    clock = Watched(shared_core_clock(cores))
    reducer = Reducer(clock)
    ddp = reducer.wrap(net, bucket_cap_mb=1)
    x = torch.randn(64, 512)
    found: dict[str, list[tuple[float, float]]] = {"even": [], "slow": []}
    for step in range(SETTLING + 120):
        case = "slow" if step // 10 % 2 else "even"
        net.late[0] = rank == 1 and case == "slow"
        clock.begin()
        ddp(x).sum().backward()
        slots = unpack(reducer.wait())
        whole = time.monotonic() - clock.start
        assert slots.seconds[rank] == clock.seconds
        if step >= SETTLING:
            found[case].append((clock.seconds - clock.taken, whole))
    return found


def test_the_slow_rank_is_seen_and_the_healthy_one_looks_as_before(ranks: Ranks) -> None:
    """Whole steps hide it: all ranks take equally long."""
    found = ranks.run(rank_is_slow, 2, 1.0)

    def middle(rank: int, case: str, which: int) -> float:
        return statistics.median(step[which] for step in found[rank][case])

    even, slow = ([middle(rank, case, 0) for rank in (0, 1)] for case in ("even", "slow"))
    print("even", even, "slow", slow)
    assert slow[1] - even[1] == pytest.approx(LOST, rel=0.15)
    assert slow[0] == pytest.approx(even[0], rel=0.1)
    assert middle(0, "slow", 1) == pytest.approx(middle(1, "slow", 1), rel=0.02)


def rank_sleeps(rank: int, world: int, cores: float) -> dict[bool, list[float]]:
    """Own local seconds as the clock tells them; rank 1 sleeps in every other ten steps."""
    net = Net(512)
    clock = StepTimer(shared_core_clock(cores))
    reducer = Reducer(clock)
    ddp = reducer.wrap(net, bucket_cap_mb=1)
    x = torch.randn(64, 512)
    found: dict[bool, list[float]] = {False: [], True: []}
    for step in range(SETTLING + 60):
        late = step // 10 % 2 == 1
        clock.begin()
        if late and rank == 1:
            time.sleep(LOST)
        ddp(x).sum().backward()
        reducer.wait()
        if step >= SETTLING:
            found[late].append(clock.seconds)
    return found


@pytest.mark.parametrize("cores", [1.0, 2.0])
def test_who_waits_for_a_late_rank_is_not_late_itself(cores: float, ranks: Ranks) -> None:
    """Sleeping takes no CPU: a clock of CPU time would not see it, and one stopped later twice."""
    found = ranks.run(rank_sleeps, 2, cores)
    longer = [statistics.median(own[True]) - statistics.median(own[False]) for own in found]
    print(f"longer by {longer}")
    assert longer[1] > 0.8 * LOST
    assert longer[0] < 0.5 * LOST


def rank_beside_load(rank: int, world: int) -> dict[bool, float]:
    """Median own local seconds, alone and beside a process that wants rank 1's core all the time.

    Kept in a group of all ranks, so that rank 0 waits for rank 1.
    """
    net = Net(1024)
    clock = StepTimer(shared_core_clock(1.0))
    reducer = Reducer(clock)
    ddp = reducer.wrap(net, bucket_cap_mb=1)
    x = torch.randn(256, 1024)
    found = {}
    for loaded in (False, True):
        beside = Schedule((Episode(1, "cpu", 1.0, 0.0, 600.0),) if loaded else (), 600.0)
        with Injector(beside) if rank == 1 and loaded else contextlib.nullcontext() as injector:
            if injector is not None:
                injector.go(time.monotonic())
                time.sleep(0.5)
            dist.barrier()
            own = []
            for step in range(SETTLING + 30):
                clock.begin()
                ddp(x).sum().backward()
                reducer.wait()
                if step >= SETTLING:
                    own.append(clock.seconds)
            found[loaded] = statistics.median(own)
            dist.barrier()
    return found


def test_real_load_beside_a_rank_doubles_its_local_time_and_no_other(ranks: Ranks) -> None:
    slower = [own[True] / own[False] for own in ranks.run(rank_beside_load, 2)]
    print(f"times as long: {slower}")
    assert 1.6 < slower[1] < 2.6
    assert slower[0] < 1.4


def rank_beside_a_thread(rank: int, world: int) -> list[float]:
    """Local times of 0.1 s of work beside a busy thread of the same process; of either clock."""
    a = torch.randn(700, 700)
    stop = threading.Event()

    def other() -> None:
        while not stop.is_set():
            torch.mm(a, a)  # without Python's lock

    thread = threading.Thread(target=other)
    thread.start()
    found = []
    for count in (1.0, 2.0):
        clock = Watched(shared_core_clock(count))
        spin(0.1)
        clock.ended()
        found.append(clock.seconds - clock.taken)
    stop.set()
    thread.join()
    return found


def test_other_threads_of_the_process_are_subtracted_only_on_a_core_of_its_own(
    ranks: Ranks,
) -> None:
    corrected, plain = ranks.run(rank_beside_a_thread, 1)[0]
    assert corrected == pytest.approx(0.1, rel=0.05)
    assert plain > 0.15
