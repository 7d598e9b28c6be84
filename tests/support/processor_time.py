"""Processor time of processes that a test started."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

__all__ = ["processor_seconds", "wait_for_work"]


def processor_seconds(pids: Iterable[int | None]) -> float:
    """Processor seconds that processes have taken together."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def wait_for_work(pids: Iterable[int | None], seconds: float = 0.1) -> None:
    """Wait until processes have computed for so long."""
    pids, until = [*pids], time.monotonic() + 120
    begun = processor_seconds(pids)
    while processor_seconds(pids) - begun < seconds:
        assert time.monotonic() < until
        time.sleep(0.01)
