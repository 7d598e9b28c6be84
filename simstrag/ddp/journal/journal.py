"""The journal of a real run: one line per event, never rewritten.

Every line is written at once, so that it survives the process.
`simstrag.ddp.journal.run_from_journal` makes a `Run` and a `Trace` of it.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.contract import (
    Compensation,
    Damping,
    Late,
    Outer,
    Plan,
    Precision,
    Quorum,
    Review,
    Screen,
    Via,
    Weigh,
)
from simstrag.engine.live import Facts
from simstrag.errors import InputError
from simstrag.learning.noise_scale_estimate import NoiseAverages
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
        """Write one event, with plans as JSON and numpy numbers as Python's.

        Raises `InputError` where the disk takes no more; the journal then ends with a whole line.
        """
        written = [plan_to_json(v) if isinstance(v, Plan) else plain(v) for v in values]
        line = (json.dumps([kind, *written]) + "\n").encode()
        begun = os.fstat(self._file).st_size
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, begun)
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None

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

KINDS: dict[str, Any] = {
    "quorums": Quorum, "via": Via, "late": Late, "precision": Precision, "weigh": Weigh,
    "damping": Damping, "review": Review, "outer": Outer, "compensation": Compensation,
    "screen": Screen,
}  # fmt: skip
"""Types of a plan's fields that JSON cannot express."""

WINDOWS = {"known": np.int64, "amp": np.bool_, "lower_bound": np.bool_}
"""Types of the windows of facts that do not hold floats."""


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A resolved plan as JSON: the fields that differ from their defaults.

    >>> plan_to_json(Plan(bound=2, quorums=(Quorum((0, 1), count=1, via=Via.SERVER),)))
    {'quorums': [{'ranks': [0, 1], 'count': 1, 'via': 'server'}], 'bound': 2}
    """
    return _changed(plan)


def plan_from_json(written: Mapping[str, Any]) -> Plan:
    """The plan that `plan_to_json` wrote.

    >>> plan = Plan(precision=(Precision.FULL, Precision.AMP), suspects={1}).resolved(2)
    >>> plan_from_json(plan_to_json(plan)) == plan
    True
    """
    plan: Plan = _read(Plan, written)
    return plan


def facts_to_json(facts: Facts) -> dict[str, Any]:
    """Facts of the engine as JSON."""
    written = {field.name: getattr(facts, field.name) for field in fields(facts)}
    windows = {name: window.tolist() for name, window in facts.windows.items()}
    facts_as_json: dict[str, Any] = plain({
        **written, "plan": plan_to_json(facts.plan), "started": facts.started.tolist(),
        "windows": windows,
    })  # fmt: skip
    return facts_as_json


def facts_from_json(written: Mapping[str, Any]) -> Facts:
    """The facts that `facts_to_json` wrote; of other names there, none is read."""
    read: dict[str, Any] = {
        "plan": plan_from_json(written["plan"]), "reviewed": tuple(written["reviewed"]),
        "started": np.array(written["started"], dtype=np.int64),
        "windows": {
            name: np.array(window, dtype=WINDOWS.get(name, float))
            for name, window in written["windows"].items()
        },
        "noise": NoiseAverages(*written.get("noise", ())),
    }  # fmt: skip
    known = {f.name for f in fields(Facts)} & written.keys()
    return Facts(**{**{name: written[name] for name in known}, **read})


def _changed(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    default = type(value)()
    own = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return {name: _write(x) for name, x in own.items() if x != getattr(default, name)}


def _write(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_write(each) for each in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    return _changed(value) if is_dataclass(value) else plain(value)


def _read(kind: Any, written: Any) -> Any:
    if isinstance(written, list):
        return tuple(_read(kind, each) for each in written)
    if isinstance(written, dict):
        return kind(**{name: _read(KINDS.get(name), value) for name, value in written.items()})
    return written if kind is None else kind(written)
