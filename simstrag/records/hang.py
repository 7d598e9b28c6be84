"""What the ranks of a job that stopped wait for, from dumps of torch's flight recorder.

Collectives of a group are numbered alike on all its ranks.  The first that has not ended says who
waits, and who never came, came with another call, or left no dump.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from simstrag.records.log_table import shorten

NUMBER, CALL, SIZES = "collective_seq_id", "profiling_name", "input_sizes"
CREATED, BEGAN, ENDED = (
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns",
)  # fmt: skip
"""Of an entry: its number in its group, what it does, and when in nanoseconds since 1970."""
NANO = 1e-9
NAMED = 8
"""Most ranks that a sentence names."""
SAME_SIZES = re.compile(r"all_?reduce|all_?gather|reduce_scatter|broadcast|barrier", re.IGNORECASE)
"""Collectives to which all ranks give equal sizes."""
DumpEntry = dict[str, Any]


def find_hang(dumps: dict[int, Any]) -> str:
    """What the ranks of a group wait for, in a sentence; empty where they wait for nothing.

    Of several groups that wait, the one that began first.
    """
    members, found = members_of(dumps.values()), []
    groups: dict[str, dict[int, dict[int, DumpEntry]]] = {}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            number = entry.get(NUMBER)
            if isinstance(number, int) and not entry.get("is_p2p"):
                groups.setdefault(group_of(entry), {}).setdefault(rank, {})[number] = entry
    for group, own in groups.items():
        known = members.get(group) or [*own]
        waiting = _waiting({k: own.get(k, {} if k in dumps else None) for k in known})
        found += [waiting] if waiting else []
    return min(found, default=(0.0, ""))[1]


def _waiting(own: Mapping[int, Mapping[int, DumpEntry] | None]) -> tuple[float, str] | None:
    """Since when ranks wait in the first collective of a group that has not ended, and what for.

    own: the collectives of each rank by number; None without a dump.
    """
    last = {rank: max(each, default=-1) for rank, each in own.items() if each is not None}
    entries = [(n, e) for each in own.values() for n, e in (each or {}).items()]
    left = {n for n, entry in entries if _is_done(entry)}  # where a rank was through already
    number = min((n for n, _ in entries if n not in left), default=None)
    if number is None:
        return None
    there = {rank: each[number] for rank, each in own.items() if each and number in each}
    absent = [rank for rank, end in last.items() if end < number]
    begun = {rank: entry for rank, entry in there.items() if _since(entry, BEGAN)}
    queued = [rank for rank in there if rank not in begun]
    unknown = [rank for rank, each in own.items() if each is None]
    odd = _odd_ones(there)
    waiting = begun or there
    since = min(_since(entry, BEGAN) or _since(entry, CREATED) for entry in waiting.values())
    sample = next(entry for rank, entry in there.items() if rank not in odd)
    call = f"collective {number} ({_call(sample)}) of group {_title(sample)}"
    if odd:
        why = f"{_listed([*odd])} called {_call(there[odd[0]])} where others called {call}"
    elif absent:
        why = f"{_listed(absent)} did not enter {call}"
    elif begun and queued:
        why = f"{_listed(queued)} enqueued {call}, but the device did not come to it"
    elif unknown:
        why = f"{call} did not end, and of {_listed(unknown)} there is no dump"
    elif begun:
        why = f"all ranks are in {call}, and it does not end: look at the network"
    else:
        return None
    who = f"{_listed([*waiting])} wait{'s' if len(waiting) == 1 else ''} in it"
    parts = [f"{why}; {who}", *([f"since {moment(since * NANO)}"] if since else [])]
    if any(entry.get("retired") for entry in waiting.values()):
        parts.append("until the timeout")
    lacking = f"; of {_listed(unknown)} there is no dump" if unknown and (odd or absent) else ""
    return since, " ".join(parts) + lacking


def moment(seconds: float) -> str:
    """A time from 1970 in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _odd_ones(there: Mapping[int, DumpEntry]) -> list[int]:
    """The ranks that call something else, or with other sizes, than most ranks do."""
    calls = {
        rank: (str(e.get(CALL)), str(e.get(SIZES)) if SAME_SIZES.search(str(e.get(CALL))) else "")
        for rank, e in there.items()
    }
    usual = Counter(calls.values()).most_common(1)[0][0]
    return [rank for rank, call in calls.items() if call != usual]


def _is_done(entry: DumpEntry) -> bool:
    return entry.get("state") == "completed" or bool(entry.get(ENDED))


def _since(entry: DumpEntry, key: str) -> float:
    """A time of an entry; 0 where it has none."""
    value = entry.get(key)
    return value if isinstance(value, int | float) and 0 < value < 2**63 else 0.0


def _call(entry: DumpEntry) -> str:
    return shorten(f"{entry.get(CALL)} of {entry.get(SIZES)}")


def _title(entry: DumpEntry) -> str:
    name = entry.get("process_group")
    return shorten(str(name[-1] if isinstance(name, list | tuple) and name else group_of(entry)))


def _listed(ranks: Sequence[int]) -> str:
    """Ranks in words, at most eight of them."""
    named = ", ".join(map(str, sorted(ranks)[:NAMED])) + (", ..." if len(ranks) > NAMED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {named}"


def members_of(dumps: Iterable[Any]) -> dict[str, list[int]]:
    """The ranks of each group, as far as dumps say it."""
    found = {}
    for config in (dump.get("pg_config") for dump in dumps):
        for key, group in config.items() if isinstance(config, dict) else ():
            if isinstance(group, dict):
                found[str(group.get("name", key))] = [
                    int(digits) for digits in re.findall(r"\d{1,9}", str(group.get("ranks", "")))
                ]
    return found


def group_of(entry: DumpEntry) -> str:
    """The name of the group of an entry."""
    name = entry.get("process_group")
    return str(name[0] if isinstance(name, list | tuple) and name else entry.get("pg_id"))
