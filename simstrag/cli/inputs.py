"""The scenario that a command is given, with all that lies beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from simstrag.paths import expect

if TYPE_CHECKING:
    from simstrag.scenario import Scenario

__all__ = ["scenario_at"]


def scenario_at(path: Path) -> Scenario:
    """The scenario in a file; `module:Class` finds a policy in the file's folder from then on.

    Raises `InputError`, for a file that is missing with the nearest name that is there.
    """
    from simstrag.scenario import Scenario

    scenario = Scenario.read(expect(path))
    for name in (scenario.trace, scenario.profile):
        if isinstance(name, str):
            expect(path.parent / name)
    sys.path.append(str(path.absolute().parent))
    return scenario
