"""Profiles of a GPU: which visits count, launching beside the device, and the shipped H200."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_steps
from benchmarks.results import MEASURED as TABLES
from benchmarks.tables import plain
from simstrag.analysis.tables.origins import origins
from simstrag.analysis.tables.profile_tables import tables
from simstrag.analysis.text.profile_text import caution, describe, text
from simstrag.calibration import samples as files
from simstrag.calibration.calibrate import derive
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.counted_visits import describe_instability, number_visits
from simstrag.calibration.fits.device_estimates import DeviceSteps
from simstrag.calibration.fits.law_fits import choose_load_law
from simstrag.calibration.fits.visit_statistics import estimate
from simstrag.calibration.samples import Samples
from simstrag.ddp.policy_support import profile_hints
from simstrag.errors import InputError
from simstrag.profile.batch_laws import times_at
from simstrag.profile.doubtful import WIDE, doubts, factor
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import Quantity
from simstrag.scenario.scenario import DEMO, Scenario
from tests.support.commands import Call

CALIBRATION = Path(__file__).parents[2] / "simstrag" / "calibration"
MEASURED = CALIBRATION / "measurements"
BATCHES = (8, 16, 32, 64)


def profile_of(name: str) -> Profile:
    return Profile.read(CALIBRATION / "profiles" / f"nvidia-h200-{name}.json")


def cell_of(batch: int, precision: str = "tf32") -> MeasurementCell:
    return MeasurementCell("step", precision=precision, batch=batch)


def visit(batch: int, number: int, step: float, began: float, facts: Mapping[str, Any]) -> Visit:
    return Visit(cell_of(batch), number, began, {"seconds": (step,) * 5}, dict(facts))


def steps_of(*visits: Visit) -> DeviceSteps:
    return DeviceSteps(Samples({}, visits), ())


# -- which visits count --------------------------------------------------------------------------


def test_the_visit_that_attached_a_profiler_counts_and_later_ones_of_its_process_do_not() -> None:
    steps = steps_of(
        visit(8, 0, 0.016, 0.0, {"gpu_busy": 0.006, "host_alone": 0.0155, "took": 2.0}),
        visit(8, 1, 0.028, 2.0, {"took": 1.0}),
    )
    (cell,) = steps.cells()
    assert cell.seconds.value == 0.016
    assert cell.seconds.note.endswith("one visit, so no interval")


def test_after_a_profiler_steps_that_the_device_bounds_count() -> None:
    steps = steps_of(
        visit(64, 0, 0.0321, 0.0, {"gpu_busy": 0.031, "host_alone": 0.015, "took": 2.0}),
        visit(64, 1, 0.0322, 2.0, {"took": 1.0}),
        visit(64, 2, 0.0383, 3.0, {"took": 1.0}),
    )
    assert [s.visit.number for s in steps.counted[cell_of(64)]] == [0, 1]
    (cell,) = steps.cells()
    assert cell.device == cell.seconds.model_copy(update={"note": cell.device and cell.device.note})


def test_a_step_whose_launching_took_longer_than_its_kernels_does_not_count_after_a_profiler() -> (
    None
):
    facts = {"gpu_busy": 0.031, "took": 2.0}
    steps = steps_of(
        visit(64, 0, 0.0321, 0.0, facts | {"host_alone": 0.015}),
        visit(64, 1, 0.0322, 2.0, {"launch": 0.04, "host_alone": 0.034, "took": 1.0}),
    )
    assert [s.visit.number for s in steps.counted[cell_of(64)]] == [0]


def test_a_pause_or_a_second_anatomy_of_a_cell_begins_a_process() -> None:
    first = {"gpu_busy": 0.006, "took": 2.0}
    visits = [visit(8, 0, 0.016, 0.0, first), visit(8, 1, 0.016, 3.0, first)]
    assert [(n.process, n.after_profiler) for n in number_visits(visits)] == [(0, 0), (1, 0)]
    later = [visits[0], visit(8, 1, 0.016, 100.0, {"took": 1.0})]
    assert [(n.process, n.after_profiler) for n in number_visits(later)] == [(0, 0), (1, 0)]


def test_kernels_profiled_in_a_process_of_their_own_spoil_no_visit() -> None:
    anatomy = Visit(
        MeasurementCell("anatomy", precision="tf32", batch=8), 0, 9.0,
        {"kernel": (0.006,)}, {"process": 1},
    )  # fmt: skip
    timed = [visit(8, k, 0.016, 20.0 + k, {"process": 0}) for k in range(3)]
    steps = steps_of(anatomy, *timed)
    assert len(steps.counted[cell_of(8)]) == 3
    assert steps.kernels[cell_of(8)].value == 0.006


def test_launching_that_no_visit_tells_is_assumed_to_be_its_upper_limit() -> None:
    steps = steps_of(
        visit(64, 0, 0.0321, 0.0, {"gpu_busy": 0.031, "took": 2.0}),
        visit(8, 0, 0.019, 2.0, {"gpu_busy": 0.006, "host_alone": 0.02, "took": 2.0}),
    )
    launch = steps.launch("tf32")
    assert (launch.value, launch.kind, launch.low) == (0.019, "assumed", None)
    by_batch = {cell.batch: cell.seconds.kind for cell in steps.cells()}
    assert by_batch == {8: "assumed", 64: "measured"}


# -- unstable cells ------------------------------------------------------------------------------


def test_visits_that_fall_into_two_groups_are_unstable_and_named() -> None:
    times = (0.0176, 0.0281, 0.0177, 0.0279, 0.0178)
    found = [visit(8, k, t, 60.0 * k, {}) for k, t in enumerate(times)]
    assert describe_instability(found) == "visits 0, 2, 4 against 1, 3 differ by a factor of 1.6"


def test_scattered_visits_are_rarely_called_unstable() -> None:
    """At the stated level, and only where they differ by a factor of 1.5 at all."""
    rng = np.random.default_rng(1)
    calm = [
        describe_instability(
            [visit(8, k, t, k, {}) for k, t in enumerate(0.02 * np.exp(0.05 * rng.normal(size=6)))]
        )
        for _ in range(200)
    ]
    assert not any(calm)


# -- the law of sharing --------------------------------------------------------------------------


def test_a_second_process_that_costs_nothing_is_the_law_of_time_slices() -> None:
    levels = (0.25, 0.5, 1.0, 2.0)
    found = choose_load_law(
        levels, [estimate([1 + 0.6 * min(u, 1)] * 3) for u in levels], shared=True
    )
    assert found.law == "time_slices"
    assert found.constants["cost"] == pytest.approx(0.6)
    alone = choose_load_law(levels, [estimate([1 + 0.6 * min(u, 1)] * 3) for u in levels])
    assert "time_slices" not in alone.errors


# -- the shipped profiles ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_the_shipped_profile_is_that_of_its_samples_to_the_byte(name: str) -> None:
    shipped = (CALIBRATION / "profiles" / f"nvidia-h200-{name}.json").read_text()
    assert derive(MEASURED / f"nvidia-h200-{name}").text == shipped


def test_a_profile_of_two_files_names_both() -> None:
    assert list(profile_of("resnet50").samples) == ["samples.parquet", "samples-contention.parquet"]


def test_samples_of_two_workloads_make_no_profile() -> None:
    parts = [files.read(MEASURED / f"nvidia-h200-{name}") for name in ("resnet50", "gpt2")]
    with pytest.raises(InputError, match="of workload name resnet50 and of gpt2 make no one"):
        files.join(parts)


def test_steps_that_the_device_bounds_are_those_of_the_raw_samples() -> None:
    cells = {(c.precision, c.batch): c.seconds.value for c in profile_of("resnet50").cells}
    raw = {"fp32": 0.1455, "tf32": 0.0602, "bf16": 0.0552, "fp16": 0.0437}
    for precision, seconds in raw.items():
        assert cells[precision, 128] == pytest.approx(seconds, rel=2e-3)
    kernels = gpu_steps.kernels("nvidia-h200-resnet50")
    rounded = [round(kernels[precision, 128]) for precision in raw]
    assert rounded == [144, 59, 54, 42]


def test_the_tables_are_those_of_the_command() -> None:
    kept = (TABLES / "h200.txt").read_text(encoding="utf-8")
    assert kept == "\n".join(line for table in gpu_steps.tables() for line in plain(table))


def test_the_gain_of_reduced_precision_is_that_of_the_batch() -> None:
    """A launch-bound step gains nothing, a device-bound one what kernels do."""
    known = profile_of("resnet50")
    gains = {batch: times_at(known, batch).amp_ratio for batch in (8, 32, 128)}
    values = {batch: gain.value for batch, gain in gains.items() if gain is not None}
    assert values[8] == pytest.approx(14.5002 / 18.4414, rel=1e-4)
    assert values[32] < 1
    assert values[128] == pytest.approx(60.2174 / 55.2238, rel=1e-4)
    assert all(gain is not None and gain.kind == "fitted" for gain in gains.values())
    assert known.step.amp_ratio is None


def test_a_scenario_at_a_filling_batch_has_the_measured_streams() -> None:
    scenario = Scenario.read(DEMO)
    step = scenario.inputs.step
    assert step.overlaps
    assert (step.host, step.gpu) == (pytest.approx(0.0145, rel=1e-3), pytest.approx(0.06022, 1e-3))
    named = {o.what: o.kind for o in origins(scenario)}
    assert named["launching of a step, full precision"] == "measured"
    assert named["the device's part of a step, full precision"] == "measured"
    assert profile_hints(scenario.inputs.profile).step is not None


def test_a_load_stretches_the_devices_part_by_its_law() -> None:
    trace = Scenario.read(DEMO).inputs.contention
    assert trace is not None
    slowed = sorted({row.value for row in trace.rows if row.kind == "slowdown"})
    cost = 0.644432
    assert slowed == pytest.approx([1 + cost * level for level in (0, 0.25, 0.5, 1)], rel=1e-5)


# -- numbers as they are -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_no_wide_constant_of_the_shipped_profiles_is_without_a_caution(name: str) -> None:
    known = profile_of(name)
    assert known.step.streams is not None
    said = " ".join(describe(known))
    for stream, seconds in zip(("launch", "device"), known.step.streams, strict=True):
        for precision in ("full", "amp"):
            quantity = getattr(seconds, precision)
            if factor(quantity) >= WIDE or quantity.kind == "assumed":
                assert f"step.{stream}.{precision}" in said
    (sentence,) = caution(known)
    assert sentence in said
    assert {str(each.name) for each in doubts(known)}


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_no_table_has_an_interval_of_no_use(name: str) -> None:
    shown = json.dumps([table.rows for table in tables(profile_of(name))], ensure_ascii=False)
    assert "inf" not in shown
    assert "one visit, no interval" in shown


def test_an_interval_of_no_use_is_said_in_words() -> None:
    wide = Quantity(value=2, kind="measured", low=0.007, high=3000)
    assert text(wide) == "2.00 (interval too wide: few visits differ)"


def test_compare_and_its_page_name_the_doubtful_constants_in_force(
    call: Call, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    code, shown, _ = call(
        "compare", str(DEMO), "--policy", "bsp", "--seeds", "1", "--no-sensitivity",
        "--out", str(out), "--verbose",
    )  # fmt: skip
    said = "step.launch.full: an interval that spans a factor of 2.2"
    page = " ".join((out / "report.html").read_text(encoding="utf-8").split())
    terminal = " ".join(shown.split())
    where = [said in terminal, said in page, "responses.copy" in terminal]
    assert (code, where) == (0, [True, True, False])  # of the GPU's responses the first is in force


# -- what a person may get wrong -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": None}, "step: launch needs device: a step takes the longer of the two"),
        ({"host_share": {"value": 0, "kind": "assumed"}},
         "step: give either host_share, or launch and device"),
        ({"launch": {"full": {"value": -0.01, "kind": "measured"}}},
         "step.launch.full: value -0.01 must be greater than 0"),
        ({"device": {"amp": {"value": 0.01, "kind": "measured"}}}, "step.device.full is missing"),
        ({"amp_ratio": {"value": 1.1, "kind": "measured"}},
         "step: amp_ratio follows from launch and device; leave it out"),
    ],
)  # fmt: skip
def test_a_wrong_launch_or_device_gets_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    data = json.loads((CALIBRATION / "profiles/nvidia-h200-resnet50.json").read_text())
    data["step"] = {k: v for k, v in (data["step"] | changes).items() if v is not None}
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        Profile.read(file)
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "\n" not in str(caught.value)


def test_an_anatomy_without_memory_spoils_no_visit() -> None:
    """It attached no profiler, whatever process its facts name."""
    first = visit(32, 0, 0.0176, 0.0, {"process": 0})
    skipped = Visit(MeasurementCell("anatomy", precision="tf32", batch=512), 0, 5.0, skipped="no")
    later = visit(32, 1, 0.0176, 9.0, {"process": 0})
    assert [each.after_profiler for each in number_visits([first, skipped, later])] == [False] * 3


def test_three_visits_that_rise_by_half_are_unstable() -> None:
    rising = [visit(32, k, step, 60.0 * k, {}) for k, step in enumerate((0.0176, 0.0234, 0.0373))]
    assert describe_instability(rising) == "visits 0 to 2 rise with time, by a factor of 2.1"
