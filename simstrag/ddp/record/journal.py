"""The journal of a real run: one line per event, never rewritten.

Every line is written at once, so that it survives whatever kills the process.
`simstrag.ddp.record.run_from_journal` makes a `Run` and a `Trace` of it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.engine.live import Facts
from simstrag.errors import InputError
from simstrag.plan import Damping, Plan, Precision, Review, Weigh
from simstrag.quorum import Late, Quorum, Via
from simstrag.runs.run import plain

FORMAT = "simstrag-journal/1"
NAME = "journal.jsonl"
LOAD = "load.json"
"""File of the load that was injected beside ranks, if any."""

ATTEMPT = "attempt"
"""Prefix of the numbered folders of later starts."""


class Journal:
    """Appends to the journal of a run directory.

    header: begins a new journal; None continues one.

    Raises `InputError` where it cannot be written.
    """

    def __init__(self, folder: str | Path, header: Mapping[str, Any] | None = None) -> None:
        self.path = Path(folder) / NAME
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(self.path, flags | (0 if header is None else os.O_EXCL), 0o644)
        except FileExistsError:
            raise InputError(
                f"{self.path}: a run was recorded there; choose another folder, or load its "
                "checkpoint to go on"
            ) from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None
        if header is not None:
            self.note("header", {"format": FORMAT, **header})

    def note(self, kind: str, *values: Any) -> None:
        """Write one event, with plans as JSON and numpy numbers as Python's."""
        written = [plan_to_json(v) if isinstance(v, Plan) else plain(v) for v in values]
        os.write(self._file, (json.dumps([kind, *written]) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def attempt_folder(folder: str | Path, attempt: int) -> Path:
    """The folder of a start of the training: the first in `folder`, later ones in subfolders."""
    return Path(folder) / f"{ATTEMPT}-{attempt}" if attempt else Path(folder)


def latest_attempt(folder: str | Path) -> int | None:
    """The number of the latest start recorded in a folder, from 0 on; None without any."""
    journals = Path(folder).glob(f"{ATTEMPT}-*/{NAME}")
    numbers = [each.parent.name.rpartition("-")[2] for each in journals]
    first = [0] if (Path(folder) / NAME).exists() else []
    return max([*first, *(int(each) for each in numbers if each.isdecimal())], default=None)


def read_journal(folder: str | Path) -> tuple[dict[str, Any], list[list[Any]]]:
    """The header and all other lines; an incomplete last line is left out.

    Raises `InputError` where there is no journal.
    """
    path = Path(folder) / NAME
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    events: list[list[Any]] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            events.append(json.loads(line))
        except ValueError:
            raise InputError(f"{path}, line {number}: not a line of a journal") from None
    if not events or events[0][0] != "header" or events[0][1].get("format") != FORMAT:
        raise InputError(f"{path}: not a journal of a run: its format is not {FORMAT}")
    return events[0][1], events[1:]


# -- plans -------------------------------------------------------------------------------------

KINDS = {"known": np.int64, "amp": np.bool_, "lower_bound": np.bool_}
ENUMS = {"via": Via, "late": Late, "weigh": Weigh}


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A resolved plan as JSON: the fields that differ from their defaults.

    >>> plan_to_json(Plan(bound=2, quorums=(Quorum((0, 1), count=1, via=Via.SERVER),)))
    {'quorums': [{'ranks': [0, 1], 'count': 1, 'via': 'server'}], 'bound': 2}
    """
    written = _changed(plan, Plan())
    written["quorums"] = [_changed(quorum, Quorum()) for quorum in plan.quorums]
    if "precision" in written and not isinstance(plan.precision, Precision):
        assert isinstance(plan.precision, tuple), "resolve the plan first"
        written["precision"] = [each.value for each in plan.precision]
    if plan.suspects is not None:
        written["suspects"] = sorted(plan.suspects)
    for name in ("damping", "review"):
        if name in written:
            written[name] = _changed(getattr(plan, name), type(getattr(plan, name))())
    return written


def plan_from_json(written: Mapping[str, Any]) -> Plan:
    """The plan that `plan_to_json` wrote.

    >>> plan = Plan(precision=(Precision.FULL, Precision.AMP), suspects={1}).resolved(2)
    >>> plan_from_json(plan_to_json(plan)) == plan
    True
    """
    values: dict[str, Any] = _read(written)
    values["quorums"] = tuple(Quorum(**_read(quorum)) for quorum in written["quorums"])
    if "precision" in written:
        own = written["precision"]
        values["precision"] = Precision(own) if isinstance(own, str) else tuple(map(Precision, own))
    for name, kind in (("damping", Damping), ("review", Review)):
        if name in written:
            values[name] = kind(**written[name])
    return Plan(**values)


def facts_to_json(facts: Facts) -> dict[str, Any]:
    """Facts of the engine as JSON."""
    written = {name: plain(getattr(facts, name)) for name in ("version", "samples", "now", "asked")}
    windows = {name: plain(window.tolist()) for name, window in facts.windows.items()}
    return {
        **written, "plan": plan_to_json(facts.plan), "reviewed": list(facts.reviewed),
        "started": facts.started.tolist(), "lost": sorted(facts.lost), "windows": windows,
    }  # fmt: skip


def facts_from_json(written: Mapping[str, Any]) -> Facts:
    """The facts that `facts_to_json` wrote."""
    updates, samples, seconds = written["reviewed"]
    windows = written["windows"].items()
    given = {name: written[name] for name in ("version", "samples", "now", "asked")}
    return Facts(
        **given, plan=plan_from_json(written["plan"]), reviewed=(updates, samples, seconds),
        started=np.array(written["started"], dtype=np.int64), lost=frozenset(written["lost"]),
        windows={name: np.array(window, dtype=KINDS.get(name, float)) for name, window in windows},
    )  # fmt: skip


def _changed(value: Any, default: Any) -> dict[str, Any]:
    own = {
        f.name: getattr(value, f.name)
        for f in fields(value)
        if f.init and getattr(value, f.name) != getattr(default, f.name)
    }
    return {name: _written(each) for name, each in own.items()}


def _written(value: Any) -> Any:
    if isinstance(value, float) and value == math.inf:
        return "inf"
    return value.value if hasattr(value, "value") else plain(value)


def _read(written: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: ENUMS[name](value) if name in ENUMS else _value(value)
        for name, value in written.items()
    }


def _value(value: Any) -> Any:
    if value == "inf":
        return math.inf
    return tuple(map(_value, value)) if isinstance(value, list) else value
