"""The JSON schemas: the examples fit, what cannot be does not, and they say what pydantic knows."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

import simstrag
from simstrag.cli.json_schema import SCHEMAS, schema_of
from simstrag.experiments.study import keys
from simstrag.scenario.scenario import DEMO

EXAMPLES = Path(__file__).parents[2] / "examples"
KIND = {
    "demo.yaml": "scenario",
    "real-learning.yaml": "scenario",
    "replicas.yaml": "scenario",
    "study.yaml": "study",
    "failures.yaml": "scenario",
    "two_keys.yaml": "study",
    "cluster.yaml": "cluster",
}
CASE = {"workers": 4, "samples": 5120, "step": {"compute": 0.1}}


def fits(what: str, data: Any) -> bool:
    return jsonschema.Draft202012Validator(schema_of(what)).is_valid(data)


@pytest.mark.parametrize("what", SCHEMAS)
def test_it_is_a_schema(what: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(what))


@pytest.mark.parametrize("path", [DEMO, *EXAMPLES.glob("*.yaml")], ids=lambda path: path.name)
def test_the_examples_fit(path: Path) -> None:
    assert fits(KIND.get(path.name, "scenario"), YAML(typ="safe", pure=True).load(path))


@pytest.mark.parametrize(
    "change",
    [
        {"wokers": 4}, {"workers": 0}, {"step": {"compute": -1}}, {"step": {"computer": 1}},
        {"policies": []}, {"seeds": 0}, {"trace_end": "stop"}, {"nodes": [-1]},
    ],
)  # fmt: skip
def test_what_pydantic_refuses_in_a_scenario_does_not_fit(change: dict[str, Any]) -> None:
    with pytest.raises(simstrag.InputError):
        simstrag.Scenario.of(CASE | change)
    assert fits("scenario", CASE)
    assert not fits("scenario", CASE | change)


@pytest.mark.parametrize(
    ("change", "does"),
    [
        ({}, True),
        ({"scenario": "demo.yaml"}, True),
        ({"scenario": {"samples": 5120}, "grid": {"workers": [4, 8]}}, True),
        ({"grid": {"server.service": [0, 0.1], "server": [None], "trace": ["slow.csv"]}}, True),
        ({"grid": {"server.servce": [0]}}, False),
        ({"grid": {"server.service": [-1]}}, False),
        ({"grid": {"workers": 8}}, False),
        ({"grid": {"workers": []}}, False),
        ({"grid": {"seeds": [1]}}, False),
        ({"scenario": {"wokers": 4}}, False),
        ({"sceanrio": "demo.yaml"}, False),
    ],
)
def test_a_study_fits_as_far_as_its_keys_and_values_can_be(
    change: dict[str, Any], does: bool
) -> None:
    assert fits("study", {"scenario": CASE} | change) is does


def test_every_key_that_a_grid_may_vary_can_be_completed() -> None:
    assert list(schema_of("study")["properties"]["grid"]["properties"]) == list(keys())


def test_an_unknown_one_is_named() -> None:
    with pytest.raises(simstrag.InputError, match="'studi'; known: scenario, study"):
        schema_of("studi")
