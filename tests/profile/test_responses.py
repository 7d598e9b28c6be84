"""Laws of contention: what a load of some level does, and utilisations of a trace as slowdowns."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.analysis.tables.origins import origins
from simstrag.analysis.text.assumptions import assumptions
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.profile.measurements import CONSTANTS, Response
from simstrag.profile.profile import Profile
from simstrag.profile.responses import apply_law, evaluate, responses_for, translate
from simstrag.scenario.scenario import Scenario
from simstrag.timing.constants import Step
from simstrag.trace.trace import Trace
from tests.support.full_profile import full_profile, without
from tests.support.refusals import message_of

U = [0.0, 0.25, 0.5, 1.0, 2.0]
SOME = {
    "none": {}, "constant": {"factor": 1.5},
    "linear": {"slope": 0.9}, "fair_share": {"demand": 0.7}, "time_slices": {"cost": 0.7},
    "reciprocal": {"share": 0.3}, "power": {"slope": 0.9, "exponent": 2.0},
    "hinge": {"slope": 1.2, "knee": 0.4},
}  # fmt: skip


def response(law: str = "linear", **changes: Any) -> Response:
    constants = {k: {"value": v, "kind": "fitted"} for k, v in SOME.get(law, {}).items()}
    levels = [
        {"level": u, "slowdown": {"value": 1 + u, "kind": "measured"}} for u in (0.5, 1.0, 2.0)
    ]
    whole = {"resource": "gpu", "load": "cpu", "law": law, "constants": constants}
    return Response.model_validate({**whole, "levels": levels, **changes})


@pytest.mark.parametrize("law", SOME)
def test_no_load_is_no_slowdown_and_more_load_never_less(law: str) -> None:
    slowed = apply_law(law, SOME[law], U)
    assert slowed[0] == 1
    assert np.all(slowed >= 1)
    assert np.all(np.diff(slowed) >= 0)


def test_every_law_has_its_formula() -> None:
    at = {law: float(apply_law(law, SOME[law], 2.0)) for law in SOME}
    assert at == pytest.approx(
        {"none": 1.0, "constant": 1.5, "time_slices": 1.7,
         "linear": 2.8, "fair_share": 2.7, "reciprocal": 2.5, "power": 4.6,
         "hinge": 2.92}
    )  # fmt: skip


def test_a_fair_share_is_free_until_the_resource_is_used_up() -> None:
    assert apply_law("fair_share", {"demand": 0.7}, [0.1, 0.3, 0.4]) == pytest.approx([1, 1, 1.1])


def test_a_reciprocal_has_an_end() -> None:
    with pytest.raises(InputError, match=r"share 0\.3 has no slowdown at level 4; measure"):
        apply_law("reciprocal", {"share": 0.3}, [1.0, 4.0])


def test_an_interpolation_passes_through_what_was_measured_and_never_falls() -> None:
    levels = [
        {"level": u, "slowdown": {"value": s, "kind": "measured"}, "held_out": u == 1.5}
        for u, s in ((0.5, 1.4), (1.0, 1.3), (1.5, 9.0), (2.0, 3.0))
    ]
    found = response("interpolated", levels=levels)
    assert evaluate(found, [0.0, 0.25, 0.5, 1.0, 1.5, 2.0]) == pytest.approx(
        [1.0, 1.2, 1.4, 1.4, 2.2, 3.0]
    )


def test_beyond_the_highest_level_a_law_goes_on_and_an_interpolation_does_not() -> None:
    assert float(evaluate(response("linear"), 4.0)) == pytest.approx(1 + 0.9 * 4)
    with pytest.raises(InputError, match="load cpu of level 4 is beyond the highest of its inter"):
        evaluate(response("interpolated"), 4.0)


def test_a_response_has_the_constants_of_its_law() -> None:
    assert set(SOME) | {"interpolated"} == set(CONSTANTS)
    with pytest.raises(ValueError, match="law power has the constants slope, exponent, not slope"):
        response("power", constants={"slope": {"value": 1, "kind": "fitted"}})


USED = [
    {"time": 0.5, "node": 1, "resource": "gpu", "kind": "utilisation", "value": 0.8},
    {"time": 2.0, "node": 2, "resource": "gpu", "kind": "utilisation", "value": 0.3},
    {"time": 4.0, "node": 1, "resource": "gpu", "kind": "utilisation", "value": 0.0},
    {"time": 5.0, "node": 0, "resource": "net", "kind": "slowdown", "value": 2.0},
]
BASE: dict[str, Any] = {"workers": 4, "samples": 4 * 8 * 200, "learner": {"batch": 8}}


def stretched(row: dict[str, Any]) -> dict[str, Any]:
    """A row by hand: the slope beside load cpu is 0.9 in that profile."""
    if row["kind"] != "utilisation":
        return row
    return row | {"kind": "slowdown", "value": 1 + 0.9 * row["value"]}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(full_profile().text)
    return path


def used_by(profile: Path, **keys: Any) -> Scenario:
    """A scenario with a profile and a trace of what others use."""
    declared = BASE | {"profile": profile.name, "trace": USED} | keys
    return Scenario.of(declared, folder=profile.parent)


def edit(profile: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(profile.read_text())
    change(data)
    profile.write_text(json.dumps(data))


@pytest.mark.parametrize("shift", ["same", "shift"])
def test_utilisation_is_the_slowdown_that_the_profile_measured(profile: Path, shift: str) -> None:
    """Log for log, where all of a step is the device's."""
    none = {"value": 0.0, "low": None, "high": None}
    edit(profile, lambda data: data["step"]["host_share"].update(none))
    common = {"trace_per_seed": shift, "trace_end": "loop"}
    used = used_by(profile, **common)
    slowed = used_by(profile, **common, trace=[stretched(row) for row in USED])
    a, b = (simulate(s, "bsp", seed=3, record_steps=True) for s in (used, slowed))
    assert (a.updates, a.steps) == (b.updates, b.steps)
    free = simulate(used.replaced(trace=None), "bsp", seed=3)
    assert a.summary["makespan"] > 1.2 * free.summary["makespan"]


def test_a_whole_step_is_stretched_as_was_measured_whatever_its_host_share() -> None:
    whole = Step(host=0.06, gpu=0.04)
    trace = Trace.from_rows(USED[:1])
    factor = translate(trace, full_profile(), whole).rows[0].value
    assert whole.host + factor * whole.gpu == pytest.approx(0.1 * (1 + 0.9 * 0.8))


def test_a_translated_trace_is_still_the_one_that_was_recorded(profile: Path) -> None:
    scenario = used_by(profile)
    inputs = scenario.inputs
    assert inputs.trace == Trace.from_rows(USED, source="scenario: trace")
    assert {row.kind for row in inputs.contention.rows} == {"slowdown"}
    run = simulate(scenario, "bsp")
    assert run.provenance["sha256"]["trace"] == inputs.trace.sha256


def test_a_trace_without_utilisation_is_left_alone() -> None:
    trace = Trace.from_rows(USED[3:])
    assert translate(trace, full_profile(), Step(0, 0.1)) is trace


def test_the_law_is_that_of_full_precision_and_the_first_in_the_profile() -> None:
    profile = full_profile()
    (chosen,) = responses_for(Trace.from_rows(USED), profile)
    assert (chosen.load, chosen.precision) == ("cpu", "fp32")
    turned = without(profile, "responses", responses=[
        each.model_dump() for each in reversed(profile.responses)
    ])  # fmt: skip
    (other,) = responses_for(Trace.from_rows(USED), turned)
    assert (other.load, other.precision) == ("memory", "fp32")


@pytest.mark.parametrize("lacking", ["profile", "response"])
def test_without_a_response_the_way_out_is_told(profile: Path, lacking: str) -> None:
    profile.write_text(without(full_profile(), "responses").text)
    scenario = used_by(profile, step={"compute": 0.1})
    if lacking == "profile":
        scenario = Scenario.of(BASE | {"step": {"compute": 0.1}, "trace": USED})
    assert message_of(lambda: simulate(scenario, "bsp")) == (
        "scenario: trace, row 1: utilisation 0.8 of node 1 at 0.5 s cannot be translated into a "
        "slowdown: that takes a profile with a response of gpu (simstrag calibrate measures "
        "them), or an assumed law (contention: {response: 1}); or write factors as kind "
        "slowdown (1 is clean), or step times as kind duration"
    )


def test_slowdowns_and_utilisations_of_one_resource_exclude_each_other() -> None:
    rows = [*USED, {"time": 1, "node": 2, "resource": "gpu", "kind": "slowdown", "value": 2}]
    with pytest.raises(InputError, match="node 2 has slowdowns and utilisations of gpu; keep one"):
        translate(Trace.from_rows(rows), full_profile(), Step(0, 0.1))


def test_utilisation_of_what_steps_do_not_use_is_refused() -> None:
    data = full_profile().model_dump(mode="json")
    for each in data["responses"]:
        each["resource"] = "host"
    rows = [row | {"resource": "host"} for row in USED[:1]]
    with pytest.raises(InputError, match="would stretch the host part of steps, and they have no"):
        translate(Trace.from_rows(rows), Profile.model_validate(data), Step(0, 0.1))


def test_a_report_says_by_which_law_utilisation_became_slowdown(profile: Path) -> None:
    scenario = used_by(profile)
    (law,) = (o for o in origins(scenario) if o.what.startswith("slowdown by"))
    assert (law.what, law.value, law.kind) == (
        "slowdown by utilisation of gpu", "linear law, slope 0.900", "fitted"
    )  # fmt: skip
    (said,) = (s for s in assumptions(scenario, [simulate(scenario, "bsp")]) if "Utilisation" in s)
    assert said == (
        "Utilisation of gpu in the trace is assumed to be by other jobs and to stretch a whole "
        'step as a load "cpu" of that level did: by a linear law fitted to levels up to 2.00 in '
        "fp32 at batch 8, and at any other precision and batch."
    )


def test_what_lies_beyond_the_levels_of_the_fit_is_said_to_be_extrapolated(profile: Path) -> None:
    def cut(data: Any) -> None:
        for each in data["responses"]:
            each["levels"] = each["levels"][:2]

    edit(profile, cut)
    scenario = used_by(profile)
    text = " ".join(assumptions(scenario, [simulate(scenario, "bsp")]))
    assert "levels up to 0.250, and is extrapolated up to 0.800 in fp32 at batch 8" in text


def test_inputs_with_a_translation_go_to_another_process(profile: Path) -> None:
    scenario = used_by(profile)
    _ = scenario.inputs
    sent = pickle.loads(pickle.dumps(scenario))
    assert simulate(sent, "bsp").summary == simulate(scenario, "bsp").summary
