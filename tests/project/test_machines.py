"""The table of machines: its rows, its page, and what a measurement chooses at its start."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import machines, results
from benchmarks.machines import COLUMNS, MachineSetting, append_row, read_rows, row_of, table_of
from benchmarks.results import MEASURED
from benchmarks.tables import plain
from simstrag.profile.profile import Profile
from simstrag.validation.case_results import Result
from tests.validation.test_validate import digits_profile, made, together

FIRST = machines.ROWS.parent / "amd-epyc-2-core-digits"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return made(tmp_path_factory.mktemp("machines"))


def test_every_row_has_all_columns_and_its_line_in_the_table() -> None:
    with machines.ROWS.open(newline="", encoding="utf-8") as file:
        assert tuple(next(csv.reader(file))) == COLUMNS
    kept = (MEASURED / "machines.txt").read_text(encoding="utf-8")
    assert kept == "\n".join(plain(table_of(read_rows())))
    for row in read_rows():
        counts = [int(row[name]) for name in ("predicted", "noisy", "missed")]
        assert sum(counts) == int(row["cases"])


def test_the_first_row_is_of_the_shipped_validation() -> None:
    profile, row = Profile.read(FIRST / "profile.json"), read_rows()[0]
    assert (row["date"], row["commit"]) == (profile.date, profile.commit)
    assert float(row["step_ms"]) == pytest.approx(1e3 * profile.step.compute.value, abs=0.05)
    assert float(row["gain"]) == pytest.approx(profile.step.amp_ratio.value, abs=0.005)
    (two,) = (e for e in profile.locksteps if e.ranks == 2 and not e.load)
    assert float(row["side_by_side"]) == pytest.approx(two.interference.value, abs=5e-4)


def test_a_measurement_makes_a_row_that_is_appended_and_shown(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "ROWS", Path(shutil.copy(machines.ROWS, tmp_path)))
    monkeypatch.setattr(results, "MEASURED", tmp_path)
    known, before = digits_profile(locksteps=together(2)), len(read_rows())
    device = {"kind": "cpu", "model": "A Processor", "family_model_stepping": "1/2/3",
              "flags": "avx2 amx_bf16", "cores": 2}  # fmt: skip
    row = row_of(result, known.model_copy(update={"device": device}))
    assert set(row) == set(COLUMNS)
    assert (row["predicted"], row["noisy"], row["missed"]) == (4, 0, 0)
    assert (row["flags"], row["pace"], row["ks_step"], row["inside"]) == ("amx_bf16",) + 3 * (None,)
    assert float(row["step_ms"]) == pytest.approx(12.0)
    assert float(row["side_by_side"]) == pytest.approx(1.02)
    append_row(row)
    machines.write_tables()
    assert "\nA Processor (1/2/3, amx_bf16)  " in (tmp_path / "machines.txt").read_text("utf-8")
    assert len(read_rows()) == before + 1
    assert machines.read_rows()[-1]["pace"] == ""


def test_an_unfinished_measurement_keeps_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "choose", lambda: (320, "korel"))
    first = MachineSetting.kept(tmp_path / "there", 25.0, quick=False)
    monkeypatch.setattr(machines, "choose", lambda: (64, "asgd"))
    assert MachineSetting.kept(tmp_path / "there", 10.0, quick=True) == first
    assert json.loads((tmp_path / "there" / "setting.json").read_text())["batch"] == 320


@pytest.mark.parametrize(("policy", "server"), [("korel", False), ("asgd", True)])
def test_only_what_two_ranks_beside_load_of_a_core_need_is_calibrated(
    tmp_path: Path, policy: str, server: bool
) -> None:
    setting = MachineSetting(320, policy, 25.0, quick=False)
    cells = setting.cells(tmp_path)
    steps = {(c.precision, c.batch) for c in cells if c.part == "step"}
    assert steps == {("fp32", 320), ("bf16", 320)}
    assert {c.load for c in cells if c.part == "contention"} == {"cpu"}
    assert {c.ranks for c in cells if c.part in ("lockstep", "server")} == {2}
    assert any(c.part == "server" for c in cells) == server
    assert len(replace(setting, quick=True).cells(tmp_path)) < len(cells)
