"""Where a process runs, and with whom it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["cores", "die_with_parent", "pin"]


def cores() -> list[int]:
    """The cores this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(core: int | set[int]) -> None:
    """Keep the calling thread, and what it starts, on `core`, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core} if isinstance(core, int) else core)


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when `parent` ends; leave at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
