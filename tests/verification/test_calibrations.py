"""The calibrations shipped with the project, held against what was asked of them beforehand.

From the files of every sample: the profile is made anew to the digits it is written with, what no
fit saw is predicted within `held_out.THRESHOLDS` (5 % of step medians, 10 % under contention, 15 %
of all-reduces from 1 MiB), and a calibration repeated on the same machine agrees with the first in
at least 90 % of its cells.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simstrag.calibration.calibrate import derive
from simstrag.calibration.compare import EXPECTED, compare
from simstrag.calibration.fits.held_out import THRESHOLDS
from simstrag.profile.profile import Profile
from tests.support.written import numbers

CALIBRATION = Path(__file__).parent.parent.parent / "simstrag" / "calibration"
MEASURED = sorted(path.parent for path in CALIBRATION.glob("measurements/*/samples.parquet"))
NAMES = [folder.name for folder in MEASURED]
GPUS = [name for name in NAMES if name.startswith("nvidia")]
"""Their part step alone has cells enough."""
AGAIN = [name for name in NAMES if name.endswith("-again")]


def profile_of(name: str) -> Profile:
    return Profile.read(CALIBRATION / "profiles" / f"{name}.json")


def test_there_are_calibrations() -> None:
    assert len(NAMES) > len(AGAIN) > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in AGAIN])
def test_the_samples_make_the_shipped_profile(name: str) -> None:
    shipped = (CALIBRATION / "profiles" / f"{name}.json").read_text(encoding="utf-8")
    made = derive(CALIBRATION / "measurements" / name).text
    assert numbers(made) == pytest.approx(numbers(shipped), rel=1e-5, abs=0)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GPUS])
@pytest.mark.parametrize("part", THRESHOLDS)
def test_what_no_fit_saw_is_predicted(name: str, part: str) -> None:
    found = {each.part: each for each in derive(CALIBRATION / "measurements" / name).held_out}
    assert len(found[part].cells) >= 4
    assert found[part].median <= THRESHOLDS[part]


@pytest.mark.parametrize("name", GPUS)
def test_on_a_gpu_each_cell_that_no_fit_saw_is_predicted(name: str) -> None:
    """Within 3 % where the device bounds steps, 15 % where launching does, 10 % beside a load."""
    found = {each.part: each.cells for each in derive(CALIBRATION / "measurements" / name).held_out}
    assert len(found["step"]) >= 5
    for cell in found["step"]:
        host_bound = cell.cell == "step bf16 batch 32" and "resnet50" in name
        assert abs(cell.error) <= (0.15 if host_bound else 0.03), cell.cell
    for cell in found.get("contention", ()):
        assert abs(cell.error) <= 0.10, cell.cell


@pytest.mark.parametrize("name", AGAIN)
def test_a_calibration_that_is_repeated_agrees(name: str) -> None:
    first, second = (
        derive(CALIBRATION / "measurements" / each) for each in (name.removesuffix("-again"), name)
    )
    found = compare(first, second)
    assert found.same_device
    assert len(found.judged) > 50
    assert found.agreeing >= EXPECTED
