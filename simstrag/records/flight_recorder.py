"""The record of data-parallel ranks from dumps of torch's flight recorder, one file a rank.

Source of the format: version 2.10 of `torch._C._distributed_c10d._dump_fr_trace` and
`_dump_fr_trace_json` in torch 2.13.0, and FlightRecorder.hpp @00f0e2f and FlightRecorderDetail.hpp
@1189309 in torch/csrc/distributed/c10d.  A dump lists collectives: group, number, sizes, state,
when a thread of torch noticed start and end, and `duration_ms` of the device with
TORCH_NCCL_ENABLE_TIMING.  `time_created_ns` is when the host enqueued a collective, often long
before the device is ready for it; it is not used for times.

A dump has no steps.  The collectives of the group of all ranks repeat from step to step, so a step
is a period of them, which ends where the pause after it is longest.  All ranks leave a collective
together, so the ranks' clocks agree there, and a rank enters a collective its duration before.

Where the second of two collectives is enqueued behind the first, as the buckets of DDP are, a rank
that waits in the first goes on computing.  It enters the second as soon as the first ends, however
long before it was ready.  Its computing is then that of the last rank to enter, times the ratio of
the two ranks' computing up to the last entry that shows it.  Where ranks compute between the
collectives instead, as the gaps after waiting show, the computing of each gap is added up.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.errors import InputError
from simstrag.records.hang import (
    BEGAN,
    CALL,
    ENDED,
    NANO,
    NUMBER,
    SIZES,
    DumpEntry,
    find_hang,
    group_of,
    members_of,
    moment,
)  # fmt: skip
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_table import shorten
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record, Unseen, assumed_gpus
from simstrag.records.steps import absent_ranks

NAME = "flight recorder"
PICKLE, ENTRIES = b"\x80", '"entries"'
LEAST = 3
"""Fewest periods by which a period is known."""
MILLI = 1e-3
LATE = 0.002
"""Seconds by which ends on several ranks differ, from which on they are noticed late, ASSUMED."""
BLOCK = 10
"""Steps of which the mean is taken then, ASSUMED: torch looks every .1 s."""
QUEUED = 0.001
"""Seconds after the end of a collective within which the next one was waiting for it, ASSUMED."""
SIGMAS = 5
"""Standard errors by which an entry that was noticed late must exceed that end."""
KEYS = (ENDED, BEGAN, "duration_ms", NUMBER)
"""Of an entry: when it ended and began, how long it took, and its number in its group."""


class _Rank(NamedTuple):
    """The collectives of one group on one rank, in order.

    number: in the group; what: name and sizes, the same on all ranks; exit, seconds: the end on
    the rank's clock and the duration.
    timed: whether durations are the device's.
    """

    number: Ints
    what: list[str]
    exit: Reals
    seconds: Reals
    timed: bool


def recognise(file: LogFile) -> bool:
    """Whether a file begins like a dump, as a pickle or as JSON."""
    if file.data.startswith(PICKLE):
        return True
    is_json = file.head.lstrip().startswith("{") and ENTRIES in file.head
    return is_json and any(f'"{key}"' in file.text for key in ("pg_config", "profiling_name"))


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record of the ranks whose dumps these are; their names end in the rank.

    Raises `InputError` for a file that is no dump, and, unless a hang is all that they show, for
    dumps without durations or without a period.
    """
    dumps: dict[int, Any] = {}
    named: dict[int, LogFile] = {}
    for file in files:
        found = re.search(r"(\d{1,9})(\.[a-z]+)*$", file.path.name)
        if found is None:
            raise InputError(
                f"{file.path}: the name of a dump ends in its rank, as nccl_trace_rank_0"
            )
        rank = int(found.group(1))
        if rank in named:
            raise InputError(f"{file.path}: is of rank {rank}, like {named[rank].path}; remove one")
        named[rank], dumps[rank] = file, _load(file)
    source = str(files[0].path.parent if len(files) > 1 else files[0].path)
    hang = find_hang(dumps)
    try:
        return replace(_record(dumps, source), hang=hang)
    except InputError:
        if not hang:
            raise
    return Record.without_steps(source, NAME, hang=hang)


READERS = (Reader(NAME, "dumps of torch's flight recorder", recognise, read, many=True),)


def _record(dumps: dict[int, Any], source: str) -> Record:
    ranks = sorted(dumps)
    size, name, others = _common_group(dumps, source)
    own = {rank: _collectives(dumps[rank], name, f"{source}, rank {rank}") for rank in ranks}
    numbers = own[ranks[0]].number
    for rank in ranks[1:]:
        numbers = np.intersect1d(numbers, own[rank].number)
    chosen = {rank: np.isin(own[rank].number, numbers) for rank in ranks}
    exits = np.stack([own[rank].exit[chosen[rank]] for rank in ranks])
    seconds = np.stack([own[rank].seconds[chosen[rank]] for rank in ranks])
    what = [own[ranks[0]].what[k] for k in np.flatnonzero(chosen[ranks[0]])]
    period, begin = _period(what, source)
    exits, seconds = exits[:, begin:], seconds[:, begin:]
    ends = _ends(exits, seconds, period)
    late = float(np.mean(np.std(np.diff(exits), axis=0))) if len(ranks) > 1 else 0.0
    block = min(BLOCK, max(1, (len(ends) - 1) // LEAST)) if late > LATE else 1
    inside = slice(ends[0] + 1, ends[-1] + 1)
    gaps = (np.mean if block > 1 else np.median)(np.diff(exits), axis=0)[ends[0] : ends[-1]]
    gap, lasted = (
        _means(values.reshape(-1, len(ends) - 1, period), block)
        for values in (gaps[None], seconds[:, inside])
    )
    computing, least = _computing(gap[0], lasted, max(QUEUED, SIGMAS * late / np.sqrt(block)))
    whole = gap[0].sum(axis=1)
    kept = np.all(computing > 0, axis=0)
    if kept.sum() < len(kept) / 2:
        raise InputError(
            f"{source}: in most steps the collectives of a rank last as long as the step: they "
            "hide its computing, which a dump does not show; record with simstrag.ddp.record"
        )
    missing, unseen = absent_ranks(ranks, size), []
    if missing or len(ranks) == 1:
        unseen.append(Unseen(
            "whether ranks without a dump were slower", "the dumps of all ranks, in one folder"
        ))  # fmt: skip
    if others:
        missing.append(
            f"waiting in the collectives of {others} other groups counts as computing here"
        )
    if not kept.all():
        missing.append(f"steps without computing of a rank are left out: {np.sum(~kept)}")
    notes = [
        f"Derived: a step is a period of {period} collectives, and a rank's computing lasts until "
        "it enters the last.",
        "Measured: durations of collectives on the device."
        if all(each.timed for each in own.values())
        else "Measured: starts and ends of collectives when a thread of torch noticed them, which "
        "may be 0.1 s late; TORCH_NCCL_ENABLE_TIMING=1 measures durations.",
        assumed_gpus(len(ranks)),
    ]
    if block > 1:
        notes.append(
            f"Derived: a step here is the mean of {block} steps, as ends were noticed at times "
            f"that differ by {late:.3f} s between ranks."
        )
    if np.any(computing > least):
        notes.append(
            "Assumed: what a rank computed behind a bucket that waited for others is as much "
            "shorter than the last rank's as its computing before."
        )
        own = computing.mean(axis=1)
        slow = int(np.argmax(own))
        usual, seen = (float(np.median(np.delete(v, slow))) for v in (own, least.mean(axis=1)))
        unseen.append(Unseen(
            "what fast ranks computed behind a bucket that waited: computing takes rank "
            f"{ranks[slow]} {own[slow] / usual:.2f} times as long if all of it is slowed alike, "
            f"and up to {own[slow] / seen:.2f} times if some, such as the optimizer, is not",
            "a PyTorch profile of that rank and another",
            hides_ranks=False,
        ))  # fmt: skip
    begin_of = exits[0, ends[:-1]][::block][: len(kept)][kept]
    return Record.of_ranks(
        np.flatnonzero(kept) * block, np.array(ranks),
        {COMPUTE: computing.T[kept], ALL_REDUCE: whole[kept, None] - computing.T[kept]}, source,
        NAME, step_seconds=whole[kept], missing=tuple(missing), notes=tuple(notes),
        unseen=tuple(unseen), began=moment(begin_of[0]),
        time=np.repeat(begin_of - begin_of[0], 2 * len(ranks)),
    )  # fmt: skip


def _means(values: Reals, block: int) -> Reals:
    """The means of blocks of steps, of an array (ranks, steps, collectives)."""
    ranks, steps, period = values.shape
    whole = steps // block * block
    return np.asarray(values[:, :whole].reshape(ranks, -1, block, period).mean(axis=2))


def _computing(gap: Reals, lasted: Reals, near: float) -> tuple[Reals, Reals]:
    """Seconds that each rank computes in each step, shape (ranks, steps), and the least of them.

    gap: from the end of the collective before to that of each, shape (steps, collectives).
    lasted: duration of each collective on each rank, shape (ranks, steps, collectives).
    near: seconds from the end before within which an entry says that the collective had waited.
    """
    pause = np.maximum(gap - lasted, 0)
    last = np.argmin(lasted, axis=0)[None]

    def of_last(values: Reals) -> Reals:
        return np.take_along_axis(values, last[..., 1:], axis=0)

    first = np.broadcast_to(pause[..., :1], pause[..., 1:].shape)
    ratio = first / np.maximum(of_last(first), near)
    beside = (of_last(pause[..., 1:]) + of_last(lasted[..., :-1])) * ratio - lasted[..., :-1]
    misses, misses_beside = (
        np.abs(pause[..., 1:] - expected).sum(axis=(0, 1))
        for expected in (of_last(pause[..., 1:]) * ratio, np.maximum(beside, 0))
    )
    opens = np.flatnonzero(np.append(True, misses < misses_beside)).tolist()
    phases = zip(opens, [*opens[1:], gap.shape[1]], strict=True)
    found = [_ready(gap[:, k:end], pause[..., k:end], near) for k, end in phases]
    computing, least = (np.sum(values, axis=0) for values in zip(*found, strict=True))
    return computing, least


def _ready(gap: Reals, pause: Reals, near: float) -> tuple[Reals, Reals]:
    """Seconds until each rank is ready for the last of collectives that are enqueued together.

    pause: from the end of the collective before to the entry, shape (ranks, steps, collectives).
    The second value is the least that it can be: up to the last entry that did not wait.
    """
    free = np.cumsum(gap, axis=1) - gap
    entry = free + pause
    place = np.arange(gap.shape[1])
    shows = (pause > near) | (place == 0)
    own = np.max(np.where(shows, place, 0), axis=2)
    last = own.max(axis=0)

    def at(values: Reals, chosen: Ints) -> Reals:
        return np.take_along_axis(values, chosen[..., None], axis=-1)[..., 0]

    seen = at(entry, own)
    final = np.where(own == last, seen, -np.inf)
    slowest = np.argmax(final, axis=0)[None, :, None]
    of_slowest = np.take_along_axis(entry, slowest, axis=0)[0]
    ratio = seen / np.maximum(at(np.broadcast_to(of_slowest, entry.shape), own), near)
    inferred = np.clip(final.max(axis=0) * ratio, seen, np.maximum(at(free, last), seen))
    return np.where(own == last, seen, inferred), seen


class _PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, text and numbers, and refuses anything that would run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a dump never does")


def _load(file: LogFile) -> Any:
    if file.data.startswith(PICKLE):
        try:
            dump = _PlainUnpickler(io.BytesIO(file.data)).load()
        except Exception as error:  # of any kind, as damaged bytes may ask for anything
            why = shorten(str(error)) or type(error).__name__
            raise InputError(f"{file.path}: not a flight recorder dump: {why}") from None
    else:
        dump = file.document
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise InputError(f"{file.path}: no list 'entries'; it is no flight recorder dump")
    return dump


def _common_group(dumps: dict[int, Any], source: str) -> tuple[int, str, int]:
    """The number of ranks of the job, its group with most collectives, and how many others."""
    groups = Counter[str]()
    for dump in dumps.values():
        groups.update(dict.fromkeys((group_of(each) for each in dump["entries"]), 1))
    counts = Counter(group_of(each) for dump in dumps.values() for each in dump["entries"])
    common = [name for name, files in groups.items() if files == len(dumps)]
    if not common:
        raise InputError(f"{source}: no group has collectives in all {len(dumps)} dumps")
    name = max(common, key=lambda each: counts[each])
    size = max(map(len, members_of(dumps.values()).values()), default=0)
    return size, name, len(groups) - 1


def _collectives(dump: Any, group: str, source: str) -> _Rank:
    rows: dict[int, tuple[str, float, float, bool]] = {}
    unfinished = 0
    for entry in dump["entries"]:
        if group_of(entry) != group or entry.get("is_p2p"):
            continue
        ended, began, lasted, place = (_number(entry, key, source) for key in KEYS)
        if place is None or not ended or (lasted is None and not began):
            unfinished += 1
            continue
        took = (ended - (began or 0)) * NANO if lasted is None else lasted * MILLI
        rows[int(place)] = (
            f"{entry.get(CALL)} {entry.get(SIZES)}", ended * NANO, took, lasted is not None
        )  # fmt: skip
    if not rows:
        raise InputError(
            f"{source}: {unfinished} collectives, none with the times of its start and end; set "
            "TORCH_NCCL_ENABLE_TIMING=1 (gloo's recorder has no times)"
        )
    number = np.array(sorted(rows))
    what, end, seconds, timed = zip(*(rows[k] for k in number.tolist()), strict=True)
    return _Rank(number, list(what), np.array(end), np.array(seconds), all(timed))


def _number(entry: DumpEntry, key: str, source: str) -> float | None:
    """A number of an entry that is not negative; None where it has none."""
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise InputError(f"{source}: a collective has {key} {value!r:.80}, and no number from 0")
    return value


def _period(what: list[str], source: str) -> tuple[int, int]:
    """The fewest collectives after which the last half repeats, and from where on they do."""
    codes = np.unique(what, return_inverse=True)[1]
    for period in range(1, len(codes) // LEAST + 1):
        late = codes[-max(LEAST * period, len(codes) // 2) :]
        if np.array_equal(late[period:], late[:-period]):
            other = np.flatnonzero(codes[period:] != codes[:-period])
            return period, int(other[-1]) + 1 if len(other) else 0
    raise InputError(
        f"{source}: {len(codes)} collectives that do not repeat {LEAST} times, so that steps are "
        "unknown; make the buffer longer with TORCH_FR_BUFFER_SIZE"
    )


def _ends(exits: Reals, seconds: Reals, period: int) -> Ints:
    """The last collective of each step: the longest pause follows it."""
    pauses = np.median((exits - seconds)[:, 1:] - exits[:, :-1], axis=0)
    phase = int(np.argmax([np.mean(pauses[k::period]) for k in range(period)]))
    return np.arange(phase, exits.shape[1], period)
