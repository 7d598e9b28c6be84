"""Load beside steps: it does what it is told, says what it did, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

torch = pytest.importorskip("torch")

from simstrag.calibration import burner  # noqa: E402
from simstrag.calibration.burner import piece  # noqa: E402
from simstrag.calibration.cells import Skipped  # noqa: E402
from simstrag.calibration.contention import ContentionBench  # noqa: E402
from simstrag.calibration.device import Cpu, device  # noqa: E402
from simstrag.calibration.loads import SHARED, LoadFailed, Loads, levels, split  # noqa: E402
from simstrag.calibration.machine import cores  # noqa: E402
from simstrag.calibration.steps import FEWEST, WARM, Jobs  # noqa: E402
from simstrag.workloads import Job, Parts, Precisions, Workload  # noqa: E402

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


def test_loads_sleep_until_they_are_told_and_again_afterwards() -> None:
    with Loads(2, cores()[-1]) as loads:
        children = psutil.Process().children()

        def spent() -> float:
            return sum(sum(child.cpu_times()[:2]) for child in children)

        before = spent()
        time.sleep(0.2)
        assert spent() - before < 0.03
        with loads.on("cpu", 2.0):
            while spent() - before < 0.1:
                time.sleep(0.01)
        worked = spent()
        time.sleep(0.2)
        assert spent() - worked < 0.03
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("duty", [0.25, 0.5, 1.0])
def test_a_load_works_for_its_duty_of_the_wall_clock(
    duty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(burner, "time", clock)
    burner.burn(10.0, duty, lambda: clock.sleep(0.0001))
    assert clock.worked == pytest.approx(10.0 * duty, rel=0.06)  # one piece more in each period


class Clock:
    """Time that passes while one sleeps; `worked` counts the shortest sleeps."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds if seconds == 0.0001 else 0.0


def test_a_load_reports_what_it_took() -> None:
    with Loads(1, cores()[-1]) as loads, loads.on("cpu", 0.5) as report:
        time.sleep(0.3)
    assert report["load_seconds"] >= 0.3
    assert report["load_pieces"] > 0
    assert 0 < report["load_share"] < 0.7


def test_a_load_that_fell_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simstrag.calibration.loads.REACHED", 10.0)
    with Loads(1, cores()[-1]) as loads, loads.on("cpu", 0.5) as report:
        time.sleep(0.1)
    assert report["load_short"].endswith("wanted 0.25")


def test_a_load_that_was_killed_or_cannot_obey_is_noticed() -> None:
    with Loads(1, cores()[-1]) as loads:
        with pytest.raises(LoadFailed, match="a load failed: "), loads.on("copy", 1.0):
            pass
        (child,) = psutil.Process().children()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        with pytest.raises(LoadFailed, match="has ended"), loads.on("cpu", 1.0):
            pass


@pytest.mark.parametrize("work", ["spin", "stream", "hog"])
def test_pieces_of_work_are_short(work: str) -> None:
    once = piece(work)
    begun = time.perf_counter()
    for _ in range(5):
        once()
    assert time.perf_counter() - begun < 1.0


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

    def mark(self) -> float:
        return self.now


def test_clean_steps_are_taken_without_the_load_before_and_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, clock = Told(), Counted(cores()[-1])
    jobs = Jobs(TINY, clock)
    order: list[bool] = []

    def gradient(self: Job, batch: object) -> None:
        clock.now += 3 if told.working else 1
        order.append(told.working)

    monkeypatch.setattr(Job, "gradient", gradient)
    monkeypatch.setattr(Job, "update", lambda self: None)
    monkeypatch.setattr("simstrag.calibration.contention.SETTLE", 0.0)
    bench = ContentionBench(jobs, CHOSEN, span=0.0)
    bench._loads = told  # type: ignore[assignment]
    samples, facts = bench.visit(bench.cells[0])
    alone, beside = WARM + FEWEST, 2 * FEWEST  # the first of the loaded ones settle
    assert order == [False] * alone + [True] * beside + [False] * alone
    assert samples["clean"] == (1.0,) * 2 * FEWEST
    assert samples["seconds"] == (3.0,) * FEWEST
    assert facts["load_share"] == bench.cells[0].level


def test_a_visit_beside_a_real_load_tells_what_that_did() -> None:
    with ContentionBench(Jobs(TINY, device("cpu")), CHOSEN, span=0.02) as bench:
        (cell,) = (c for c in bench.cells if (c.precision, c.load, c.level) == ("fp64", "cpu", 1.0))
        samples, facts = bench.visit(cell)
    assert set(samples) == {"clean", "seconds", "cpu", "update"}
    assert facts["load_pieces"] > 0


def test_cells_are_the_nominal_pair_beside_every_load() -> None:
    cells = ContentionBench(Jobs(TINY, device("cpu")), CHOSEN).cells
    assert len(set(cells)) == len(cells)
    assert {cell.batch for cell in cells} == {4}
    assert {cell.precision for cell in cells} == {"fp64", "fp32_of_fp64"}
    assert {cell.load for cell in cells} == {"cpu", "memory"}


def test_a_visit_without_its_load_is_skipped() -> None:
    with ContentionBench(Jobs(TINY, device("cpu")), CHOSEN, span=0.02) as bench:
        for child in psutil.Process().children():
            child.kill()
            child.wait()
        with pytest.raises(Skipped, match="a load's process has ended"):
            bench.visit(bench.cells[0])
