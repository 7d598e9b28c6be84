"""Timing steps: what counts as a step, what is left out, and what happens when memory ends."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from simstrag.calibration.benches.anatomy import AnatomyBench, profile_cell  # noqa: E402
from simstrag.calibration.benches.bench import Skipped  # noqa: E402
from simstrag.calibration.benches.measured_device import Cpu, Cuda, busy, find_device  # noqa: E402
from simstrag.calibration.benches.steps import StepBench  # noqa: E402
from simstrag.calibration.benches.training_jobs import FEWEST, Jobs, time_steps  # noqa: E402
from simstrag.calibration.benches.visit_forecast import (  # noqa: E402
    VisitForecast,
    filling_batch,
    probe,
)
from simstrag.calibration.cells import MeasurementCell, VisitSeries  # noqa: E402
from simstrag.errors import InputError  # noqa: E402
from simstrag.processes.affinity import cores  # noqa: E402
from simstrag.workloads import Parts, Precisions, TrainingTask, Workload, load  # noqa: E402
from tests.support.warm_children import warm_children  # noqa: E402

__all__ = ["warm_children"]

CHOSEN = Precisions("fp32", "bf16", stand_in=False, probed_gain=2.0)
NOMINAL = MeasurementCell("step", precision="fp32", batch=4)


def linear(loss: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor] | None = None) -> Parts:
    model = torch.nn.Linear(256, 256, bias=False)

    def mean(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch).square().mean()
        return out

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Parts(model, loss or mean, optimizer, lambda n: torch.randn(n, 256))


TINY = Workload("tiny", linear, (2, 4, 8), 4, "cpu")


def bench(workload: Workload = TINY, chosen: Precisions = CHOSEN) -> StepBench:
    return StepBench(Jobs(workload, find_device("cpu")), chosen, span=0.02)


def test_there_is_a_cell_for_every_precision_and_batch() -> None:
    cells = bench().cells
    assert len(set(cells)) == len(cells) == 4 * 3
    assert {cell.precision for cell in cells} == {"fp32", "bf16", "fp64", "fp32_of_fp64"}


@pytest.mark.parametrize(("gain", "batches"), [(0.3, {4}), (0.8, {2, 4, 8})])
def test_an_absurdly_slow_bf16_is_timed_at_the_nominal_batch_only(
    gain: float, batches: set[int]
) -> None:
    cells = bench(chosen=Precisions("fp64", "fp32_of_fp64", True, gain)).cells
    assert {cell.batch for cell in cells if cell.precision == "bf16"} == batches


def test_a_visit_keeps_every_step_with_its_cpu_time_and_update() -> None:
    with bench() as found:
        for cell in found.cells:
            samples, _ = found.visit(cell)
            assert set(samples) == {"seconds", "cpu", "update"}
            assert {len(series) for series in samples.values()} == {len(samples["seconds"])}
            assert len(samples["seconds"]) >= FEWEST
            assert min(samples["seconds"]) > 0


def test_a_visit_leaves_threads_and_cores_as_they_were() -> None:
    before = cores(), torch.get_num_threads()
    seen = []

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        seen.append((cores(), torch.get_num_threads()))
        out: torch.Tensor = model(batch).square().mean()
        return out

    bench(replace(TINY, make=lambda: linear(loss))).visit(NOMINAL)
    assert set(map(str, seen)) == {str(([before[0][-1]], 1))}
    assert (cores(), torch.get_num_threads()) == before


def test_places_within_places_are_left_one_by_one() -> None:
    before, place = (cores(), torch.get_num_threads()), find_device("cpu")
    with place.on_core():
        with place.on_core():
            pass
        assert (cores(), torch.get_num_threads()) == ([place.core], 1)
    assert (cores(), torch.get_num_threads()) == before


class Counted(Cpu):
    """A CPU whose clock is advanced by what is computed: 1 for a gradient, 100 for an update."""

    now = 0.0

    def mark(self) -> tuple[float, float]:
        return self.now, 0.0

    def thread(self) -> float:
        return self.now / 2


def test_a_step_is_the_gradient_alone_and_warm_up_does_not_count() -> None:
    clock = Counted(cores()[-1])
    job = TrainingTask(linear())
    calls: list[str] = []

    def gradient(batch: object) -> None:
        calls.append("gradient")
        clock.now += 1 if len(calls) > 6 else 1000

    def update() -> None:
        calls.append("update")
        clock.now += 100

    job.gradient, job.update = gradient, update  # type: ignore[method-assign, assignment]
    samples = time_steps(job, [None, None], clock, 0.0, warm_up=3)
    assert samples == {
        "seconds": (1.0,) * FEWEST, "cpu": (0.5,) * FEWEST, "update": (100.0,) * FEWEST
    }  # fmt: skip
    assert calls == ["gradient", "update"] * (FEWEST + 3)


def test_what_a_step_is_made_of_is_told_once_and_peak_memory_adds_up() -> None:
    with bench() as found:
        _, facts = found.visit(NOMINAL)
        _, later = found.visit(NOMINAL)
    assert "host_share" not in later
    assert 0 <= facts["host_share"] < 1
    weights, activations = 256 * 256 * 4, 4 * 256 * 4
    assert 3 * weights < facts["peak_bytes"] < 3 * weights + 10 * activations  # and momentum


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
    ],
)
def test_a_batch_without_memory_is_skipped_and_the_others_go_on(error: Exception) -> None:
    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) == 8:
            raise error
        out: torch.Tensor = model(batch).square().mean()
        return out

    found = bench(replace(TINY, make=lambda: linear(loss)))
    with pytest.raises(Skipped, match="fp32 at batch 8 needs more than the memory there is"):
        found.visit(MeasurementCell("step", precision="fp32", batch=8))
    assert found.visit(NOMINAL)[0]["seconds"]


def test_batches_above_one_without_memory_are_not_tried_in_its_precision() -> None:
    tried = []

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        tried.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError
        out: torch.Tensor = model(batch).square().mean()
        return out

    found = bench(replace(TINY, make=lambda: linear(loss)))
    for batch in (4, 8):
        with pytest.raises(Skipped, match="fp32 at batch 4 needs more than the memory there is"):
            found.visit(MeasurementCell("step", precision="fp32", batch=batch))
    assert tried == [4]
    with pytest.raises(Skipped, match="bf16 at batch 8"):
        found.visit(MeasurementCell("step", precision="bf16", batch=8))


def test_torchs_own_refusal_of_memory_is_understood() -> None:
    parts = linear()._replace(make_batch=lambda n: torch.empty(1 << 50))
    with pytest.raises(Skipped, match="needs more than the memory"):
        bench(replace(TINY, make=lambda: parts)).visit(NOMINAL)


def test_a_users_batch_that_raises_is_skipped_by_its_name() -> None:
    def make_batch(samples: int) -> torch.Tensor:
        if samples > 2:
            raise IndexError("only 2 samples left")
        return torch.randn(samples, 256)

    own = replace(TINY, name="m:f", user_defined=True, make=lambda: tuple(linear()._replace(
        make_batch=make_batch)))  # fmt: skip
    with pytest.raises(Skipped, match="'m:f': a step of batch 4 raised IndexError: only 2 samp"):
        bench(own).visit(NOMINAL)


def test_a_mistake_of_ours_is_not_skipped() -> None:
    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        bench(replace(TINY, make=lambda: linear(loss))).visit(NOMINAL)


def test_the_plan_knows_what_a_visit_took() -> None:
    found = bench()
    assert found.seconds(NOMINAL) == pytest.approx(0.03)
    found.visit(NOMINAL)
    assert found.seconds(NOMINAL) >= 0.02


def test_precisions_of_one_number_format_share_a_model() -> None:
    jobs = Jobs(TINY, find_device("cpu"))
    assert jobs.of("fp32").model is jobs.of("bf16").model
    assert jobs.of("fp64").model is not jobs.of("fp32").model


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="there is no device 'cuda:1' here; torch sees cpu"):
        find_device("cuda:1")
    assert find_device().name == "cpu"


def test_a_profiler_that_sees_no_kernel_does_not_say_that_the_gpu_was_idle() -> None:
    assert busy([[(0.0, 2.0), (1.0, 3.0)], [(5.0, 6.0)]]) == {"kernel": (3.0, 1.0)}
    assert busy([[], []]) == {}


def test_clocks_are_read_as_far_as_nvidia_smi_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid = "0000"

    def answer(text: str) -> Callable[..., subprocess.CompletedProcess[str]]:
        return lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=text)

    gpu = Cuda("cuda:0", cores()[-1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    monkeypatch.setattr(subprocess, "run", answer("1980, 3201, 41, [N/A]\n"))
    assert gpu.state() == {"clock": 1980.0, "memory_clock": 3201.0, "temperature": 41.0}
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    assert gpu.state() == {}


class Traced(Cpu):
    """A device with kernels and a launching thread, which notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__(cores()[-1])
        self.asked: list[str] = []

    def launches(
        self, job: TrainingTask, batch: object, steps: int
    ) -> dict[str, tuple[float, ...]]:
        self.asked.append("launches")
        return {"launch": (0.01,) * steps}

    def kernels(self, job: TrainingTask, batch: object, steps: int) -> VisitSeries:
        self.asked.append("kernels")
        return {"kernel": (0.02,) * steps}


def test_timed_visits_ask_for_no_profile_of_kernels() -> None:
    device = Traced()
    found = StepBench(Jobs(TINY, device), CHOSEN, span=0.02)
    samples, _ = found.visit(NOMINAL)
    assert samples["launch"] == (0.01,) * FEWEST
    assert device.asked == ["launches"]


def test_the_anatomy_of_a_step_has_the_seconds_of_its_kernels() -> None:
    device = Traced()
    samples, reason = profile_cell(Jobs(TINY, device), ("fp32", 4))
    assert (samples, reason) == ({"kernel": (0.02,) * FEWEST}, "")


def test_anatomy_is_taken_in_a_process_of_its_own() -> None:
    """Without a GPU its process says that it saw no kernel."""
    jobs = Jobs(load("mlp").with_batches((8,)), find_device("cpu"))
    forecast = VisitForecast(8, {"fp32": 0.01}, launch=0.0, draw=0.0)
    bench = AnatomyBench(jobs, [MeasurementCell("step", precision="fp32", batch=8)], forecast)
    assert [str(cell) for cell in bench.cells] == ["anatomy fp32 batch 8"]
    with bench, pytest.raises(Skipped, match="the profiler saw no kernel"):
        bench.visit(bench.cells[0])


class Launching(Traced):
    """A GPU whose steps take a millisecond a sample, and launching 3 ms."""

    now = 0.0

    def mark(self) -> tuple[float, float]:
        return self.now, 0.0

    def launches(self, job: TrainingTask, batch: object, steps: int) -> VisitSeries:
        return {"launch": (0.003,) * steps}


def launching(memory: int = 8) -> Jobs:
    """Jobs of `TINY`, whose batches above `memory` find no room."""
    device = Launching()

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) > memory:
            raise torch.OutOfMemoryError
        device.now += 0.001 * len(batch)
        out: torch.Tensor = model(batch).square().mean()
        return out

    return Jobs(replace(TINY, batches=(2, 4, 5, 8), make=lambda: linear(loss)), device)


@pytest.mark.parametrize(("memory", "batch"), [(8, 5), (4, 4)])
def test_the_nominal_batch_of_a_gpu_takes_half_as_long_again_as_its_launching(
    memory: int, batch: int
) -> None:
    """4.5 ms: of the batches 2, 4, 5 and 8 the third, or the largest that memory takes."""
    assert filling_batch(launching(memory), "fp32") == batch


def test_a_forecast_knows_what_steps_take_in_each_precision() -> None:
    forecast = probe(launching(), ("fp32", "bf16"))
    assert forecast.steps == pytest.approx({"fp32": 0.004, "bf16": 0.004})
    assert (forecast.batch, forecast.launch) == (4, 0.003)


def test_a_forecast_without_memory_for_any_step_is_an_error() -> None:
    with pytest.raises(InputError, match="fp32 at batch 4 needs more than the memory there is"):
        probe(launching(memory=2), ("fp32",))
