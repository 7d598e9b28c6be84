"""Rows of traces, by what matters in a test."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def slow(value: float = 2.0, time: float = 0, node: int = 0, resource: str = "gpu") -> Row:
    """From this time on a node's resource takes so many times as long."""
    return {
        "time": time, "node": node, "resource": resource, "kind": "slowdown", "value": value,
    }  # fmt: skip


def durations(*of_ranks: Any) -> list[Row]:
    """Recorded seconds of each rank's steps; one step a second."""
    return [
        {"time": float(k), "node": rank, "resource": "step", "kind": "duration", "value": seconds}
        for rank, own in enumerate(of_ranks)
        for k, seconds in enumerate(own)
    ]
