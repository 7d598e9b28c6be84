"""Load beside steps: it does what it is told, says what it did, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest

torch = pytest.importorskip("torch")

from simstrag.calibration.benches import background_load as module  # noqa: E402
from simstrag.calibration.benches.background_load import SHARED, Loads, levels, make_piece, split  # noqa: E402
from simstrag.calibration.benches.bench import Skipped  # noqa: E402
from simstrag.calibration.benches.measured_device import Cpu, find_device  # noqa: E402
from simstrag.calibration.benches.steps import ContentionBench  # noqa: E402
from simstrag.calibration.benches.training_jobs import FEWEST, WARM_UP, Jobs  # noqa: E402
from simstrag.calibration.benches.workers import WorkerGroup  # noqa: E402
from simstrag.processes.affinity import cores  # noqa: E402
from simstrag.processes.children import Children  # noqa: E402
from simstrag.workloads import Parts, Precisions, TrainingTask, Workload  # noqa: E402
from tests.support.processor_time import processor_seconds, wait_for_work  # noqa: E402
from tests.support.warm_children import warm_children  # noqa: E402

__all__ = ["warm_children"]

CHOSEN = Precisions("fp64", "fp32_of_fp64", stand_in=True, probed_gain=1.0)


def linear() -> Parts:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return Parts(model, lambda m, x: m(x).mean(), optimizer, lambda n: torch.randn(n, 64))


TINY = Workload("tiny", linear, (2, 4, 8), 4, "cpu")


@pytest.mark.parametrize("others", range(8))
def test_levels_ascend_up_to_all_other_cores(others: int) -> None:
    found = levels("memory", others)
    assert list(found) == sorted(set(found))
    assert found[-1] == (others or SHARED[-1])
    assert levels("cpu", others) == SHARED


@pytest.mark.parametrize("level", SHARED)
def test_a_level_is_processes_times_duty(level: float) -> None:
    count, duty = split(level)
    assert count * duty == level
    assert 0 < duty <= 1


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def started() -> list[int | None]:
    """The processes that benches started here."""
    return [child.pid for child in multiprocessing.active_children()]


def kill_all() -> None:
    """The processes that benches started here."""
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


def test_loads_sleep_until_they_are_told_and_again_afterwards() -> None:
    with Loads(2, cores()[-1]) as loads:
        children = started()
        assert len(children) == 2

        def sleep_soon() -> bool:
            """Within 20 looks at 0.2 s: some systems book processor time late."""
            for _ in range(20):
                before = processor_seconds(children)
                time.sleep(0.2)
                if processor_seconds(children) - before < 0.03:
                    return True
            return False

        assert sleep_soon()
        with loads.on("cpu", 2.0):
            wait_for_work(started())
        assert sleep_soon()


@pytest.mark.parametrize("duty", [0.25, 0.5, 1.0])
def test_a_load_works_for_its_duty_of_the_wall_clock(
    duty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    module.burn(10.0, duty, lambda: clock.sleep(0.0001))
    assert clock.worked == pytest.approx(10.0 * duty, rel=0.06)  # one piece more in each period


class Clock:
    """Time that passes while one sleeps; `worked` counts the shortest sleeps."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = process_time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds if seconds == 0.0001 else 0.0


def test_a_load_reports_what_it_took() -> None:
    with Loads(1, cores()[-1]) as loads, loads.on("cpu", 0.5) as report:
        time.sleep(0.3)
        wait_for_work(started(), 0.05)
    assert report["load_seconds"] >= 0.3
    assert report["load_pieces"] > 0
    assert 0 < report["load_share"] < 0.7


def test_pieces_longer_than_their_turn_are_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    work, report = module._work(lambda: clock.sleep(0.013), duty=0.25, even=True)
    while clock.now < 10.0:
        work()
    done = report()
    assert done["busy"] / done["seconds"] == pytest.approx(0.25, rel=0.05)
    assert done["pieces"] * 0.013 == pytest.approx(done["busy"])


@pytest.mark.parametrize(
    ("launch", "scale", "launches"), [(1e-4, 1, 10), (3e-3, 4, 1), (1.0, 8, 1)]
)
def test_a_piece_on_a_gpu_is_about_a_millisecond_where_the_gpu_is_fast_enough(
    launch: float, scale: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = Clock(), list[int]()
    monkeypatch.setattr(module, "time", clock)

    def make(scale: int) -> Callable[[], object]:
        def launched() -> None:
            clock.sleep(launch / scale)
            seen.append(scale)

        return launched

    once = module._size_piece(make, lambda: None)
    seen.clear()
    once()
    assert seen == [scale] * launches


@pytest.mark.parametrize(
    ("share", "level", "beside", "error"),
    [
        (1.0, 1.0, 0, 0.0), (0.9, 1.0, 0, -0.1), (0.5, 0.25, 0, 1.0), (0.5, 1.0, 1, 0.0),
        (0.3, 1.0, 1, -0.2), (0.8, 1.0, 1, 0.3), (0.125, 0.25, 1, 0.0), (0.25, 0.25, 1, 0.0),
        (0.3, 0.25, 1, 0.2), (2 / 3, 2.0, 1, 0.0), (0.75, 3.0, 1, 0.0), (1 / 3, 1.0, 2, 0.0),
    ],
)  # fmt: skip
def test_a_load_is_off_by_what_it_took_beyond_or_below_its_part(
    share: float, level: float, beside: int, error: float
) -> None:
    assert module.level_error(share, level, beside) == pytest.approx(error)


@pytest.mark.parametrize("taken", [0.3, 0.7, 1.0, 1.3])
def test_a_load_that_did_less_or_more_than_asked_says_so(
    taken: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [None, {"seconds": 1.0, "cpu": taken, "busy": taken, "pieces": 1}]

    def ask(group: WorkerGroup, orders: dict[int, object]) -> list[object]:
        return [answers.pop(0)]

    monkeypatch.setattr(WorkerGroup, "request", ask)
    with Loads(0, cores()[-1]) as loads:
        loads.count = 1
        with loads.on("gemm", 1.0) as report:
            pass
    assert report["load_error"] == pytest.approx(taken - 1)
    assert report.get("load_off", False) == (abs(taken - 1) > 0.15)


def test_a_load_that_cannot_obey_or_was_killed_is_noticed_and_the_next_one_works() -> None:
    with Loads(2, cores()[-1]) as loads:
        with pytest.raises(Skipped, match="load 0 of 2: "), loads.on("copy", 1.0):
            pass
        with loads.on("cpu", 2.0) as report:
            wait_for_work(started(), 0.05)
        assert report["load_pieces"] > 0
        multiprocessing.active_children()[0].kill()
        with pytest.raises(Skipped, match="ended early"):  # noqa: SIM117
            with loads.on("cpu", 2.0):
                time.sleep(0.2)
        with loads.on("cpu", 2.0) as report:
            wait_for_work(started(), 0.05)
        assert report["load_pieces"] > 0


@pytest.mark.parametrize("ended", [KeyboardInterrupt, MemoryError])
def test_what_ends_a_visit_is_not_hidden_by_the_end_of_its_load(
    ended: type[BaseException],
) -> None:
    with Loads(1, cores()[-1]) as loads:
        with pytest.raises(ended), loads.on("cpu", 1.0):  # noqa: PT012
            kill_all()
            raise ended
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("free", [1 << 40, 64 << 20])
def test_hogs_take_a_quarter_of_the_free_memory_at_most(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    class Memory:
        available = free

    def start(children: Children, target: object, rank: int, gpu: str, room: int) -> None:
        told.append(room)

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    monkeypatch.setattr(Children, "start", start)
    monkeypatch.setattr(WorkerGroup, "_receive", lambda group, *_: [])
    with Loads(4, cores()[-1]):
        assert sum(told) <= free / 4
    assert len(told) == 4


def test_a_hog_keeps_to_its_room() -> None:
    tracemalloc.start()
    try:
        make_piece("hog", 8 << 20)()
        assert tracemalloc.get_traced_memory()[1] == pytest.approx(8 << 20, rel=0.01)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("work", ["spin", "hog"])
def test_pieces_of_work_are_short(work: str) -> None:
    once = make_piece(work)
    begun = time.thread_time()
    for _ in range(5):
        once()
    assert time.thread_time() - begun < 1.0


class Told:
    """Loads that only note whether they are on."""

    working = False

    @contextlib.contextmanager
    def on(self, kind: str, level: float) -> Iterator[dict[str, float]]:
        self.working = True
        yield {"load_share": level}
        self.working = False


class Counted(Cpu):
    """A CPU whose clock is advanced by hand."""

    now = 0.0

    def mark(self) -> tuple[float, float]:
        return self.now, 0.0


def test_clean_steps_are_taken_without_the_load_before_and_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, clock = Told(), Counted(cores()[-1])
    jobs = Jobs(TINY, clock)
    order: list[bool] = []

    def gradient(self: TrainingTask, batch: object) -> None:
        clock.now += 3 if told.working else 1
        order.append(told.working)

    monkeypatch.setattr(TrainingTask, "gradient", gradient)
    monkeypatch.setattr(TrainingTask, "update", lambda self: None)
    monkeypatch.setattr("simstrag.calibration.benches.steps.SETTLE", 0.0)
    bench = ContentionBench(jobs, CHOSEN, span=0.0)
    bench._loads = told  # type: ignore[assignment]
    samples, facts = bench.visit(bench.cells[0])
    alone, beside = WARM_UP + FEWEST, 2 * FEWEST  # the first of the loaded ones settle
    assert order == [False] * alone + [True] * beside + [False] * alone
    assert samples["clean"] == (1.0,) * 2 * FEWEST
    assert samples["seconds"] == (3.0,) * FEWEST
    assert facts["load_share"] == bench.cells[0].level


def test_a_visit_beside_a_real_load_tells_what_that_did() -> None:
    with ContentionBench(Jobs(TINY, find_device("cpu")), CHOSEN, span=0.02) as bench:
        (cell,) = (c for c in bench.cells if (c.precision, c.load, c.level) == ("fp64", "cpu", 1.0))
        samples, facts = bench.visit(cell)
    assert set(samples) == {"clean", "seconds", "cpu", "update"}
    assert facts["load_pieces"] > 0


def test_cells_are_the_nominal_pair_beside_every_load() -> None:
    cells = ContentionBench(Jobs(TINY, find_device("cpu")), CHOSEN).cells
    assert len(set(cells)) == len(cells)
    assert {cell.batch for cell in cells} == {4}
    assert {cell.precision for cell in cells} == {"fp64", "fp32_of_fp64"}
    assert {cell.load for cell in cells} == {"cpu", "memory"}


@pytest.mark.parametrize("own", [False, True])
def test_a_visit_without_its_load_is_skipped_and_the_next_one_is_not(own: bool) -> None:
    workload = replace(TINY, user_defined=own)
    with ContentionBench(Jobs(workload, find_device("cpu")), CHOSEN, span=0.02) as bench:
        kill_all()
        with pytest.raises(Skipped, match=r"^the process of load 0 ended early$"):
            bench.visit(bench.cells[0])
        assert bench.visit(bench.cells[0])[1]["load_pieces"] > 0
