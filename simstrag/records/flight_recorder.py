"""The record of data-parallel ranks from dumps of torch's flight recorder, one file a rank.

Source of the format: version 2.10 of `torch._C._distributed_c10d._dump_fr_trace` and
`_dump_fr_trace_json` in torch 2.13.0, and version 2.4 in torch/csrc/distributed/c10d/
FlightRecorder.cpp @00f0e2f.  A dump lists collectives: group, number, sizes, when a thread of torch
noticed the start and the end, and `duration_ms` of the device with TORCH_NCCL_ENABLE_TIMING.

A dump has no steps.  The collectives of the group of all ranks repeat from step to step, so a step
is a period of them, which ends where the pause after it is longest.  All ranks leave a collective
together: a step lasts from one such end to the next, in the median of the ranks, and its computing
is what collectives leave of it.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from simstrag.errors import InputError
from simstrag.records.log_table import read_bytes, read_json, shorten
from simstrag.records.rank_seconds import absent_ranks
from simstrag.records.record import ALL_REDUCE, COMPUTE, Floats, Ints, Record, assumed_gpus

FORM = "flight recorder"
PICKLE, ENTRIES, HEAD = b"\x80", b'"entries"', 4096
LEAST = 3
"""Fewest periods by which a period is known."""
NANO, MILLI = 1e-9, 1e-3
KEYS = (
    "time_discovered_completed_ns", "time_discovered_started_ns", "duration_ms",
    "collective_seq_id",
)  # fmt: skip
"""Of an entry: when it ended and began, how long it took, and its number in its group."""


class _Rank(NamedTuple):
    """The collectives of one group on one rank, in order.

    number: in the group; what: name and sizes, the same on all ranks; exit, seconds: the end on
    the rank's clock and the duration.
    timed: whether durations are the device's.
    """

    number: Ints
    what: list[str]
    exit: Floats
    seconds: Floats
    timed: bool


def dump_files(folder: Path) -> list[Path]:
    """The files of a folder that begin like a dump, as a pickle or as JSON."""
    return sorted(path for path in folder.iterdir() if path.is_file() and _is_dump(path))


def read_dumps(folder: str | Path) -> Record:
    """The record of a folder of dumps, whose names end in the rank.

    Raises `InputError` for a file that is no dump, without durations or without a period.
    """
    dumps: dict[int, Any] = {}
    files: dict[int, Path] = {}
    for path in dump_files(Path(folder)):
        found = re.search(r"(\d{1,9})(\.\w+)?$", path.name)
        if found is None:
            raise InputError(f"{path}: the name of a dump ends in its rank, as nccl_trace_rank_0")
        rank = int(found.group(1))
        if rank in files:
            raise InputError(f"{path}: is of rank {rank}, like {files[rank]}; remove one")
        files[rank], dumps[rank] = path, _load(path)
    ranks = sorted(dumps)
    size, name, others = _common_group(dumps, folder)
    own = {rank: _collectives(dumps[rank], name, f"{folder}, rank {rank}") for rank in ranks}
    numbers = own[ranks[0]].number
    for rank in ranks[1:]:
        numbers = np.intersect1d(numbers, own[rank].number)
    chosen = {rank: np.isin(own[rank].number, numbers) for rank in ranks}
    exits = np.stack([own[rank].exit[chosen[rank]] for rank in ranks])
    seconds = np.stack([own[rank].seconds[chosen[rank]] for rank in ranks])
    what = [own[ranks[0]].what[k] for k in np.flatnonzero(chosen[ranks[0]])]
    period, begin = _period(what, folder)
    exits, seconds = exits[:, begin:], seconds[:, begin:]
    ends = _ends(exits, seconds, period)
    whole = np.median(np.diff(exits[:, ends]), axis=0)
    edges = np.cumsum(np.pad(seconds, ((0, 0), (1, 0))), axis=1)[:, ends + 1]
    communication = np.diff(edges).T
    computing = whole[:, None] - communication
    kept = np.all(computing > 0, axis=1)
    if kept.sum() < len(kept) / 2:
        raise InputError(
            f"{folder}: in most steps the collectives of a rank last as long as the step: they "
            "hide its computing, which a dump does not show; record with simstrag.ddp.record"
        )
    missing = absent_ranks(ranks, size)
    if others:
        missing.append(
            f"waiting in the collectives of {others} other groups counts as computing here"
        )
    if not kept.all():
        missing.append(f"steps without computing of a rank are left out: {np.sum(~kept)}")
    timed = all(each.timed for each in own.values())
    return Record.of_ranks(
        np.flatnonzero(kept), np.array(ranks),
        {COMPUTE: computing[kept], ALL_REDUCE: communication[kept]}, str(folder), FORM,
        step_seconds=whole[kept], missing=tuple(missing),
        notes=(
            f"Derived: a step is a period of {period} collectives; computing beside a collective "
            "counts as communication.",
            "Measured: durations of collectives on the device." if timed else
            "Measured: starts and ends of collectives when a thread of torch noticed them, which "
            "may be 0.1 s late; TORCH_NCCL_ENABLE_TIMING=1 measures durations.",
            assumed_gpus(len(ranks)),
        ),
    )  # fmt: skip


class _PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, text and numbers, and refuses anything that would run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a dump never does")


def _is_dump(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return False
    return head.startswith(PICKLE) or (head.lstrip().startswith(b"{") and ENTRIES in head)


def _load(path: Path) -> Any:
    data = read_bytes(path)
    if data.startswith(PICKLE):
        try:
            dump = _PlainUnpickler(io.BytesIO(data)).load()
        except Exception as error:  # of any kind, as damaged bytes may ask for anything
            why = shorten(str(error)) or type(error).__name__
            raise InputError(f"{path}: not a flight recorder dump: {why}") from None
    else:
        dump = read_json(path, "a flight recorder dump")
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise InputError(f"{path}: no list 'entries'; it is no flight recorder dump")
    return dump


def _common_group(dumps: dict[int, Any], folder: str | Path) -> tuple[int, str, int]:
    """The number of ranks of the job, its group with most collectives, and how many others."""
    groups = Counter[str]()
    for dump in dumps.values():
        groups.update(dict.fromkeys((_group(each) for each in dump["entries"]), 1))
    counts = Counter(_group(each) for dump in dumps.values() for each in dump["entries"])
    common = [name for name, files in groups.items() if files == len(dumps)]
    if not common:
        raise InputError(f"{folder}: no group has collectives in all {len(dumps)} dumps")
    name = max(common, key=lambda each: counts[each])
    configs = (dump.get("pg_config") for dump in dumps.values())
    members = [
        len(re.findall(r"\d+", str(group.get("ranks", ""))))
        for config in configs
        if isinstance(config, dict)
        for group in config.values()
        if isinstance(group, dict)
    ]
    return max(members, default=0), name, len(groups) - 1


def _group(entry: dict[str, Any]) -> str:
    name = entry.get("process_group")
    return str(name[0] if isinstance(name, list | tuple) and name else entry.get("pg_id"))


def _collectives(dump: Any, group: str, source: str) -> _Rank:
    rows: dict[int, tuple[str, float, float, bool]] = {}
    unfinished = 0
    for entry in dump["entries"]:
        if _group(entry) != group or entry.get("is_p2p"):
            continue
        ended, began, lasted, place = (_number(entry, key, source) for key in KEYS)
        if place is None or not ended or (lasted is None and not began):
            unfinished += 1
            continue
        took = (ended - (began or 0)) * NANO if lasted is None else lasted * MILLI
        call = f"{entry.get('profiling_name')} {entry.get('input_sizes')}"
        rows[int(place)] = call, ended * NANO, took, lasted is not None
    if not rows:
        raise InputError(
            f"{source}: {unfinished} collectives, none with the times of its start and end; set "
            "TORCH_NCCL_ENABLE_TIMING=1 (gloo's recorder has no times)"
        )
    number = np.array(sorted(rows))
    what, end, seconds, timed = zip(*(rows[k] for k in number.tolist()), strict=True)
    return _Rank(number, list(what), np.array(end), np.array(seconds), all(timed))


def _number(entry: dict[str, Any], key: str, source: str) -> float | None:
    """A number of an entry that is not negative; None where it has none."""
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise InputError(f"{source}: a collective has {key} {value!r:.80}, and no number from 0")
    return value


def _period(what: list[str], folder: str | Path) -> tuple[int, int]:
    """The fewest collectives after which the last half repeats, and from where on they do."""
    codes = np.unique(what, return_inverse=True)[1]
    for period in range(1, len(codes) // LEAST + 1):
        late = codes[-max(LEAST * period, len(codes) // 2) :]
        if np.array_equal(late[period:], late[:-period]):
            other = np.flatnonzero(codes[period:] != codes[:-period])
            return period, int(other[-1]) + 1 if len(other) else 0
    raise InputError(
        f"{folder}: {len(codes)} collectives that do not repeat {LEAST} times, so that steps are "
        "unknown; make the buffer longer with TORCH_FR_BUFFER_SIZE"
    )


def _ends(exits: Floats, seconds: Floats, period: int) -> Ints:
    """The last collective of each step: the longest pause follows it."""
    pauses = np.median((exits - seconds)[:, 1:] - exits[:, :-1], axis=0)
    phase = int(np.argmax([np.median(pauses[k::period]) for k in range(period)]))
    return np.arange(phase, exits.shape[1], period)
