"""Placeholders: a scenario names them, a comparison says which of them decide its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simstrag
from simstrag import Scenario
from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.experiments.comparison import Comparison
from simstrag.experiments.decision import OWN, alternatives
from simstrag.experiments.placeholders import Placeholders
from simstrag.scenario.varied_constants import kind_of
from tests.support.commands import Call

SLOW = {"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}
BASE: dict[str, Any] = {
    "workers": 4,
    "target_progress": 10,
    "step": {"compute": 0.1, "cv": 0.02},
    "learner": {"c_tau": 0},
    "server": {"service": 0.02, "pull": 1e-6},
    "trace": [SLOW],
    "policies": ["bsp", "asgd"],
    "seeds": 10,
    "placeholders": ["server.service", "server.pull"],
}


@pytest.fixture(scope="module")
def tried() -> Comparison:
    return simstrag.compare(Scenario.of(BASE), jobs=1)


def test_a_placeholder_is_assumed_and_survives_reading(tmp_path: Path) -> None:
    Scenario.of(BASE).write(tmp_path)
    scenario = Scenario.read(tmp_path / "scenario.yaml")
    assert scenario.placeholders == ("server.service", "server.pull")
    assert kind_of(scenario, "server.service") == "assumed (placeholder)"
    assert kind_of(scenario, "step.compute") == "assumed (declared in the scenario)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("server.servise", "does not state; take it off the list. Did you mean 'server.service'"),
        ("server.push", "does not state"),
        ("samples", "does not state"),
    ],
)
def test_a_placeholder_is_a_number_that_the_scenario_states(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Scenario.of(BASE | {"placeholders": [name]})
    assert Scenario.of(BASE | {"placeholders": ["workers", "step.cv"]}).placeholders


def test_what_nothing_states_or_measures_is_tried_by_default(tried: Comparison) -> None:
    """asgd is the choice unless a saturated server makes it slower; a pull of 1 us does not."""
    assert tried.thresholds["quantity"].unique().tolist() == [
        "learner.noise_scale", "contention.severity", "server.service", "server.pull",
    ]  # fmt: skip
    assert tried.thresholds["seeds"].unique().tolist() == [5]
    assert tried.placeholders == (("server.service", "server.pull"), ("server.service",), (), 7)
    assert tried.answer.choice.startswith("If the 2 placeholders hold, run asynchronous SGD")
    assert str(tried).startswith("If the 2 placeholders hold, run ")
    banner = "2 of 7 numbers are placeholders; 1 of them decides the answer: the server's service"
    assert tried.warnings[0] == banner == str(tried.placeholders)


@pytest.mark.usefixtures("no_page")
def test_what_decides_is_known_of_a_comparison_that_is_read(
    tried: Comparison, tmp_path: Path
) -> None:
    tried.write(tmp_path / "c")
    assert Comparison.read(tmp_path / "c").placeholders == tried.placeholders


def test_the_decision_is_the_same_with_and_without_sensitivity(tried: Comparison) -> None:
    """Only the value at which the lead changes is more exact, and more of them are known."""
    more = simstrag.compare(Scenario.of(BASE), sensitivity=True, jobs=1).answer
    assert (more.choice, more.safety, more.bill, more.lanes) == (
        tried.answer.choice, tried.answer.safety, tried.answer.bill, tried.answer.lanes,
    )  # fmt: skip


def test_with_no_sensitivity_nothing_is_tried() -> None:
    untried = simstrag.compare(Scenario.of(BASE), sensitivity=False, jobs=1)
    assert untried.thresholds is None
    assert untried.warnings[0].endswith("whether that decides the answer is not known")


def test_to_change_nothing_is_conditional_too_where_a_placeholder_decides(
    tried: Comparison,
) -> None:
    """Were the server faster, asgd would be chosen."""
    slow = BASE | {"server": {"service": 0.05}, "placeholders": ["server.service"], "seeds": 3}
    found = simstrag.compare(Scenario.of(slow), jobs=1)
    assert found.placeholders.decisive == ("server.service",)
    assert found.answer.choice.startswith("If the placeholder server.service holds, change ")


def seconds(asgd: float, lb_bsp: float, bsp: float = 100.0) -> dict[str, Floats]:
    return {name: np.array([t]) for name, t in (("bsp", bsp), ("asgd", asgd), ("lb_bsp", lb_bsp))}


CV, COST = "step.cv", "learner.c_tau"
ALL, BARRIERS = ("bsp", "asgd", "lb_bsp"), ("bsp", "lb_bsp")


@pytest.mark.parametrize(
    ("own", "others", "key", "candidates", "clear", "choices"),
    [
        # asgd has the best mean; lb_bsp is within the known error of it, and changes less.
        (seconds(78, 80), {(CV, 0.1): seconds(80, 70)}, CV, ALL, ALL, {"lb_bsp"}),
        (seconds(78, 80), {(CV, 0.1): seconds(60, 90)}, CV, ALL, ALL, {"lb_bsp", "asgd"}),
        (seconds(78, 80), {(CV, 0.1): seconds(98, 99)}, CV, ALL, ALL, {"lb_bsp", "bsp"}),
        # A gain of asgd that may be noise makes no alternative.
        (seconds(99, 80), {(CV, 0.1): seconds(60, 90)}, CV, BARRIERS, {"lb_bsp"}, {"lb_bsp"}),
        (seconds(99, 80), {(CV, 0.1): seconds(60, 90)}, CV, BARRIERS, {"lb_bsp", "asgd"},
         {"lb_bsp", "asgd"}),
        # At a high cost of staleness asgd loses, so it is no choice whatever the noise is.
        (seconds(60, 80), {(COST, 4.0): seconds(160, 80), (CV, 0.1): seconds(55, 80)}, CV, ALL, ALL,
         {"lb_bsp"}),
        (seconds(60, 80), {(COST, 4.0): seconds(160, 80), (CV, 0.1): seconds(55, 80)}, COST, ALL,
         ALL, {"asgd", "lb_bsp"}),
        # At a low one asgd leads by far; what cv does to lb_bsp, it does there, too.
        (seconds(103, 97), {(COST, 0.5): seconds(76, 97), (CV, 0.1): seconds(103, 85)}, CV,
         ("bsp",), BARRIERS, {"bsp", "lb_bsp"}),
    ],
)  # fmt: skip
def test_a_placeholder_decides_if_another_policy_were_chosen_with_it_known(
    own: Any, others: Any, key: str, candidates: Any, clear: Any, choices: set[str]
) -> None:
    lanes = {"lb_bsp": "A", "asgd": "C"}
    found = alternatives({OWN: own, **others}, key, candidates, lanes, clear)
    assert {each.policy for each in found.values()} == choices


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (((), None, (), 5), ""),
        ((("step.cv",), (), (), 5), "1 of 5 numbers is a placeholder; none decides the answer"),
        ((("step.cv",), ("step.cv",), (), 5), "; 1 of them decides the answer: the noise of steps"),
        ((("step.cv", "workers"), (), ("workers",), 5), "not tried: workers"),
        ((("step.cv", "workers"), ("step.cv", "workers"), (), 5), "2 of them decide"),
    ],
)
def test_the_banner_counts(given: tuple[Any, ...], words: str) -> None:
    assert words in str(Placeholders(*given))
    assert bool(words) == bool(str(Placeholders(*given)))


@pytest.mark.usefixtures("no_page")
def test_the_banner_stands_above_the_ranking(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Scenario.of(BASE).write(tmp_path)
    code, out, err = call("compare", "scenario.yaml", "--jobs", "1", "--out", "c", "--verbose")
    assert (code, err) == (0, "")
    assert out.startswith("2 of 7 numbers are placeholders; 1 of them decides the answer: ")
    assert out.index("placeholders") < out.index("asgd")
    _, out, _ = call("compare", "scenario.yaml", "-j", "1", "--no-sensitivity", "-o", "c", "--json")
    assert '"decisive": null' in out
    assert "is not known" in out


def test_placeholders_that_cannot_be_varied_are_told_untried() -> None:
    found = simstrag.compare(
        Scenario.of(BASE | {"placeholders": ["workers"]}), ["bsp", "asgd"], jobs=1
    )
    assert str(found.placeholders).endswith("is not known")
