"""Processor time and wall time of a call."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Progress", "Timed", "time_call"]

Progress = Callable[[str], None]
"""A function that shows the case that is being measured."""


class Timed(NamedTuple):
    """Processor and wall time in seconds, and the result of the call."""

    cpu: float
    wall: float
    result: Any


def time_call(call: Callable[[], Any]) -> Timed:
    """Time one call, after a garbage collection; the collector stays on during the call."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return Timed(time.process_time() - cpu, time.perf_counter() - wall, result)
