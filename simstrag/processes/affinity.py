"""The cores of a process, and the memory that it has freed."""

from __future__ import annotations

import ctypes
import os

CORES = "SIMSTRAG_CORES"
"""Environment variable of a pinned rank, and of a server that it starts: the cores of all ranks."""

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3)."""


def cores() -> list[int]:
    """The cores that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_of_all() -> list[int]:
    """The cores that all ranks of this host may use together, also in a rank pinned to one."""
    listed = os.environ.get(CORES)
    return list(map(int, listed.split(","))) if listed else cores()


def pin(core: int | set[int]) -> None:
    """Keep the calling thread, and what it starts, on a core or cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core} if isinstance(core, int) else core)


def pin_rank(rank: int) -> None:
    """Pin a rank to core number `rank`, modulo the cores; its servers may still use all cores."""
    allowed = cores()
    os.environ[CORES] = ",".join(map(str, allowed))
    pin(allowed[rank % len(allowed)])


def keep_memory() -> bool:
    """Make this process keep the memory that it frees (glibc); returns whether it does.

    glibc gives large blocks back to the kernel as they are freed, so that each step of a training
    on a CPU faults its activations in again: on one virtual machine 4,000 page faults and 8 of
    48 ms a step, in some processes and not in others, depending on the layout of their heaps.
    PyTorch's tuning guide suggests other allocators against that; this needs none.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, 2**31 - 1))
