"""The JSON schemas of the files that a person writes, for editors."""

from __future__ import annotations

import copy
import math
from typing import Any

from simstrag.cluster.study import ClusterStudy
from simstrag.cluster.study_sections import NOT_SHARED, OF_JOB
from simstrag.documents.suggestions import choices
from simstrag.errors import InputError
from simstrag.experiments.study import Study, fields
from simstrag.scenario.scenario import Scenario

SCHEMAS = ("scenario", "study", "cluster")
DRAFT = "https://json-schema.org/draft/2020-12/schema"
"""The dialect that pydantic writes."""


def schema_of(what: str) -> dict[str, Any]:
    """The JSON schema of a `scenario`, a `study` or a `cluster` study.

    Raises `InputError` for anything else.

    >>> "server.service" in schema_of("study")["properties"]["grid"]["properties"]
    True
    """
    if what not in SCHEMAS:
        raise InputError(f"there is no schema of '{what}'; {choices(what, SCHEMAS)}")
    found = {"scenario": _scenario, "study": _study, "cluster": _cluster}[what]()
    return {"$schema": DRAFT, **found}


def _scenario() -> dict[str, Any]:
    found: dict[str, Any] = _writable(Scenario.model_json_schema())
    return found


def _study() -> dict[str, Any]:
    """The grid has known keys only; an inline scenario may lack keys that the grid gives."""
    found, scenario = copy.deepcopy(Study.model_json_schema()), _scenario()
    sections = scenario.pop("$defs")
    parts = {**sections, Scenario.__name__: scenario}
    grid = {
        key: parts[section.__name__]["properties"][key.rpartition(".")[2]]
        for key, section in fields()
    }
    found["$defs"] = {**sections, "Scenario": {**scenario, "required": []}}
    found["properties"]["scenario"]["anyOf"] = [{"type": "string"}, {"$ref": "#/$defs/Scenario"}]
    found["properties"]["grid"] |= {
        "additionalProperties": False,
        "properties": {key: _values(item) for key, item in grid.items()},
    }
    return found


def _cluster() -> dict[str, Any]:
    """The scenario of a workload has known keys only, and lacks those of its jobs."""
    found, scenario = _writable(ClusterStudy.model_json_schema()), _scenario()
    sections = scenario.pop("$defs")
    kept = {k: v for k, v in scenario["properties"].items() if k not in (*OF_JOB, *NOT_SHARED)}
    workload = found["$defs"]["WorkloadSection"]["properties"]
    workload["scenario"] = {**scenario, "properties": kept, "required": []}
    found["$defs"] |= sections
    schema: dict[str, Any] = found
    return schema


def _values(item: dict[str, Any]) -> dict[str, Any]:
    one = {key: value for key, value in item.items() if key != "default"}
    return {"type": "array", "minItems": 1, "items": one}


def _writable(schema: Any) -> Any:
    """A schema without infinite defaults, which JSON cannot express."""
    if isinstance(schema, dict):
        return {
            key: _writable(value)
            for key, value in schema.items()
            if not (isinstance(value, float) and math.isinf(value))
        }
    return [_writable(value) for value in schema] if isinstance(schema, list) else schema
