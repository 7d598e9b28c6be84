"""The papers' claims on one scoreboard: what each says, and where the simulation agrees.

    board = simstrag.claims.judge(["korel-delay"], quick=True)

Start with `claim`, then `registry`, which holds the claims as data. Nothing is tuned to a claim.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simstrag.claims.registry import CLAIMS
    from simstrag.claims.scoreboard import Scoreboard, judge

__all__ = ["CLAIMS", "Scoreboard", "judge"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "registry" if name == "CLAIMS" else "scoreboard"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
