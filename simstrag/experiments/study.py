"""Studies: many scenarios in one file, the points of a grid, and what is to run in each of them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, get_args, get_origin

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from simstrag import policies
from simstrag.documents.file_io import path_of, require_path
from simstrag.documents.suggestions import nearest
from simstrag.documents.validation_errors import explain
from simstrag.documents.yaml_file import read_mapping
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.sections import Amount, Section, Seed

OWN = ("policies", "seeds")
"""Keys of a scenario that a study has too; a grid cannot vary them."""
FILES = ("trace", "profile")
"""Keys of a scenario that may name a file."""
SHOWN = 10
"""Most mistakes that one message lists."""

Values = Annotated[tuple[Any, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One point of a grid.

    values: by key of the grid.
    scenario: the study's scenario with these values.
    shared: a scenario with the same trace and profile.
    changes: the keys that turn `shared` into `scenario`.
    """

    number: int
    values: Mapping[str, Any]
    scenario: Scenario
    shared: Scenario
    changes: Mapping[str, Any]

    def __str__(self) -> str:
        return _describe(self.number, self.values)


class Study(Section):
    """A scenario, and a grid of values for some of its keys: every combination is a point.

    scenario: a file, or the keys of one.
    grid: values by key; a key of a section has a dot, such as `server.service`.
    policies, seeds: they replace the scenario's.

    File names are relative to the folder of the study; in a scenario's file, to that file's folder.

    >>> case = {"workers": 4, "samples": 10_000, "step": {"compute": 0.1}}
    >>> study = Study(scenario=case, grid={"workers": [4, 8], "step.cv": [0, 0.1, 0.2]}, seeds=5)
    >>> [point.values for point in study.points()][:2]
    [{'workers': 4, 'step.cv': 0}, {'workers': 4, 'step.cv': 0.1}]
    """

    scenario: str | dict[str, Any]
    grid: dict[str, Values] = Field(default={})
    policies: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    seeds: Amount | Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    _folder: Path = PrivateAttr(Path())
    _source: str = PrivateAttr("study")
    _read: Mapping[str, Any] | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = keys()
        for key, values in self.grid.items():
            if key in OWN:
                raise ValueError(f"{key} is no part of the grid; it is a key of its own beside it")
            if key not in known:
                raise ValueError(f"unknown key '{key}' in the grid{nearest(key, known)}")
            texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
            if twice := [text for text in texts if texts.count(text) > 1]:
                raise ValueError(f"grid.{key} names {twice[0]} twice")
        if isinstance(self.seeds, tuple) and len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds names a seed twice")
        return self

    @classmethod
    def read(cls, path: str | Path) -> Study:
        """From a YAML file. Raises `InputError` that names the file, the field and the way out."""
        path = path_of(path, "a study, or a Study")
        data = read_mapping(path, "study", "scenario: demo.yaml")
        if "workloads" in data:
            raise InputError(f"{path}: is a cluster study; `simstrag cluster {path}` runs it")
        if "workers" in data and "scenario" not in data:
            raise InputError(
                f"{path}: is a scenario, not a study; `simstrag compare {path}` runs it"
            )
        return cls.of(data, str(path), path.parent)

    @classmethod
    def of(cls, data: Mapping[str, Any], source: str = "study", folder: str | Path = ".") -> Study:
        """From a mapping with the keys of a study file."""
        try:
            study = cls.model_validate(data)
        except ValidationError as error:
            raise InputError(explain(error, cls, source)) from None
        study._folder, study._source = Path(folder), source
        return study

    def under(self, seeds: int | Sequence[int] | None) -> Study:
        """This study under other seeds; itself for None."""
        if seeds is None:
            return self
        keys = {name: getattr(self, name) for name in self.model_fields_set}
        return Study.of(keys | {"seeds": seeds}, self._source, self._folder)

    def points(self) -> tuple[GridPoint, ...]:
        """Every combination of the values in the grid; the last key varies fastest.

        Each trace and profile is read once.  Raises one `InputError` that names every invalid
        scenario and policy.
        """
        base, found, wrong = self._base(), list[GridPoint](), dict[str, list[str]]()
        shared: dict[str, Scenario] = {}
        for number, chosen in enumerate(itertools.product(*self.grid.values())):
            values = dict(zip(self.grid, chosen, strict=True))
            try:
                found.append(self._point(number, values, base, shared))
            except InputError as error:
                wrong.setdefault(str(error), []).append(_describe(number, values))
        if wrong:
            raise InputError(_explain_all(wrong, len(wrong) == 1 and not found))
        self._check_policies(found[0].scenario)
        return tuple(found)

    def declared(self) -> dict[str, Any]:
        """Its keys as JSON; a scenario that is a file is replaced by the keys in that file.

        >>> Study(scenario={"workers": 4}, seeds=2).declared()
        {'scenario': {'workers': 4}, 'seeds': 2}
        """
        stated = self.model_dump(mode="json", exclude_unset=True)
        return stated | ({"scenario": self._base()} if isinstance(self.scenario, str) else {})

    def _point(
        self,
        number: int,
        values: dict[str, Any],
        base: Mapping[str, Any],
        shared: dict[str, Scenario],
    ) -> GridPoint:
        data = with_values(base, values)
        files = json.dumps({key: data.get(key) for key in FILES}, sort_keys=True, default=str)
        changes = {key: value for key, value in data.items() if key not in FILES}
        if files in shared:
            scenario = shared[files].replaced(**changes)
        else:
            scenario = Scenario.of(data, self._source, self._folder)
        scenario.timing(scenario.seed_list[0])  # a trace may name nodes that are not there
        return GridPoint(number, values, scenario, shared.setdefault(files, scenario), changes)

    def _base(self) -> Mapping[str, Any]:
        """The keys of the scenario, read once; file names are relative to the study."""
        if self._read is not None:
            return self._read
        asked = {key: value for key in OWN if (value := getattr(self, key)) is not None}
        if isinstance(self.scenario, str):
            path = require_path(self._folder / self.scenario)
            data = dict(read_mapping(path, "scenario", "workers: 8"))
            for key in FILES:
                if isinstance(data.get(key), str):
                    data[key] = os.path.relpath(path.parent / data[key], self._folder)
        else:
            data = self.scenario
        self._read = {**data, **asked}
        return self._read

    def _check_policies(self, scenario: Scenario) -> None:
        by_meaning: dict[str, str] = {}
        for name in scenario.policies:
            first = by_meaning.setdefault(policies.spec(policies.load(name)), name)
            if first != name or scenario.policies.count(name) > 1:
                raise InputError(f"{self._source}: policies: {name} is {first}; name it once")


def keys() -> tuple[str, ...]:
    """The keys of a scenario that a grid may vary; keys of a section have a dot.

    >>> {"workers", "trace", "server.service", "learner.optimizer.lr"} <= set(keys())
    True
    """
    return tuple(key for key, _ in fields())


def fields(
    section: type[Section] = Scenario, place: str = ""
) -> Iterator[tuple[str, type[Section]]]:
    """The keys of a scenario that a grid may vary, with the section that each is in.

    section: whose keys, and those of its own sections.
    place: what stands before them, such as `server.`.
    """
    for name, field in section.model_fields.items():
        if section is Scenario and name in OWN:
            continue
        yield place + name, section
        for kind in (field.annotation, *get_args(field.annotation)):
            inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from fields(inner, f"{place}{name}.")


def with_values(scenario: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a scenario at a point; values: by key of the grid."""
    for key, value in values.items():
        scenario = _with(scenario, key.split("."), value)
    return scenario


def _with(data: Any, path: Sequence[str], value: Any, place: str = "") -> dict[str, Any]:
    """The keys that a scenario states in a section, with another value at a path in it.

    place: the path of the section; none for the scenario itself.

    >>> _with({"learner": {"optimizer": {"lr": 0.1}}}, ["learner", "optimizer", "momentum"], 0.9)
    {'learner': {'optimizer': {'lr': 0.1, 'momentum': 0.9}}}
    """
    if data is not None and not isinstance(data, Mapping):
        key = ".".join([place, *path])
        raise InputError(f"{key} cannot be varied: the scenario's {place} is no section")
    stated = {} if data is None else data
    name, *inner = path
    if inner:
        value = _with(stated.get(name), inner, value, f"{place}.{name}" if place else name)
    return {**stated, name: value}


def _describe(number: int, values: Mapping[str, Any]) -> str:
    """A point, in words.

    >>> _describe(1, {"workers": 8, "trace": None})
    'point 1 (workers=8, trace=null)'
    """
    shown = ", ".join(f"{key}={text_of(value)}" for key, value in values.items())
    return f"point {number} ({shown})" if shown else f"point {number}"


def text_of(value: Any) -> str:
    """A value of a grid as a table shows it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _explain_all(wrong: Mapping[str, list[str]], everywhere: bool) -> str:
    """Each mistake once, with the first point that has it and the number of others."""
    if everywhere:
        return next(iter(wrong))
    lines = []
    for message, where in itertools.islice(wrong.items(), SHOWN):
        more = f" and {len(where) - 1} more" if len(where) > 1 else ""
        lines.append(f"{message} [{where[0]}{more}]")
    if len(wrong) > SHOWN:
        lines.append(f"and {len(wrong) - SHOWN} other mistakes")
    return "\n".join(lines)
