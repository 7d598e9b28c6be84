"""Two profiles beside each other: what agrees within its errors, what differs, what is missing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from simstrag.calibration.check import CheckResult
from simstrag.calibration.compare import ComparedNumber, ProfileNumber, compare, numbers_of
from simstrag.calibration.fits.visit_statistics import estimate, measured_quantity
from simstrag.cli.calibrate_show import compare as command
from simstrag.cli.output import AnswerCommand
from simstrag.errors import InputError
from simstrag.profile.profile import Profile
from tests.support.full_profile import full_profile, quantity, without

ONE = {"precision": "fp32", "batch": 8}


def of_one_cell(median: dict[str, Any], **changes: Any) -> Profile:
    given = {"name": "one", "date": "2026-01-31", "command": "", "device": {}, "software": {}}
    cells = [{**ONE, "seconds": median, "mean": median}]
    return Profile.model_validate({**given, "cells": cells, **changes})


def interval(value: float, low: float, high: float, kind: str = "measured") -> dict[str, Any]:
    return {"value": value, "kind": kind, "low": low, "high": high}


def call(*arguments: str) -> Any:
    app = typer.Typer()
    app.command(cls=AnswerCommand)(command)
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def test_numbers_agree_up_to_1_96_standard_errors_of_their_difference() -> None:
    a = of_one_cell(interval(10.0, 7.0, 13.0))  # half-widths 3 and 4: together 5
    for value, agrees in ((14.99, True), (15.01, False), (5.01, True), (4.99, False)):
        (pair,) = compare(a, of_one_cell(interval(value, value - 4, value + 4))).pairs
        assert pair.agrees is agrees
        assert pair.errors == pytest.approx(1.96 * (value - 10) / 5)
        assert pair.ratio == pytest.approx(value / 10)


def test_numbers_without_error_agree_only_where_they_are_equal() -> None:
    a, b = of_one_cell(interval(1.0, 1.0, 1.0)), of_one_cell(interval(1.5, 1.5, 1.5))
    assert compare(a, a).pairs[0].agrees is True
    (pair,) = compare(a, b).pairs
    assert (pair.agrees, pair.errors) == (False, math.inf)


@pytest.mark.parametrize(
    "other", [{"value": 1.0, "kind": "measured"}, interval(1.0, 0.9, 1.1, "assumed")]
)
def test_what_has_no_measured_interval_is_listed_and_not_judged(other: dict[str, Any]) -> None:
    found = compare(of_one_cell(quantity(1.0)), of_one_cell(other))
    assert [pair.agrees for pair in found.pairs] == [None]
    assert math.isnan(found.agreeing)
    assert math.isnan(found.half_width)
    assert "No cell was measured with an interval in both" in found.text
    assert "without a verdict: 1" in found.text


def test_every_part_of_a_profile_is_compared() -> None:
    found = compare(full_profile(0), full_profile(1))
    parts = {
        "step", "contention", "allreduce", "server", "overlap", "lockstep", "gradient", "amp",
        "constant",
    }  # fmt: skip
    assert set(found.cells["part"]) == parts
    a = full_profile(0)
    cells = len(a.cells) + sum(len(r.levels) for r in a.responses) + len(a.collectives)
    cells += 3 * len(a.transfers) + len(a.overlaps) + len(a.learning) + len(a.amp_ratios)
    cells += len(a.locksteps) + sum(
        (each.slowdown is not None) + (each.interference is not None) for each in a.locksteps
    )
    assert len(found.judged) == cells
    assert not found.cells.duplicated(["cell", "number"]).any()
    assert (found.only_a, found.only_b, found.differences) == ((), (), ())


def test_a_calibration_repeated_with_the_errors_it_states_agrees_in_19_of_20_cells() -> None:
    of_noise = ("step", "contention", "allreduce", "server")
    judged = [
        pair.agrees
        for seed in range(20)
        for pair in compare(full_profile(2 * seed), full_profile(2 * seed + 1)).judged
        if pair.number.part in of_noise
    ]
    assert len(judged) > 1000
    assert sum(map(bool, judged)) / len(judged) == pytest.approx(0.95, abs=0.02)


def test_of_four_visits_about_94_in_100_numbers_agree_by_their_standard_errors() -> None:
    """By half of their intervals, which are Student's, 99 would."""
    rng = np.random.default_rng(6)
    pairs = []
    for _ in range(1500):
        a, b = (
            measured_quantity(estimate(np.exp(0.02 * rng.normal(size=4))), "") for _ in range(2)
        )
        pairs.append(ComparedNumber(ProfileNumber("step", "", "", "s"), a, b))
    assert np.mean([pair.agrees for pair in pairs]) == pytest.approx(0.942, abs=0.015)
    wide = [
        ComparedNumber(p.number, *(q.model_copy(update={"error": None}) for q in (p.a, p.b)))
        for p in pairs
    ]
    assert np.mean([pair.agrees for pair in wide]) > 0.98


def test_a_stated_standard_error_counts_and_not_the_interval() -> None:
    a = of_one_cell({**interval(10.0, 4.0, 16.0), "error": 1.0})
    for value, agrees in ((12.7, True), (12.8, False)):
        b = of_one_cell({**interval(value, 0.0, 30.0), "error": 1.0})
        assert compare(a, b).pairs[0].agrees is agrees


def test_noise_scales_and_slowdowns_of_two_batches_are_kept_apart() -> None:
    a = full_profile()
    at, beside = (getattr(a, part)[0].model_dump(mode="json") for part in ("learning", "responses"))
    both = without(
        a,
        learning=[{**at, "batch": batch} for batch in (8, 32)],
        responses=[{**beside, "batch": batch} for batch in (8, 32)],
    )
    found = compare(both, both)
    assert len({pair.number.key for pair in found.pairs}) == len(found.pairs)
    names = {pair.number.cell for pair in found.pairs}
    assert {"contention fp32 batch 32 beside cpu 0.25", "gradient batch 32"} <= names


def test_all_reduces_beside_a_load_are_named_by_their_size() -> None:
    a = full_profile()
    beside = a.responses[0].model_dump(mode="json") | {
        "precision": "", "resource": "net", "load": "net", "batch": None, "ranks": 2, "bytes": 1024,
    }  # fmt: skip
    (number, _), *_ = numbers_of(without(a, "cells", responses=[beside]))
    assert number == (
        "contention",
        "allreduce 2 ranks 1024 B beside net 0.25",
        "slowdown of net",
        "",
    )


def test_a_check_says_how_narrowly_it_knows_what_it_measured_again() -> None:
    sides = compare(of_one_cell(quantity(10.0, 0.01)), of_one_cell(quantity(10.1, 0.04)))
    assert "median half-width of their new intervals is 4.0%" in CheckResult(sides).text
    off = compare(of_one_cell(quantity(10.0, 0.01)), of_one_cell(quantity(12.0, 0.04)))
    assert "median half-width of their new intervals is 4.0%" in CheckResult(off).text


def test_errors_that_are_stated_too_small_show_as_disagreement() -> None:
    a, b = full_profile(0, noise=0.0), full_profile(1, noise=0.05)
    narrow = b.model_dump(mode="json")
    for cell in narrow["cells"]:
        reach = 0.001 * cell["seconds"]["value"]
        cell["seconds"] |= interval(
            cell["seconds"]["value"], cell["seconds"]["value"] - reach,
            cell["seconds"]["value"] + reach,
        )  # fmt: skip
    (steps,) = [p for p in compare(a, Profile.model_validate(narrow)).parts if p["part"] == "step"]
    assert steps["agreeing"] < 0.9


def test_the_half_width_is_the_median_over_both_profiles_relative_to_their_values() -> None:
    found = compare(of_one_cell(quantity(10.0, 0.02)), of_one_cell(quantity(20.0, 0.04)))
    assert found.half_width == pytest.approx(0.03)


def test_cells_that_one_profile_alone_has_are_named() -> None:
    a = full_profile()
    b = without(a, "transfers", "server")
    found = compare(a, b)
    assert found.only_b == ()
    assert found.only_a == (
        "server 1048576 B", "server 4194304 B", "server 16777216 B", "server 67108864 B",
        "server.service", "server.push", "server.pull",
    )  # fmt: skip


def test_different_devices_are_said_before_any_number() -> None:
    a = full_profile()
    device = {**a.device, "model": "Another Processor"}
    found = compare(a, without(a, device=device))
    assert not found.same_device
    assert found.text.index("devices differ") < found.text.index("agree within")
    assert [str(change) for change in found.differences] == [
        "device model: A Processor against Another Processor"
    ]


def test_a_clock_that_ran_otherwise_makes_no_other_device() -> None:
    a = full_profile()
    found = compare(a, without(a, device={**a.device, "clock_mhz": 1980}))
    assert found.same_device
    assert [str(change) for change in found.differences] == [
        "device clock_mhz: not stated against 1980"
    ]


def test_changes_of_software_workload_and_precisions_are_listed() -> None:
    a = full_profile()
    assert a.workload is not None
    b = without(
        a,
        software={**a.software, "torch": "2.14"},
        workload={**a.workload.model_dump(), "batch": 16},
        cells=[c.model_dump(mode="json") for c in a.cells if c.precision == "fp32"],
    )
    assert [str(change) for change in compare(a, b).differences] == [
        "software torch: 2.13.0+cpu against 2.14",
        "workload batch: 8 against 16",
        "precisions timed: bf16, fp32 against fp32",
    ]


def test_the_command_says_in_words_and_tables_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for name, seed in (("a.json", 0), ("b.json", 1)):
        (tmp_path / name).write_text(full_profile(seed).text)
    done = call(str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.exit_code == 0
    words = " ".join(done.output.split())
    assert "numbers of cells" in words
    assert "90 % or more are expected" in words
    row = next(line for line in done.output.splitlines() if "step fp32 batch 8: median" in line)
    assert row.split()[-1] in ("yes", "NO")


def test_the_command_gives_one_document_for_machines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(full_profile().text)
    done = call(str(tmp_path / "a.json"), str(tmp_path / "a.json"), "--json")
    data = json.loads(done.stdout)
    assert (data["agreeing"], data["same_device"], data["differs"]) == (1.0, True, [])
    assert data["judged"] == sum(part["numbers"] for part in data["parts"])
    assert {row["ratio"] for row in data["cells"]} == {1.0}


def test_a_missing_profile_is_one_line_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(full_profile().text)
    done = call(str(tmp_path / "cart.json"), str(tmp_path / "card.json"))
    assert isinstance(done.exception, InputError)
    assert "card.json" in str(done.exception)
