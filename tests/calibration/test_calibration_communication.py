"""The benches of communication: real processes, right sums, nothing left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from simstrag.calibration.benches import background_traffic
from simstrag.calibration.benches.allreduce import COARSE, AllReduceBench, rank_counts, sizes_of
from simstrag.calibration.benches.background_traffic import Traffic
from simstrag.calibration.benches.bench import Skipped
from simstrag.calibration.benches.overlap import KINDS, OverlapBench
from simstrag.calibration.benches.server import ServerBench
from simstrag.calibration.benches.training_ranks import FEWEST, TrainingBench
from simstrag.calibration.benches.workers import WorkerGroup
from simstrag.calibration.cells import MeasurementCell
from simstrag.processes.affinity import cores
from simstrag.processes.children import Children
from tests.calibration.test_calibration_workers import unable
from tests.support.processor_time import processor_seconds, wait_for_work
from tests.support.warm_children import warm_children

__all__ = ["warm_children"]

if TYPE_CHECKING:
    from simstrag.workloads.workload import Parts

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    affinity, before = cores(), multiprocessing.active_children()
    yield
    assert {*multiprocessing.active_children()} <= {*before}
    assert cores() == affinity


def tiny() -> Parts:
    """A model of a few layers."""
    from torch import nn

    from simstrag.workloads.workload import Parts

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return Parts(
        model,
        lambda m, batch: m(batch).square().mean(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda n: torch.ones(n, 8),
    )


def processes(group: WorkerGroup) -> list[Any]:
    """The processes of a group, by rank."""
    return group._children._processes


@pytest.fixture(scope="module")
def reduces() -> Iterator[AllReduceBench]:
    """All-reduces of every kind, in visits of a twentieth of a second."""
    bench = AllReduceBench(ranks=(2,), sizes=(1024, COARSE[0], 1 << 24), nested=4, traffic=(0.5,))
    with pytest.MonkeyPatch.context() as patch, bench:
        patch.setattr("simstrag.calibration.benches.allreduce.VISIT", 0.05)
        yield bench


KINDS_OF_REDUCES = [
    (2, "all", ""), (2, "all", "net"), (4, "all", ""), (4, "half", ""), (4, "halves", ""),
]  # fmt: skip


def test_all_reduces_are_of_every_kind(reduces: AllReduceBench) -> None:
    assert {(c.ranks, c.group, c.load) for c in reduces.cells} == set(KINDS_OF_REDUCES)


@pytest.mark.parametrize("kind", KINDS_OF_REDUCES)
def test_all_reduces_of_every_kind_are_timed_here(
    kind: tuple[int, str, str], reduces: AllReduceBench
) -> None:
    of_kind = [c for c in reduces.cells if (c.ranks, c.group, c.load) == kind]
    cell = min(of_kind, key=lambda c: c.bytes)
    samples, facts = reduces.visit(cell)
    assert len(samples["seconds"]) >= 5
    assert all(0 < seconds < 5 for values in samples.values() for seconds in values)
    assert ("other" in samples) == (cell.group == "halves")
    assert ("clean" in samples) == bool(cell.load)
    assert facts["oversubscribed"] == (cell.ranks > len(cores()))
    assert not cell.load or facts["bytes_per_second"] > 1e6


def test_a_larger_all_reduce_takes_longer(reduces: AllReduceBench) -> None:
    cells = [MeasurementCell("allreduce", backend="gloo", ranks=2, bytes=size, group="all")
             for size in (1024, 1 << 24)]  # fmt: skip
    small, large = (min(reduces.visit(cell)[0]["seconds"]) for cell in cells)
    assert large > 5 * small


def test_ranks_that_share_cores_are_timed_at_a_few_sizes_only() -> None:
    many = 2 * len(cores())
    bench = AllReduceBench(ranks=(2, many))
    sizes = {cell.bytes for cell in bench.cells if cell.ranks == many}
    assert sizes == (set(COARSE) if many > len(cores()) > 1 else set(bench.sizes))


def test_sizes_that_would_not_fit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        available = 64 << 20

    monkeypatch.setattr(psutil, "virtual_memory", Small)
    assert max(sizes_of(2, "cpu")) == 4 << 20
    assert 999_424 in sizes_of(2, "cpu", gradient_bytes=999_424)
    assert rank_counts(16) == (2, 3, 4, 8, 16)


def test_push_service_and_pull_are_timed_at_every_size() -> None:
    with ServerBench((1 << 16, 1 << 20)) as bench:
        for cell in bench.cells:
            samples, _ = bench.visit(cell)
            assert set(samples) == {"push", "service", "pull"}
            assert all(statistics.median(values) > 0 for values in samples.values())
        rows = bench.stamps(1 << 16, 7)
    assert len(rows) == 7
    for t0, s0, received, applied, s1, t1 in rows:
        assert t0 < s0 < received <= applied < min(s1, t1)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visits of a tenth of a second to ranks that train."""
    monkeypatch.setattr("simstrag.calibration.benches.training_ranks.VISIT", 0.1)
    monkeypatch.setattr("simstrag.calibration.benches.training_ranks.SPAN", 0.05)


@pytest.mark.usefixtures("short")
def test_ranks_that_train_under_a_server_say_what_their_ways_took() -> None:
    with TrainingBench("server", tiny, "fp64", batch=2, size=1, stand_in=True) as bench:
        (cell,) = bench.cells
        for _ in range(2):
            samples, _ = bench.visit(cell)
            assert set(samples) == {"alone", "beside", "local", "push", "service", "pull"}
            assert all(len(samples[name]) >= 2 * (FEWEST - 1) for name in samples)
            for name in ("alone", "beside", "local", "push", "service"):
                assert statistics.median(samples[name]) > 0
        (server,) = servers()
    assert not psutil.wait_procs([server], timeout=120)[1]


@pytest.mark.thorough
@pytest.mark.usefixtures("short")
def test_ranks_in_lockstep_say_how_long_it_takes_until_they_go_on() -> None:
    with TrainingBench("lockstep", tiny, "fp32", batch=2, size=1, ranks=3, levels=(1.0,)) as bench:
        plain, loaded = bench.cells
        for cell in (plain, loaded, plain):
            samples, facts = bench.visit(cell)
            steps = len(samples["rest"]) + 1
            assert steps >= FEWEST
            assert len(samples["local"]) == 3 * steps
            assert statistics.median(samples["rest"]) > 0
            assert ("load_share" in facts) == (cell is loaded)
            assert ("alone" in samples) == ("beside" in samples) == (cell is plain)
            assert ("clean" in samples) == (cell is loaded)
            if cell is loaded:
                assert len(samples["clean"]) % 3 == 0
            for name in {"alone", "beside"} & set(samples):
                assert len(samples[name]) % facts["cores"] == 0


def test_ranks_that_cannot_start_are_skipped_with_the_reason() -> None:
    bench = TrainingBench("lockstep", tiny, "fp32", batch=2, size=1)
    bench.workers = WorkerGroup(unable, 2)
    bench.held = [bench.workers]
    with bench:
        for _ in range(2):
            with pytest.raises(Skipped, match="the process of rank 0 ended early"):
                bench.visit(bench.cells[0])


def test_ctrl_c_in_the_first_step_ends_all_that_the_bench_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    bench = TrainingBench("lockstep", tiny, "fp32", batch=2, size=1)
    loads, ranks = contextlib.ExitStack(), contextlib.ExitStack()
    loads.callback(ended.append, "loads")
    ranks.callback(ended.append, "ranks")
    bench.held = [loads, ranks]
    monkeypatch.setattr(bench, "_train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.__enter__()
    assert ended == ["ranks", "loads"]


def servers() -> list[psutil.Process]:
    mine = psutil.Process().children(recursive=True)
    return [each for each in mine if "simstrag.ddp.server.server_main" in each.cmdline()]


def test_backward_is_timed_alone_together_and_apart() -> None:
    parameters = 8 * 16 + 16 + 16 * 4 + 4
    with OverlapBench(tiny, [("fp32", 2), ("fp32_of_fp64", 2)]) as bench:
        for cell, size in zip(bench.cells, (4, 8), strict=True):
            samples, facts = bench.visit(cell)
            assert tuple(samples) == KINDS
            assert all(len(values) >= 9 for values in samples.values())
            assert facts["bytes"] == parameters * size


def test_traffic_flows_only_while_it_is_asked_for() -> None:
    with Traffic(2) as traffic:
        pids = [process.pid for process in processes(traffic)]
        for level in (1.5, 0.25):
            with traffic.streaming(level) as stream:
                wait_for_work(pids)
            assert stream["bytes_per_second"] > 1e6
            before = processor_seconds(pids)
            time.sleep(0.3)
            assert processor_seconds(pids) - before < 0.1  # asleep again
        with pytest.raises(ValueError, match="level 3"), traffic.streaming(3):
            pass


class TimedStream:
    """A stream on which each chunk takes 0.1 ms of a clock that a test tells."""

    def __init__(self) -> None:
        self.now, self.chunks = 0.0, 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def sendall(self, data: bytes) -> None:
        self.now += 1e-4
        self.chunks += 1


@pytest.mark.parametrize("level", [0.25, 0.5, 1.0, 1.5])
def test_traffic_of_a_level_flows_for_that_share_of_the_time(
    level: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, requests = TimedStream(), list[dict[int, Any]]()

    def request(_: WorkerGroup, asked: dict[int, Any]) -> list[int]:
        requests.append(asked)
        stream.sleep(1)
        return [0]

    monkeypatch.setattr(background_traffic, "time", stream)
    monkeypatch.setattr(background_traffic, "PERIOD", 0.1)
    monkeypatch.setattr(Traffic, "request", request)
    with Traffic(2).streaming(level):
        pass
    shares = list(requests[1].values())
    assert sum(shares) == level
    begun = stream.now
    work, _ = background_traffic._source(stream, shares[0])  # type: ignore[arg-type]
    while stream.now < begun + 9.99:
        work()
    assert stream.chunks == pytest.approx(100_000 * shares[0], rel=0.01)


def test_traffic_that_has_ended_is_noticed_and_the_next_one_flows() -> None:
    with Traffic(1) as traffic:
        source, sink = processes(traffic)
        source.kill()
        source.join()
        before = processor_seconds([sink.pid])
        time.sleep(0.2)
        assert processor_seconds([sink.pid]) - before < 0.05  # and does not spin
        with pytest.raises(Skipped, match="end 0 ended early"), traffic.streaming(1):
            pass
        with traffic.streaming(1) as stream:
            wait_for_work([process.pid for process in processes(traffic)])
        assert stream["bytes_per_second"] > 1e6
        with pytest.raises(KeyboardInterrupt), traffic.streaming(1):  # noqa: PT012
            for process in processes(traffic):
                process.kill()
                process.join()
            raise KeyboardInterrupt
        assert processes(traffic) == []


def test_traffic_that_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = Children.start, 0

    def failing(children: Children, *arguments: Any) -> None:
        nonlocal started
        started += 1
        if started == 3:
            raise KeyboardInterrupt
        start(children, *arguments)

    monkeypatch.setattr(Children, "start", failing)
    with pytest.raises(KeyboardInterrupt), Traffic(2):  # what is left is told by the fixture
        pass


def test_all_reduces_that_cannot_start_leave_no_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(group: WorkerGroup) -> WorkerGroup:
        if group.name == "rank":
            raise KeyboardInterrupt
        return enter(group)

    enter = WorkerGroup.__enter__
    monkeypatch.setattr(WorkerGroup, "__enter__", failing)
    with pytest.raises(KeyboardInterrupt), AllReduceBench(traffic=(1.0,)):
        pass


@pytest.mark.thorough
def test_ranks_that_ended_are_replaced_by_others_that_find_each_other() -> None:
    with AllReduceBench(sizes=(1024,)) as bench:
        _, rank = processes(bench.workers)
        rank.kill()
        rank.join()
        with pytest.raises(Skipped, match="rank 1 ended early"):
            bench.visit(bench.cells[0])
        assert bench.visit(bench.cells[0])[0]["seconds"]
