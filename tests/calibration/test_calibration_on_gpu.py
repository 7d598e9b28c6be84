"""A calibration of a GPU from end to end, on a CPU that plays one: its clock is its work.

Launching a step takes 3 ms and computing it 1 ms a sample; batches above 16 find no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from simstrag.calibration import calibrate  # noqa: E402
from simstrag.calibration import plan as module  # noqa: E402
from simstrag.calibration.benches import steps, training_jobs  # noqa: E402
from simstrag.calibration.benches.anatomy import AnatomyBench  # noqa: E402
from simstrag.calibration.benches.bench import Skipped  # noqa: E402
from simstrag.calibration.benches.measured_device import Cpu  # noqa: E402
from simstrag.calibration.calibrate import Calibration  # noqa: E402
from simstrag.calibration.cells import MeasurementCell, VisitSeries  # noqa: E402
from simstrag.calibration.plan import CalibrationRequest  # noqa: E402
from simstrag.calibration.samples import read  # noqa: E402
from simstrag.errors import InputError  # noqa: E402
from simstrag.processes.affinity import cores  # noqa: E402
from simstrag.profile.profile import Profile  # noqa: E402
from simstrag.workloads import Parts, Precisions, TrainingTask, Workload  # noqa: E402

LAUNCH, SAMPLE, MEMORY = 0.003, 0.001, 16
PRECISIONS = ("fp32", "fp64", "bf16")


class PlayedGpu(Cpu):
    """Its marks are seconds of played work."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__(cores()[-1])
        self.name, self.thread_series = "cuda:0", "host"

    def mark(self) -> tuple[float, float]:
        return self.now, 0.0

    def launches(self, job: TrainingTask, batch: Any, steps: int) -> VisitSeries:
        return {"launch": (LAUNCH,) * steps}


def kernels(_: AnatomyBench, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
    """A visit of part "anatomy" without its process, which would need a GPU."""
    if cell.batch > MEMORY:
        raise Skipped("no memory in the process of the profiler")
    return {"kernel": (SAMPLE * cell.batch,) * 5}, {"process": -1}


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """A patch for all tests of the module."""
    with pytest.MonkeyPatch.context() as patched:
        yield patched


@pytest.fixture(scope="module", autouse=True)
def _gpu(patch: pytest.MonkeyPatch) -> None:
    gpu = PlayedGpu()

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) > MEMORY:
            raise torch.OutOfMemoryError
        gpu.now += max(LAUNCH, SAMPLE * len(batch))
        out: torch.Tensor = model(batch).square().mean()
        return out

    def make() -> Parts:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return Parts(model, loss, optimizer, lambda n: torch.randn(n, 4))

    class Task(TrainingTask):
        def __init__(self, parts: Parts, precision: str, _: str, compiles: bool = False) -> None:
            super().__init__(parts, precision, "cpu", compiles)

    played = Workload("played", make, (2, 4, 8, 16, 32, 64), 16, "cuda")
    build_benches = module.build_benches

    def short(*arguments: Any) -> Any:
        benches = build_benches(*arguments)
        for bench in benches:
            if hasattr(bench, "span"):
                bench.span = 0.02
        return benches

    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(Workload, "build", lambda each: each.make())  # would seed the GPU
    patch.setattr(training_jobs, "TrainingTask", Task)
    patch.setattr(AnatomyBench, "visit", kernels)
    patch.setattr("simstrag.calibration.measurement_rounds.measure_paces", lambda: {0: 1e-3})
    for name, value in {
        "find_device": lambda _: gpu,
        "load": lambda _: played,
        "choose_precisions": lambda *_: Precisions("fp32", "bf16", False, float("nan")),
        "build_benches": short,
    }.items():
        patch.setattr(module, name, value)
    for where in (module, steps):
        patch.setattr(where, "available_precisions", lambda _: PRECISIONS)
    device = {"kind": "cuda", "model": "played", "gpus": 1}
    for where in (module, calibrate):
        patch.setattr(where, "describe_device", lambda _: device)


def calibration(folder: Path, minutes: float | None = 5.0, *batches: int) -> Calibration:
    request = CalibrationRequest(parts=("step",), batches=batches, minutes=minutes)
    return Calibration(request, folder)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """A calibration that has run."""
    found = calibration(tmp_path_factory.mktemp("first"))
    found.run()
    return found


def test_the_smallest_batch_that_fills_the_gpu_is_nominal_and_stays_so(
    first: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 samples take 4 ms, 1.3 times the launching; 8 take 8 ms."""
    profile = Profile.read(first.folder / "profile.json")
    assert profile.workload.batch == 8
    assert "the device bounds a step of batch 8: a step takes 8 ms in fp32, its launching 3 ms" in (
        first.remarks()
    )
    monkeypatch.setattr(module, "filling_batch", lambda *_: 2)
    assert calibration(first.folder).run() == profile


def test_a_batch_of_ones_own_is_nominal_and_a_remark_says_what_bounds_it(tmp_path: Path) -> None:
    own = calibration(tmp_path / "x", 5.0, 2)
    own.run()
    (said,) = (text for text in own.remarks() if "bounds a step of batch 2" in text)
    assert said.startswith("launching bounds a step of batch 2: a step takes 3 ms in fp32")


def test_batches_without_memory_are_skipped_and_every_other_cell_has_three_visits(
    first: Calibration,
) -> None:
    samples = read(first.folder)
    skipped = {visit.cell for visit in samples.visits if visit.skipped}
    assert {cell.batch for cell in skipped} == {32, 64}
    assert len(skipped) == 2 * 2 * len(PRECISIONS)
    counts = Counter(visit.cell for visit in samples.visits if not visit.skipped)
    assert {cell.part for cell in counts} == {"step", "anatomy"}
    assert len(counts) == 2 * 4 * len(PRECISIONS)
    assert min(counts.values()) >= 3


def test_cells_are_left_out_of_short_minutes_before_they_are_visited(tmp_path: Path) -> None:
    whole, short = calibration(tmp_path / "x").forecast(), calibration(tmp_path / "y", 1.5)
    assert not whole.left_out
    assert whole.cells == {"step": 18, "anatomy": 18}
    forecast = short.forecast()
    assert forecast.left_out.startswith("left out for want of minutes: steps in fp64 at batch")
    assert forecast.least <= 90
    short.run()
    timed = {cell for cell in read(tmp_path / "y").cells if cell.part == "step"}
    assert {cell.precision for cell in timed} == {"fp32", "bf16"}
    assert forecast.left_out in short.remarks()


def test_minutes_for_less_than_the_least_cells_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"0\.2 minutes of calibration: 3 rounds of 8 cells take"):
        calibration(tmp_path / "x", 0.2).forecast()


def test_without_minutes_nothing_is_left_out(tmp_path: Path) -> None:
    forecast = calibration(tmp_path / "x", None).forecast()
    assert not forecast.left_out
    assert forecast.most == 600
