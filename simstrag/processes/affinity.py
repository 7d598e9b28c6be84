"""Where a process runs, with whom it ends, and what it does with memory it has freed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["cores", "cores_of_all", "die_with_parent", "keep_memory", "pin", "pin_rank"]

CORES = "SIMSTRAG_CORES"
"""In the environment of a pinned rank, and of a server that it starts: the cores of all."""

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""What glibc's mallopt(3) may be told."""


def cores() -> list[int]:
    """The cores this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_of_all() -> list[int]:
    """The cores that ranks of this host may use together; a pinned one may use one of them."""
    said = os.environ.get(CORES)
    return list(map(int, said.split(","))) if said else cores()


def pin(core: int | set[int]) -> None:
    """Keep the calling thread, and what it starts, on `core`, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core} if isinstance(core, int) else core)


def pin_rank(rank: int) -> None:
    """Keep a rank on a core of its own, round about; a server that it starts may use all."""
    every = cores()
    os.environ[CORES] = ",".join(map(str, every))
    pin(every[rank % len(every)])


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when `parent` ends; leave at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def keep_memory() -> bool:
    """Let this process keep the memory it frees, for its next step; whether it can (glibc).

    glibc gives large blocks back to the kernel as they are freed, so that each step of a training
    on a CPU faults its activations in again: on one virtual machine 4,000 page faults and 8 of
    48 ms a step, in some processes and not in others, as their heaps happen to lie.  PyTorch's
    guide to tuning names other allocators against that; this needs none.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, 2**31 - 1))
