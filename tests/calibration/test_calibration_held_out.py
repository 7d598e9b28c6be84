"""What no fit sees: chosen by rule alone, and told with its errors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simstrag.calibration.cells import MeasurementCell
from simstrag.calibration.fits.held_out import (
    LARGE,
    THRESHOLDS,
    CellPrediction,
    choose_held_out,
    summarize_errors,
)
from simstrag.profile.quantity import Quantity


def steps(batches: Sequence[int], precision: str = "fp32") -> list[MeasurementCell]:
    return [MeasurementCell("step", precision=precision, batch=b) for b in batches]


def beside(
    levels: Sequence[float], load: str = "cpu", precision: str = "fp32"
) -> list[MeasurementCell]:
    return [
        MeasurementCell("contention", precision=precision, batch=8, load=load, level=u)
        for u in levels
    ]


def reduced(sizes: Sequence[int], ranks: int = 2, **more: object) -> list[MeasurementCell]:
    return [
        MeasurementCell("allreduce", backend="gloo", ranks=ranks, bytes=size, group="all", **more)  # type: ignore[arg-type]
        for size in sizes
    ]


@pytest.mark.parametrize(
    ("batches", "left_out"),
    [
        ((1, 2, 4, 8, 16, 32), [2, 8, 32]),
        ((1, 2, 4, 8, 16), [4, 16]),
        ((1, 2, 4, 8), [2, 8]),
        ((1, 2, 4), [4]),
        ((1, 2), []),
        ((8,), []),
    ],
)
def test_the_largest_batch_is_left_out_and_every_second_inner_one(
    batches: tuple[int, ...], left_out: list[int]
) -> None:
    assert [cell.batch for cell in choose_held_out(steps(batches))] == left_out


@pytest.mark.parametrize(
    ("levels", "left_out"),
    [
        ((0.25, 0.5, 0.75, 1, 2, 3), [0.75, 3]),
        ((0.25, 0.5, 0.75, 1), [0.5, 1]),
        ((0.25, 0.5, 1), [1]),
        ((0.5, 1), [1]),
        ((1,), []),
    ],
)
def test_the_highest_level_is_left_out_and_one_inner_one(
    levels: tuple[float, ...], left_out: list[float]
) -> None:
    assert [cell.level for cell in choose_held_out(beside(levels))] == left_out


def test_every_precision_and_load_has_its_own() -> None:
    cells = [
        *steps((1, 2, 4)), *steps((1, 2, 4), "bf16"), *beside((1, 2)), *beside((1, 2), "memory"),
        *beside((1, 2), precision="bf16"),
    ]  # fmt: skip
    assert [str(cell) for cell in choose_held_out(cells)] == [
        "step fp32 batch 4", "step bf16 batch 4", "contention fp32 batch 8 beside cpu 2",
        "contention fp32 batch 8 beside memory 2", "contention bf16 batch 8 beside cpu 2",
    ]  # fmt: skip


def test_every_second_large_size_is_left_out_of_all_reduces_alone() -> None:
    sizes = [1 << 10, LARGE - 1, LARGE, 2 * LARGE, 4 * LARGE, 8 * LARGE]
    alone = [*reduced(sizes), *reduced(sizes, ranks=4)]
    assert [cell.bytes for cell in choose_held_out(alone)] == 2 * [2 * LARGE, 8 * LARGE]
    loaded = [cell for u in (0.5, 1.0) for cell in reduced(sizes, load="net", level=u)]
    assert {(cell.level) for cell in choose_held_out(loaded)} == {1.0}


def test_the_order_in_which_cells_come_does_not_matter() -> None:
    cells = [*steps((1, 2, 4, 8, 16)), *beside((0.25, 0.5, 1, 2))]
    assert set(choose_held_out(cells[::-1])) == set(choose_held_out(cells))


def test_an_account_has_the_median_and_the_worst_of_the_absolute_errors() -> None:
    found = [
        CellPrediction(cell, Quantity(value=0.1, kind="measured"), 0.1 * (1 + error))
        for cell, error in zip(steps((1, 2, 4)), (0.02, -0.06, 0.01), strict=True)
    ]
    told = summarize_errors("step", found, "so")
    assert (told.median, told.worst, told.threshold) == (0.02, 0.06, THRESHOLDS["step"])
    assert [cell.error for cell in told.cells] == [0.02, -0.06, 0.01]
    assert summarize_errors("step", [], "so") is None
