"""Validation: predictions of the simulator against real runs on this machine.

Start with `validation`. `loadgen` puts real load beside ranks; `replay` replays a recorded run.

>>> from simstrag.validation import Injector, Schedule, validate
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simstrag.validation.loadgen.injector import Injector
    from simstrag.validation.loadgen.limited_link import LimitedLink
    from simstrag.validation.loadgen.schedule import Episode, Schedule
    from simstrag.validation.replay import Replayed, replay
    from simstrag.validation.validation import InterleavedCalibration, Validation, validate

__all__ = [
    "Episode", "Injector", "InterleavedCalibration", "LimitedLink", "Replayed", "Schedule",
    "Validation", "replay", "validate",
]  # fmt: skip

PLACES = {
    "Episode": "loadgen.schedule", "Injector": "loadgen.injector",
    "InterleavedCalibration": "validation", "LimitedLink": "loadgen.limited_link",
    "Replayed": "replay", "Schedule": "loadgen.schedule", "Validation": "validation",
    "replay": "replay", "validate": "validation",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{PLACES[name]}"), name)
