"""Profiles as they are written: six digits, of which the solver's last ones are the CPU's.

From another start it ends up to 3e-8 elsewhere (all-reduces of the A100 profile), which shows in
the sixth digit of a residual of 0.001.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["numbers"]


def numbers(text: str) -> dict[str, Any]:
    """Every number and text of a profile by where it stands; residuals as ratios, error + 1.

    But for what it lacks: parts that calibration has learnt to time since.
    """
    return _leaves({k: v for k, v in json.loads(text).items() if k != "missing"}, "")


def _leaves(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict):
        children = list(value.items())
        if "error" in value and "value" not in value:  # no standard error of a quantity
            children = [(k, 1 + v if k == "error" else v) for k, v in children]
    elif isinstance(value, list):
        children = list(enumerate(value))
    else:
        return {path: value}
    return {p: leaf for k, child in children for p, leaf in _leaves(child, f"{path}.{k}").items()}
