"""The record of data-parallel ranks from PyTorch profiles (Chrome traces), one file a rank.

Source of the format: `torch.profiler.profile.export_chrome_trace` (Kineto).  `profile.step()` makes
its annotations `ProfilerStep#k`, and `distributedInfo` names the rank.

A synchronous step takes equally long on all ranks, because each waits inside the collectives for
the others.  So a rank's own time is the span of the step, less the time in which a collective was
under way and nothing was computed.  On a device, collectives are the kernels that name one, and
computing is all other kernels and copies; a step lasts from its first kernel to the first of the
next step.  Without kernels collectives are annotations such as `gloo:...`, computing is the
`aten::...` operators, and a step is its annotation on the host.

All ranks leave a collective together: a step is counted on each rank's own clock, and the ends of
collectives show how far clocks are apart.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simstrag.arrays import Bools, Ints, Reals
from simstrag.errors import InputError
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record, Unseen, assumed_gpus
from simstrag.records.steps import absent_ranks

NAME = "PyTorch profiles"
EVENTS = "traceEvents"
APART = 0.010
"""Seconds from which clocks are said to be apart."""
STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
COLLECTIVE = re.compile(
    r"(?i:nccl|rccl|(?<![a-z])([a-np-z]|ms|one)?ccl|(?<![a-z])(ucc|hcom|nvshmem)|cross_device_reduce)"
    r"|(?<![Ww]arp)(?<![Bb]lock)(?<![Ww]arp_)(?<![Bb]lock_)"
    r"(((?<![A-Za-z])all|All|ALL)_?(?i:reduce|gather|to_?all)"
    r"|((?<![A-Za-z])reduce|Reduce|REDUCE)_?(?i:scatter))"
)
"""Names of kernels: of a library (NCCL, RCCL, oneCCL, HCCL, MSCCL++, UCC), or of what one does.

What the threads of a block or warp reduce together stays on the device.
"""
COMPUTED = re.compile(r"triton_[a-z]+_fused_")
"""Kernels of torch.compile bear the names of all operators that they fuse, collectives too."""
DOES = "Collective name"
"""What Kineto says of a kernel or call that is a collective."""
CALL = re.compile(r"(gloo|mpi|ucc|\w?ccl):|record_param_comms$|c10d::(_?all|_?reduce|broadcast)")
DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "communication"})
ON_DEVICE = "gpu_user_annotation"
MICRO = 1e-6
TimeSpans = list[tuple[float, float]]


class RankSteps(NamedTuple):
    """The steps of one rank: number, start, span and exposed communication, in seconds.

    exposed: time of a span in which collectives were under way and nothing was computed.
    exit: end of the last collective in the step, on the rank's own clock; NaN without one.
    """

    number: Ints
    start: Reals
    span: Reals
    exposed: Reals
    exit: Reals

    def select(self, kept: Bools) -> RankSteps:
        """The steps for which `kept` is true."""
        number, *seconds = self
        return RankSteps(number[kept], *(column[kept] for column in seconds))


class JobProfile(NamedTuple):
    """The steps that all profiled ranks have.

    ranks: in order; files: of each rank; number: of the steps.
    start, span, exposed, exit: see `RankSteps`, shape (steps, ranks).
    size: number of ranks of the job, 0 where no file says it.
    unnamed: files that name no rank; dropped: steps of ranks that not all have.
    """

    ranks: list[int]
    files: list[LogFile]
    number: Ints
    start: Reals
    span: Reals
    exposed: Reals
    exit: Reals
    size: int
    unnamed: int
    dropped: int


def recognise(file: LogFile) -> bool:
    """Whether a file is a Chrome trace."""
    text = file.text if file.head.lstrip().startswith("{") else ""
    return f'"{EVENTS}"' in text and isinstance(file.document, dict)


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record of the ranks whose profiles these are.

    Raises `InputError` for an empty file, one that is no profile, and two of one rank.
    """
    job = read_ranks(files)
    source = str(files[0].path.parent if len(files) > 1 else files[0].path)
    missing, unseen = absent_ranks(job.ranks, job.size), []
    parts = {COMPUTE: job.span - job.exposed, ALL_REDUCE: job.exposed}
    if is_blind := not job.exposed.any():
        del parts[ALL_REDUCE]
        unseen.append(Unseen(
            "which rank waited: no collective is in the profiles, which do not show "
            "waiting, which the seconds may contain",
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] in torch.profiler.profile",
        ))  # fmt: skip
    if missing or len(job.ranks) == 1:
        unseen.append(Unseen(
            "whether ranks without a profile were slower",
            "export_chrome_trace(f'rank{rank}.json') on every rank",
        ))  # fmt: skip
    if job.dropped:
        missing.append(f"steps that not all files have are left out: {job.dropped}")
    notes = [
        "Derived: computing is the span of a step less the time in which only collectives ran.",
        *_clocks(job),
        assumed_gpus(len(job.ranks)),
    ]
    if job.unnamed:
        notes.append(f"Assumed: {job.unnamed} files name no rank; their order is it.")
    return Record.of_ranks(
        job.number, np.array(job.ranks), parts, source, NAME, missing=tuple(missing),
        notes=tuple(notes), unseen=tuple(unseen), is_timed=not is_blind,
    )  # fmt: skip


READERS = (Reader(NAME, "Chrome traces of torch.profiler", recognise, read, many=True),)


def read_ranks(files: Sequence[LogFile]) -> JobProfile:
    """The steps of all ranks. A file states its rank; otherwise its place among the files is it.

    Raises `InputError` as `read` does.
    """
    found: dict[int, tuple[LogFile, RankSteps]] = {}
    unnamed = size = 0
    for place, file in enumerate(files):
        data = _read(file)
        about = data.get("distributedInfo")
        about = about if isinstance(about, dict) else {"rank": about}
        rank, ranks = about.get("rank"), about.get("world_size")
        if rank is not None and (type(rank) is not int or not 0 <= rank < 2**31):
            raise InputError(f"{file.path}: distributedInfo.rank is {rank!r:.80}, and no rank")
        size = max(size, ranks) if type(ranks) is int else size
        unnamed += rank is None
        rank = place if rank is None else rank
        if rank in found:
            raise InputError(
                f"{file.path}: is of rank {rank}, like {found[rank][0].path}; remove one, and give "
                "one file for each rank"
            )
        found[rank] = file, steps_of(data[EVENTS], str(file.path))
    ranks = sorted(found)
    own, steps = zip(*(found[rank] for rank in ranks), strict=True)
    common = functools.reduce(np.intersect1d, [each.number for each in steps])
    if not len(common):
        raise InputError(f"{own[0].path}: no step number is in all {len(files)} files")
    taken = [each.select(np.isin(each.number, common)) for each in steps]
    _, start, span, exposed, exits = (np.array(values).T for values in zip(*taken, strict=True))
    dropped = sum(len(each.number) - len(common) for each in steps)
    number = common.astype(np.int64)
    job = JobProfile(
        ranks, list(own), number, start, span, exposed, exits, size, unnamed, dropped
    )  # fmt: skip
    idle = np.argwhere(job.span - job.exposed <= 0)
    if len(idle):
        k, place = idle[0]
        raise InputError(
            f"{own[place].path}: rank {ranks[place]} computed for no time in step {common[k]}; was "
            "the device recorded at all?"
        )
    return job


def _read(file: LogFile) -> dict[str, Any]:
    if not file.data:
        raise InputError(f"{file.path}: is empty; record the rank again, or remove the file")
    data = file.document
    if data is None:
        raise InputError(
            f"{file.path}: not a PyTorch profile (JSON): it is damaged, cut off or something else"
        )
    if not isinstance(data, dict) or not isinstance(data.get(EVENTS), list):
        raise InputError(
            f"{file.path}: no list '{EVENTS}'; it is not what `export_chrome_trace` writes"
        )
    return data


def is_collective(name: str, arguments: Any = None) -> bool:
    """Whether a kernel moves data between ranks, by its name or by what Kineto says of it.

    >>> [is_collective(name) for name in ("hcom_allReduce__1", "void cclKernel", "reduce_kernel")]
    [True, True, False]
    """
    if isinstance(arguments, dict) and arguments.get(DOES):
        return True
    return COLLECTIVE.search(name) is not None and not COMPUTED.match(name)


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
    kernels: tuple[TimeSpans, TimeSpans] = ([], [])
    calls: tuple[TimeSpans, TimeSpans] = ([], [])
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
            moves = kind == "communication" or is_collective(name, event.get("args"))
            kernels[not moves].append(span)
        elif CALL.match(name) and kind != ON_DEVICE:
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


def _windows(spans: TimeSpans) -> Reals:
    """Starts and ends of steps on the device, each up to the beginning of the next."""
    start, end = np.array(spans).T
    return np.array([start, np.append(start[1:], end[-1])])


def _last_ends(spans: TimeSpans, windows: Reals) -> Reals:
    """The latest end of a span in each window (starts, ends); NaN where none ends in it."""
    ends = np.sort([end for _, end in spans])
    before = np.searchsorted(ends, windows[1], side="right")
    found = before > np.searchsorted(ends, windows[0], side="right")
    return np.where(found, np.append(ends, np.nan)[before - 1], np.nan)


def _covered(spans: TimeSpans, windows: Reals) -> Reals:
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


def _clocks(job: JobProfile) -> list[str]:
    """How far clocks are apart at the ends of collectives, in one line."""
    lines = []
    for rank, own in zip(job.ranks, (job.exit - job.exit[:, :1]).T, strict=True):
        known = own[np.isfinite(own)]
        if len(known) and abs(offset := float(np.median(known))) > APART:
            ahead = "ahead of" if offset > 0 else "behind"
            lines.append(f"rank {rank} {abs(offset):.3f} s {ahead}")
    if not lines:
        return []
    return [
        f"Derived: at the ends of collectives, clocks are {', '.join(lines)} rank {job.ranks[0]}; "
        "steps are aligned there."
    ]
