"""The scenario that a command is given, with all that lies beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from simstrag.documents.paths import expect
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.scenario.scenario import Scenario

__all__ = ["TRACES", "profile_at", "scenario_at", "trace_at"]

TRACES, SCENARIOS = (".csv", ".parquet"), (".yaml", ".yml")
"""How files are named that are often given for one another."""


def scenario_at(path: Path) -> Scenario:
    """The scenario in a file; `module:Class` finds a policy in the file's folder from then on.

    Raises `InputError`, for a file that is missing with the nearest name that is there.
    """
    from simstrag.scenario.scenario import Scenario

    if expect(path).suffix in TRACES:
        raise InputError(
            f"{path}: is a trace by its name; `simstrag init {path}` writes a scenario for it"
        )
    scenario = Scenario.read(path)
    for name in (scenario.trace, scenario.profile):
        if isinstance(name, str):
            expect(path.parent / name)
    sys.path.append(str(path.absolute().parent))
    return scenario


def profile_at(path: Path) -> Path:
    """A profile, or the one in a folder of calibration. Raises `InputError` where it is none."""
    found = expect(path)
    return found / "profile.json" if found.is_dir() else found


def trace_at(path: Path) -> Path:
    """The path of a trace that is there. Raises `InputError`, also for a scenario."""
    if expect(path).suffix in SCENARIOS:
        raise InputError(
            f"{path}: is a scenario by its name; give its trace, a file named *.csv or *.parquet"
        )
    return path
