"""Real contention, and whether the simulation of it says what happened.

>>> from simstrag.fidelity import Injector, Schedule, validate
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simstrag.fidelity.injector import Injector
    from simstrag.fidelity.network import Link
    from simstrag.fidelity.recorded import Replayed, replay
    from simstrag.fidelity.schedule import Episode, Schedule
    from simstrag.fidelity.validation import Calibrating, Validation, validate

__all__ = [
    "Calibrating", "Episode", "Injector", "Link", "Replayed", "Schedule", "Validation", "replay",
    "validate",
]  # fmt: skip

PLACES = {
    "Episode": "schedule", "Injector": "injector", "Link": "network", "Replayed": "recorded",
    "Schedule": "schedule", "Validation": "validation", "replay": "recorded",
    "Calibrating": "validation", "validate": "validation",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{PLACES[name]}"), name)
