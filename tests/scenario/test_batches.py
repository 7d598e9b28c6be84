"""Steps at a batch that a profile's constants are not of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simstrag.analysis.tables.origins import Origin, origins
from simstrag.analysis.text.assumptions import assumptions
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.profile.batch_laws import seconds, times_at
from simstrag.profile.measurements import BatchFit
from simstrag.profile.profile import Profile
from simstrag.scenario.scenario import Scenario
from tests.support.full_profile import full_profile, without
from tests.support.refusals import message_of


@pytest.fixture
def profile() -> Profile:
    """Batches 1, 2 and 8 in the fit, 4 and 16 held out of it; the constants are of 8."""
    return full_profile()


def scenario_of(profile: Profile, batch: int, folder: Path) -> Scenario:
    (folder / "profile.json").write_text(profile.text)
    declared = {"workers": 2, "samples": 10 * batch, "profile": "profile.json"}
    return Scenario.of(declared | {"learner": {"batch": batch}}, folder=folder)


def test_the_nominal_batch_has_the_constants_of_the_profile(profile: Profile) -> None:
    times = times_at(profile, 8)
    assert times.fixed_share is not None  # of the fit, since the constants say none
    assert times.model_copy(update={"fixed_share": None}) == profile.step


def test_a_batch_between_has_the_time_of_the_fit(profile: Profile) -> None:
    times = times_at(profile, 12)
    near = next(c for c in profile.cells if (c.precision, c.batch) == ("fp32", 16))
    assert times.compute.value == pytest.approx(
        (0.004 + 0.0055 * 12) * near.mean.value / near.seconds.value
    )
    assert times.compute.kind == "fitted"
    assert times.noise == near.noise
    assert "beyond the batches of the fit (1 to 8)" in times.compute.note
    assert "beyond" not in times_at(profile, 3).compute.note


def test_reduced_precision_gains_there_what_both_fits_say(profile: Profile) -> None:
    gain = times_at(profile, 12).amp_ratio
    assert gain.value == pytest.approx((0.004 + 0.0055 * 12) / (0.003 + 0.0031 * 12))
    assert gain.kind == "fitted"


def test_a_batch_that_was_timed_has_its_own_measurement(profile: Profile) -> None:
    times = times_at(profile, 2)
    full, amp = (
        next(c for c in profile.cells if (c.precision, c.batch) == (precision, 2))
        for precision in ("fp32", "bf16")
    )
    assert times.compute == full.mean
    assert times.amp_ratio.value == pytest.approx(full.seconds.value / amp.seconds.value)
    assert times.amp_ratio.kind == "measured"


def test_without_a_fit_of_reduced_precision_its_gain_stays(profile: Profile) -> None:
    data = json.loads(profile.text)
    data["batches"], data["cells"] = data["batches"][:1], data["cells"][:5]
    assert times_at(Profile.model_validate(data), 12).amp_ratio == profile.step.amp_ratio


@pytest.mark.parametrize("batch", [17, 1000])
def test_a_batch_outside_what_was_measured_is_refused(
    profile: Profile, batch: int, tmp_path: Path
) -> None:
    assert message_of(lambda: scenario_of(profile, batch, tmp_path).inputs) == (
        f"scenario: learner.batch is {batch}, but the profile timed steps of 1 to 16 samples, and "
        "its fit is not trusted beyond; choose a batch between, or state step: {compute: ...}"
    )


def test_without_any_fit_only_the_nominal_batch_will_do(profile: Profile) -> None:
    with pytest.raises(InputError, match="steps of 8 samples; say learner"):
        times_at(without(profile, "batches"), 12)


def test_below_a_knee_no_step_is_quicker() -> None:
    def q(value: float) -> dict[str, Any]:
        return {"value": value, "kind": "fitted"}

    fit = BatchFit.model_validate(
        {"precision": "fp32", "law": "knee", "fixed": q(0.01), "per_sample": q(0.002),
         "knee": q(10), "fitted": [1, 8, 16, 32]}
    )  # fmt: skip
    assert [seconds(fit, b) for b in (1, 10, 20)] == pytest.approx([0.03, 0.03, 0.05])


def test_a_simulation_runs_at_a_batch_between_and_says_so(profile: Profile, tmp_path: Path) -> None:
    scenario = scenario_of(profile, 12, tmp_path)
    run = simulate(scenario, "bsp")
    assert run.summary["makespan"] > 5 * 0.06
    compute: Origin = next(iter(origins(scenario)))
    shown = f"{1e3 * times_at(profile, 12).compute.value:.1f} ms"
    assert (compute.kind, compute.value) == ("fitted", shown)
    said = " ".join(assumptions(scenario, [run]))
    assert "No step of 12 samples was timed: its time comes from the" in said


def test_what_is_assumed_of_the_host_is_so_at_every_batch(profile: Profile) -> None:
    data = json.loads(profile.text)
    data["step"]["host_share"] = {"value": 0.0, "kind": "assumed"}
    for cell in data["cells"]:
        cell["host_share"] = {"value": 0.05, "kind": "measured"}
    changed = Profile.model_validate(data)
    assert {times_at(changed, batch).host_share.kind for batch in (8, 12, 16)} == {"assumed"}
