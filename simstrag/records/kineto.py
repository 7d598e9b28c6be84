"""Local step times from the Chrome traces of PyTorch's profiler, one file per rank.

Source of the format: `torch.profiler.profile.export_chrome_trace` (Kineto).  `profile.step()` makes
its annotations `ProfilerStep#k`, and `distributedInfo` names the rank.

A synchronous step takes equally long on all ranks, because each waits inside the collectives for
the others.  A *local* time is the span of the step, less the time in which a collective was under
way and nothing was computed.  On a GPU collectives are the kernels with `nccl` or `rccl` in their
names, computing is all other kernels and copies, and a step lasts from its first kernel to the
first of the next step.  Without kernels collectives are annotations such as `gloo:...`, computing
is the `aten::...` operators, and a step is its annotation on the host.

The record does not separate transfer in a collective from waiting; both are taken out.  The last
rank to arrive waits least, so its collectives are almost only transfer.  The cost of communication
is therefore the median over steps of the least such time among the ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError
from simstrag.records.log_table import read_json

STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
COLLECTIVE_KERNEL = re.compile("nccl|rccl", re.IGNORECASE)
COLLECTIVE_CALL = re.compile(r"(gloo|nccl|mpi|ucc|xccl):")
DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
ON_DEVICE = "gpu_user_annotation"
MICRO = 1e-6
Floats = npt.NDArray[np.float64]


class RankSteps(NamedTuple):
    """The steps of one rank: number, start, span and exposed communication, in seconds.

    exposed: time of a span in which collectives were under way and nothing was computed.
    exit: end of the last collective in the step, on the rank's own clock; NaN without one.
    """

    number: npt.NDArray[np.int64]
    start: Floats
    span: Floats
    exposed: Floats
    exit: Floats

    def select(self, kept: npt.NDArray[np.bool_]) -> RankSteps:
        """Some of the steps."""
        number, *seconds = self
        return RankSteps(number[kept], *(column[kept] for column in seconds))


class ProfiledRank(NamedTuple):
    """What a file of the profiler says of its rank, each None where it does not, and its steps."""

    rank: int | None
    world_size: int | None
    steps: RankSteps


def read_rank(path: str | Path) -> ProfiledRank:
    """The rank of one file. Raises `InputError` for a file that is no profile or has no steps."""
    data = _read(path)
    about = data.get("distributedInfo")
    size = about.get("world_size") if isinstance(about, dict) else None
    steps = steps_of(data["traceEvents"], str(path))
    return ProfiledRank(_rank_of(data, path), size if type(size) is int else None, steps)


def _read(path: str | Path) -> dict[str, Any]:
    data = read_json(path, "a PyTorch profile")
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise InputError(
            f"{path}: no list 'traceEvents'; it is not what `export_chrome_trace` writes"
        )
    return data


def _rank_of(data: dict[str, Any], path: str | Path) -> int | None:
    """The rank that a profile names, if it does."""
    about = data.get("distributedInfo") or {}
    rank = about.get("rank") if isinstance(about, dict) else about
    if rank is not None and (type(rank) is not int or not 0 <= rank < 2**31):
        raise InputError(f"{path}: distributedInfo.rank is {rank!r:.80}, and no rank")
    return rank


def steps_of(events: Sequence[dict[str, Any]], source: str = "trace") -> RankSteps:
    """The steps in the events of one rank.

    `profile.step()` opens one more step at the end of a loop; it is left out if nothing was
    computed in it.  Raises `InputError` for events without steps.

    >>> step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 0, "dur": 9e6}
    >>> work = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1e6, "dur": 4e6}
    >>> wait = {"ph": "X", "cat": "kernel", "name": "ncclAllReduce", "ts": 4e6, "dur": 3e6}
    >>> steps_of([step, work, wait]).exposed
    array([2.])
    """
    steps: dict[bool, dict[int, tuple[float, float]]] = {False: {}, True: {}}
    kernels: tuple[list[tuple[float, float]], ...] = ([], [])
    calls: tuple[list[tuple[float, float]], ...] = ([], [])
    for k, event in enumerate(events, start=1):
        if not isinstance(event, dict):
            raise InputError(f"{source}, event {k}: {event!r:.80} is no mapping")
        if event.get("ph") != "X" or "dur" not in event:
            continue
        kind, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        start, length = (_microseconds(event.get(key)) for key in ("ts", "dur"))
        if not (math.isfinite(start) and 0 <= length < math.inf):
            raise InputError(f"{source}, event {k}: its ts or dur is no time in microseconds")
        span = start, start + length
        step = STEP.match(name)
        if step is not None:
            steps[kind == ON_DEVICE][int(step.group(1))] = span
        elif kind in DEVICE:
            kernels[COLLECTIVE_KERNEL.search(name) is None].append(span)
        elif COLLECTIVE_CALL.match(name) and kind != ON_DEVICE:
            calls[0].append(span)
        elif name.startswith("aten::"):
            calls[1].append(span)
    host, device = steps[False], steps[True]
    if not host:
        raise InputError(
            f"{source}: no annotation ProfilerStep#k; give the profiler a schedule, and call its "
            "step() after every step"
        )
    collective, computing = kernels if kernels[0] or kernels[1] else calls
    numbers = sorted(host)
    windows = _windows([device[k] for k in numbers]) if host.keys() == device.keys() else (
        np.array([host[k] for k in numbers]).T
    )  # fmt: skip
    busy = _covered(computing, windows)
    exposed = _covered([*computing, *collective], windows) - busy
    kept = np.ones(len(numbers), np.bool_)
    kept[-1] = busy[-1] > 0 or len(numbers) == 1
    start, end = windows
    exits = _last_ends(collective, windows)
    return RankSteps(
        np.array(numbers)[kept], start[kept], (end - start)[kept], exposed[kept], exits[kept]
    )


def _microseconds(value: Any) -> float:
    """Seconds of a number of microseconds; NaN for anything else."""
    try:
        return float(value) * MICRO
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _windows(spans: Sequence[tuple[float, float]]) -> Floats:
    """Starts and ends of steps on the device, each up to the beginning of the next."""
    start, end = np.array(spans).T
    return np.array([start, np.append(start[1:], end[-1])])


def _last_ends(spans: Sequence[tuple[float, float]], windows: Floats) -> Floats:
    """The latest end of a span in each window (starts, ends); NaN where none ends in it."""
    ends = np.sort([end for _, end in spans])
    before = np.searchsorted(ends, windows[1], side="right")
    found = before > np.searchsorted(ends, windows[0], side="right")
    return np.where(found, np.append(ends, np.nan)[before - 1], np.nan)


def _covered(spans: Sequence[tuple[float, float]], windows: Floats) -> Floats:
    """Seconds of each window (starts, ends) that at least one span covers."""
    if not spans:
        return np.zeros(windows.shape[1])
    start, end = np.array(sorted(spans)).T
    until = np.maximum.accumulate(end)
    apart = start[1:] > until[:-1]
    begin, finish = start[np.append(True, apart)], until[np.append(apart, True)]
    before = np.append(0.0, np.cumsum(finish - begin))
    edges = np.stack([begin, finish], axis=1).ravel()
    passed = np.stack([before[:-1], before[1:]], axis=1).ravel()
    first, last = (np.interp(at, edges, passed) for at in windows)
    return np.asarray(last - first)
