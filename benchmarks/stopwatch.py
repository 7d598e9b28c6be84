"""How long something takes, by the processor's clock and by the wall's."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Taken", "timed"]


class Taken(NamedTuple):
    """Seconds, and what came of it."""

    cpu: float
    wall: float
    answer: Any


def timed(what: Callable[[], Any]) -> Taken:
    """Call it once; the collector of garbage begins with a clean slate, and works as always."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    answer = what()
    return Taken(time.process_time() - cpu, time.perf_counter() - wall, answer)
