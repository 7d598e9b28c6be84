"""Power as `calibrate` measures it: counters, the bench, the profile, and what uses it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simstrag.advice.power import power_point
from simstrag.calibration.assemble import measured_power
from simstrag.calibration.benches import energy_counters, power
from simstrag.calibration.benches.energy_counters import Nvml, Rapl, mean_watts
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.samples import Samples
from simstrag.errors import InputError
from simstrag.profile.profile import MeasuredWorkload, PowerDraw
from simstrag.scenario.scenario import Scenario
from tests.support.full_profile import full_profile, quantity

MOST = 262_143_328_850


def package(root: Path, number: int, microjoules: int, name: str = "package") -> Path:
    """A domain of the kernel's powercap folder; returns the file of its counter."""
    domain = root / f"intel-rapl:{number}"
    domain.mkdir(parents=True, exist_ok=True)
    (domain / "name").write_text(f"{name}-{number}\n")
    (domain / "max_energy_range_uj").write_text(f"{MOST}\n")
    (domain / "energy_uj").write_text(f"{microjoules}\n")
    return domain / "energy_uj"


def test_the_energy_of_all_packages_adds_up_and_that_of_their_parts_does_not_count(
    tmp_path: Path,
) -> None:
    files = [package(tmp_path, k, 1_000_000) for k in range(2)]
    part = package(tmp_path, 2, 0, name="core")
    counter = Rapl(tmp_path)
    for file in (*files, part):
        file.write_text("3000000")
    assert counter.joules() == pytest.approx(4.0)


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    file = package(tmp_path, 0, MOST - 1_000_000)
    counter = Rapl(tmp_path)
    file.write_text("500000")
    assert counter.joules() == pytest.approx(1.5)
    file.write_text("700000")
    assert counter.joules() == pytest.approx(1.7)


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no energy counter of its processors"):
        Rapl(tmp_path)


def test_a_counter_that_only_root_may_read_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, 0, 1)
    read = Path.read_text

    def forbidden(path: Path, *more: Any, **options: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError
        return read(path, *more, **options)

    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(InputError, match="may not be read: `sudo chmod a"):
        Rapl(tmp_path)


class StubError(Exception):
    """An error of a stub of NVML."""


def stub_nvml(monkeypatch: pytest.MonkeyPatch, *readings: int, fails: str = "") -> None:
    """A module that counts these millijoules."""
    left = iter(readings)

    def energy(handle: str) -> int:
        if fails:
            raise StubError(fails)
        assert handle == "handle of GPU-a1"
        return next(left)

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(
        nvmlInit=lambda: None, NVMLError=StubError,
        nvmlDeviceGetHandleByUUID=lambda uuid: f"handle of {uuid}",
        nvmlDeviceGetTotalEnergyConsumption=energy,
    ))  # fmt: skip


def test_the_energy_of_a_gpu_is_counted_from_the_first_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub_nvml(monkeypatch, 5000, 7500)
    assert Nvml("a1").joules() == pytest.approx(2.5)


def test_a_gpu_whose_energy_is_not_told_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_nvml(monkeypatch, fails="Not Supported")
    with pytest.raises(InputError, match="NVML does not tell the energy of this GPU: Not Supp"):
        Nvml("a1")


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(InputError, match="pip install 'simstrag"):
        Nvml("a1")


class Steady:
    """A counter of a device of constant power that is refreshed every third look; its own clock."""

    source = "NVML"

    def __init__(self, watts: float) -> None:
        self.watts, self.now, self._looks = watts, 0.0, 0
        self._shown = 0.0

    def joules(self) -> float:
        self._looks += 1
        if self._looks % 3 == 0:
            self._shown = self.watts * self.now
        return self._shown

    def work(self) -> None:
        self.now += 0.01


def test_watts_are_between_refreshes_of_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    counter: Any = Steady(250.0)
    monkeypatch.setattr(energy_counters.time, "perf_counter", lambda: counter.now)
    assert mean_watts(counter, counter.work, 1.0) == pytest.approx(250.0)


def test_a_bench_without_a_counter_has_no_cells_and_says_why() -> None:
    def refuse() -> None:
        raise InputError("no counter")

    jobs: Any = SimpleNamespace(device=SimpleNamespace(energy_counter=refuse))
    bench = power.PowerBench(jobs, None)  # type: ignore[arg-type]
    assert (list(bench.cells), bench.why_not) == ([], "no counter")


WORKLOAD = MeasuredWorkload(
    name="mlp", parameters=9, batch=8, full="fp32", amp="bf16", stand_in=False
)


def visits(watts: dict[str, float], source: str = "NVML") -> Samples:
    """Three visits to each cell; watts by precision, "" without work."""
    cells = {p: MeasurementCell("power", precision=p, batch=8 if p else 0) for p in watts}
    return Samples({}, tuple(
        Visit(cells[p], n, 0.0, {"watts": (watts[p] + n - 1,)}, {"source": source})
        for p, n in itertools.product(watts, range(3))
    ))  # fmt: skip


def test_the_profile_has_the_median_over_visits_as_measured() -> None:
    found = measured_power(visits({"": 60.0, "fp32": 300.0, "bf16": 280.0}), WORKLOAD)
    assert found.source == "NVML"
    for quantity_, watts in ((found.idle, 60), (found.busy, 300), (found.busy_amp, 280)):
        assert (quantity_.value, quantity_.kind) == (watts, "measured")


def test_a_profile_without_power_has_none() -> None:
    assert measured_power(Samples({}, ()), WORKLOAD) is None


def scenario(tmp_path: Path, source: str, **cost: float) -> Scenario:
    draw = {"source": source, "idle": quantity(60), "busy": quantity(300)}
    (tmp_path / "p.json").write_text(full_profile(power=PowerDraw.model_validate(draw)).text)
    profile = str(tmp_path / "p.json")
    return Scenario(workers=2, updates=1, profile=profile, learner={"batch": 8}, cost=cost)


def test_what_a_gpu_was_measured_to_draw_is_used_where_the_scenario_states_nothing(
    tmp_path: Path,
) -> None:
    assert scenario(tmp_path, "NVML").watts == (300, 60)
    assert scenario(tmp_path, "NVML", watts=200.0, idle_watts=50.0).watts == (200, 50)
    assert scenario(tmp_path, "RAPL").watts == (None, None)


def test_a_waiting_gpu_draws_the_measured_idle_watts(tmp_path: Path) -> None:
    point = power_point(scenario(tmp_path, "NVML"), "bsp", 250.0, 10.0, 3600.0, 3600.0, 250.0)
    assert point.kwh == pytest.approx((250 + 60) / 1000)
