"""Cells that are left out where minutes are short, and how long visits on a GPU take."""

from __future__ import annotations

from pathlib import Path

import pytest

from simstrag.calibration import samples as files
from simstrag.calibration.benches.training_jobs import FEWEST
from simstrag.calibration.benches.visit_forecast import (
    NEW_JOB,
    NEW_PROCESS,
    PREPARE,
    PROFILE,
    VisitForecast,
)
from simstrag.calibration.cell_choice import SLACK, describe, leave_out, order, starting, total
from simstrag.calibration.cells import MeasurementCell, Part

MEASUREMENTS = Path(__file__).parents[2] / "simstrag" / "calibration" / "measurements"
PAIR = ("tf32", "bf16")
VISIT = (2.0, 1.0)
"""Seconds of a first visit, and of a later one."""


def steps(*precisions: str, part: Part = "step") -> list[MeasurementCell]:
    return [
        MeasurementCell(part, precision=precision, batch=batch)
        for precision in precisions for batch in (8, 32, 128, 512)
    ]  # fmt: skip


def loads(*kinds: str) -> list[MeasurementCell]:
    return [
        MeasurementCell("contention", precision="tf32", batch=128, load=kind, level=level)
        for kind in kinds for level in (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
    ]  # fmt: skip


def kept(cells: list[MeasurementCell], limit: float) -> list[str]:
    seconds = dict.fromkeys(cells, VISIT)
    left = leave_out(seconds, limit, 3, order(cells, PAIR, 128))
    return [str(cell) for cell in cells if cell not in left]


def test_nothing_is_left_out_where_minutes_suffice() -> None:
    cells = [*steps(*PAIR, "fp32"), *loads("gemm", "cpu")]
    seconds = dict.fromkeys(cells, VISIT)
    groups = order(cells, PAIR, 128)
    limit = SLACK * (total(seconds, 3) + starting(cells))
    assert leave_out(seconds, limit, 3, groups) == []
    assert starting(cells) == 3 * NEW_JOB + NEW_PROCESS
    assert total(seconds, 3) == 24 * 4.0


def test_other_precisions_go_before_batches_of_the_pair_and_nominal_ones_stay() -> None:
    cells = steps(*PAIR, "fp32")
    assert kept(cells, 40.0) == [str(cell) for cell in steps(*PAIR)]
    least = ["step tf32 batch 8", "step tf32 batch 128", "step bf16 batch 8", "step bf16 batch 128"]
    assert kept(cells, 1.0) == least


def test_the_anatomy_of_a_step_goes_with_it() -> None:
    cells = [*steps("tf32"), *steps("tf32", part="anatomy")]
    left = [f"{part} tf32 batch {batch}" for part in ("step", "anatomy") for batch in (8, 128)]
    assert kept(cells, 1.0) == left


def test_loads_on_the_host_go_before_levels_of_loads_on_the_device() -> None:
    levels = [cell.level for cell in loads("gemm") if str(cell) in kept(loads("gemm", "cpu"), 1.0)]
    assert levels == [0.25, 0.5, 1.0]
    assert describe(cell for cell in loads("cpu") if cell.level < 0.6) == (
        "left out for want of minutes: load cpu at level 0.25, 0.5"
    )


def test_all_reduces_of_two_and_four_ranks_are_the_last_to_go() -> None:
    cells = [
        MeasurementCell("allreduce", backend="gloo", ranks=ranks, bytes=1 << size, group=group)
        for ranks in (2, 3, 4, 8) for size in (10, 20, 24, 28) for group in ("all", "half")
    ]  # fmt: skip
    left = [
        (c.ranks, c.bytes.bit_length() - 1, c.group) for c in cells if str(c) in kept(cells, 1.0)
    ]
    assert left == [(ranks, size, "all") for ranks in (2, 4) for size in (10, 24)]


@pytest.mark.parametrize(("name", "draw"), [("resnet50", 0.0018), ("gpt2", 0.0002)])
def test_visits_on_an_h200_take_what_was_forecast(name: str, draw: float) -> None:
    """Of its own nominal steps alone, within a quarter.

    draw: seconds of drawing a sample, of later visits to batch 128 less those to batch 8.
    """
    paths = sorted((MEASUREMENTS / f"nvidia-h200-{name}").glob("*.parquet"))
    assert paths
    for path in paths:
        samples = files.read(path)
        nominal = samples.header["workload"]["nominal_batch"]
        first = [v for v in samples.visits if "gpu_busy" in v.facts]
        timed = {v.cell.precision: v.median() for v in first[::-1] if v.cell.batch == nominal}
        launch = min(v.facts["host_alone"] for v in first)
        forecast, expected, known = VisitForecast(nominal, timed, launch, draw), 0.0, set[str]()
        if "contention" in {cell.part for cell in samples.cells}:
            expected += NEW_PROCESS
        began = -1e9
        for visit in samples.visits:
            known = known if visit.began < began + 100 else set()  # another process went on
            cell, began = visit.cell, visit.began
            if cell.part == "power":
                expected += forecast.power(cell, 1.0)
            elif cell.part == "contention":
                expected += forecast.contention(cell, 0.4)
            elif "gpu_busy" in visit.facts:  # the profiler was part of the visit
                expected += forecast.first(cell, 0.4) + PROFILE
            else:  # launching was timed in first visits only
                expected += forecast.visit(cell, 0.4) - FEWEST * forecast.step(cell)
            if cell.precision and cell.precision not in known:
                expected += NEW_JOB
                known.add(cell.precision)
        took = sum(visit.facts["took"] for visit in samples.visits)
        assert expected == pytest.approx(took, rel=0.25), path


def test_a_visit_takes_its_steps_and_what_comes_beside_them() -> None:
    forecast = VisitForecast(64, {"tf32": 0.1}, launch=0.02, draw=0.001)
    cell = MeasurementCell("step", precision="tf32", batch=64)
    assert forecast.visit(cell, span=0.4) == pytest.approx(PREPARE + 0.128 + 8 * 0.1 + 0.5)
    assert forecast.step(MeasurementCell("step", precision="tf32", batch=1)) == 0.02
