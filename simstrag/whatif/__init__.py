"""Says what a job's record shows: who was slow, what that cost, and what fixing it gives.

    found = simstrag.diagnose("steps.csv", gpu_price=2.0)

Start with `diagnosis`, then `replay`. It replays what ran; other policies are simulated on a
scenario of the record (`job_scenario`), or of a trace (`first_scenario`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simstrag.whatif.analysis import WhatIf, analyse

__all__ = ["WhatIf", "analyse"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.analysis"), name)
