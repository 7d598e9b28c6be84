"""Who else was at work on this machine while something was timed."""

from __future__ import annotations

import os
import time
from types import TracebackType

import psutil

__all__ = ["LIMIT", "Occupancy"]

LIMIT = 0.1
"""Cores that others may take of a visit that still counts as calm."""


class Occupancy:
    """How many cores others took between entering and leaving; ours are this process and its own.

    foreign: processor seconds of all processes but ours, over the wall clock: cores.
    stolen: the same of what the hypervisor gave to other machines.
    Kernel work on our behalf that no process is charged for counts as foreign.

    >>> with Occupancy() as seen:
    ...     _ = sum(range(100_000))
    >>> 0 <= seen.foreign <= os.cpu_count()
    True
    """

    foreign: float = 0.0
    stolen: float = 0.0

    def __enter__(self) -> Occupancy:
        self._begun, self._own, (self._busy, self._steal) = time.monotonic(), _own(), _all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        own, (busy, steal) = _own(), _all()
        seconds = max(time.monotonic() - self._begun, 1e-9)
        cores = float(os.cpu_count() or 1)
        self.foreign = min(max(busy - self._busy - (own - self._own), 0.0) / seconds, cores)
        self.stolen = max(steal - self._steal, 0.0) / seconds


def _all() -> tuple[float, float]:
    """Processor seconds since boot: of all processes, and what the hypervisor took."""
    t = psutil.cpu_times()
    used = sum(getattr(t, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    return used, getattr(t, "steal", 0.0)


def _own() -> float:
    """Processor seconds of this process and all below it, those that have ended included."""
    total, here = 0.0, psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total
