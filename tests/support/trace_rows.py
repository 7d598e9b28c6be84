"""Rows of traces as a scenario states them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def slowed(node: int, value: float, time: float = 0.0, resource: str = "gpu") -> dict[str, Any]:
    """From a time on a resource of a node is slowed by a factor."""
    return {"time": time, "node": node, "resource": resource, "kind": "slowdown", "value": value}


def recorded(steps: Iterable[Iterable[float]]) -> list[dict[str, Any]]:
    """The durations of each rank's steps."""
    return [
        {"time": k, "node": rank, "resource": "step", "kind": "duration", "value": seconds}
        for rank, own in enumerate(steps)
        for k, seconds in enumerate(own)
    ]
