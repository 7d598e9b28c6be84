"""The formats of logs by the names of their columns, and what each column is.

Sources of the known names: `DCGM_FI_DEV_GPU_UTIL` of NVIDIA's dcgm-exporter, `utilization.gpu [%]`
of `nvidia-smi --query-gpu=timestamp,utilization.gpu --format=csv`, `_timestamp` and `_step` of
Weights & Biases, `Wall time`, `Step` and `Value` of TensorBoard, and what training loops print.
Case and punctuation do not matter; a time may end in its unit, such as `step_time_ms`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

LOADED = ("gpu", "host", "net")
MEANINGS = {
    "episodes": ("start", "end", "rank", "node", "factor", "note"),
    "utilisation": ("time", *LOADED, "node", "card"),
    "steps": ("compute", "communication", "seconds", "step", "rank", "node", "card", "time"),
}
"""What a column of each format may be; where a name fits several, the first counts."""
NEEDED = {
    "episodes": ("start", "end", "node/rank"),
    "utilisation": ("node", "time", "/".join(LOADED)),
    "steps": ("compute/seconds", "step/time", "step/rank/node"),
}
"""The columns by which a format is recognised; with slashes, one of several."""
ALIASES: dict[str, tuple[str, ...]] = {
    "node": (
        "node", "hostname", "nodename", "host", "machine", "server", "instance", "worker",
        "workername", "runname", "knoten", "rechner",
    ),
    "rank": ("rank", "globalrank", "dprank", "workerrank", "rankid", "rang"),
    "card": ("card", "gpuid", "gpuindex", "index", "device", "minornumber", "gpu"),
    "time": (
        "time", "timestamp", "walltime", "date", "datetime", "start", "starttime", "begin", "ts",
        "when", "seconds", "zeit", "zeitpunkt", "zeitstempel", "datum",
    ),
    "start": ("start", "starttime", "startedat", "startsat", "begin", "from", "beginn", "von"),
    "end": ("end", "endtime", "endedat", "endsat", "stop", "finish", "until", "to", "ende", "bis"),
    "step": ("step", "globalstep", "iteration", "iter", "stepnumber", "batchidx", "schritt"),
    "compute": ("compute", "computetime", "localtime", "forwardbackward", "fwdbwd"),
    "seconds": (
        "steptime", "stepduration", "iterationtime", "itertime", "batchtime", "duration",
        "seconds", "secs", "elapsed", "dauer", "schrittdauer",
    ),
    "communication": (
        "communication", "comm", "commtime", "communicationtime", "allreduce", "allreducetime",
        "sync", "synctime", "gradsync",
    ),
    "factor": ("factor", "slowdown", "severity", "timesslower", "multiplier"),
    "note": ("note", "notes", "comment", "description", "summary", "reason", "message"),
    "gpu": (
        "gpuutil", "gpuutilization", "utilizationgpu", "dcgmfidevgpuutil",
        "dcgmfiprofgrengineactive", "gpuload", "gpubusy", "gpu", "gpuauslastung",
    ),
    "host": (
        "cpuutil", "cpuutilization", "utilizationcpu", "cpuusage", "cpupercent", "cpuload",
        "cpubusy", "cpu", "cpuauslastung",
    ),
    "net": (
        "netutil", "netutilization", "networkutil", "networkutilization", "nicutil",
        "nicutilization", "network", "net", "nic",
    ),
}  # fmt: skip
"""Known names of columns, in small letters and digits only, the surest first."""
SHARES = frozenset({"dcgmfiprofgrengineactive"})
"""Names of utilisations that are 0 to 1; others are percent."""
UNITS = {
    "milliseconds": 1e-3, "millis": 1e-3, "msec": 1e-3, "ms": 1e-3, "microseconds": 1e-6,
    "usec": 1e-6, "us": 1e-6, "nanoseconds": 1e-9, "ns": 1e-9, "seconds": 1.0, "secs": 1.0,
    "sec": 1.0, "s": 1.0,
}  # fmt: skip
"""Seconds of each unit with which the name of a time may end."""
LONGEST = 40
"""Most letters of a column that a message proposes."""
NEAR = 0.75
"""Least similarity of a name that is taken to be misspelt, from 0 to 1."""
TIMED = frozenset({"time", "start", "end", "compute", "seconds", "communication"})


def plain(name: str) -> str:
    """A name in small letters and digits only, in one spelling.

    >>> plain("utilization.gpu [%]"), plain("cpu_utilisation")
    ('utilizationgpu', 'cpuutilization')
    """
    return re.sub(r"[^a-z0-9]", "", name.lower()).replace("utilisation", "utilization")


def match(name: str, meaning: str) -> tuple[int, float] | None:
    """The place of a column's name among those of a meaning, and its unit; None for any other.

    >>> match("Step time (ms)", "seconds"), match("step", "seconds")
    ((0, 0.001), None)
    """
    known, letters = ALIASES[meaning], plain(name)
    if letters in known:
        return known.index(letters), UNITS.get(letters, 1.0) if meaning in TIMED else 1.0
    for unit, seconds in UNITS.items() if meaning in TIMED else ():
        stem = letters.removesuffix(unit)
        if stem != letters and stem in known:
            return known.index(stem), seconds
    return None


def choose(names: Iterable[str], meanings: Sequence[str]) -> dict[str, list[str]]:
    """The columns with the surest name of each meaning; a column has the first meaning it fits.

    >>> choose(["rank", "start", "seconds"], ("seconds", "time", "rank"))
    {'seconds': ['seconds'], 'time': ['start'], 'rank': ['rank']}
    """
    left, chosen = list(names), {}
    for meaning in meanings:
        places = {name: found[0] for name in left if (found := match(name, meaning)) is not None}
        if places:
            surest = min(places.values())
            chosen[meaning] = [name for name in left if places.get(name) == surest]
            left = [name for name in left if name not in chosen[meaning]]
    return chosen


def format_of(names: Iterable[str]) -> str | None:
    """The format of a log with these columns; None if they are of no known one.

    >>> format_of(["timestamp", "hostname", "gpu_util"]), format_of(["node", "value"])
    ('utilisation', None)
    """
    names = list(names)
    for name, meanings in MEANINGS.items():
        found = choose(names, meanings)
        if all(any(option in found for option in needed.split("/")) for needed in NEEDED[name]):
            return name
    return None


def guesses(names: Iterable[str], meanings: Sequence[str]) -> list[tuple[str, str]]:
    """Each meaning with the column of the nearest name, or the only column; `NAME` for none.

    >>> guesses(["gpu_utl", "memory"], ("gpu", "net")), guesses(["load"], ("gpu",))
    ([('gpu', 'gpu_utl')], [('gpu', 'load')])
    >>> guesses(["a", "b"], ("gpu", "net"))
    [('gpu', 'NAME'), ('net', 'NAME')]
    """
    names = [name for name in names if len(name) <= LONGEST and name.isprintable()]
    found = [
        (difflib.SequenceMatcher(a=plain(name), b=known).ratio(), meaning, name)
        for meaning in meanings
        for name in names
        for known in ALIASES[meaning]
    ]
    nearest = max((ratio for ratio, _, _ in found), default=0.0)
    if nearest >= NEAR:
        return [(meaning, name) for ratio, meaning, name in found if ratio == nearest]
    return [(meaning, names[0] if len(names) == 1 else "NAME") for meaning in meanings]


def nearest_format(names: Sequence[str]) -> tuple[str, list[tuple[str, str]]] | None:
    """The format that lacks the fewest columns, and a guess for each of them; None without any.

    >>> nearest_format(["Zeit", "Host", "Auslastung"]), nearest_format(["a", "b"])
    (('utilisation', [('gpu', 'Auslastung')]), None)
    """
    best: tuple[tuple[int, int], str, list[tuple[str, str]]] | None = None
    for name, needed in NEEDED.items():
        found = choose(names, MEANINGS[name])
        left = {*names}.difference(*found.values())
        missing = [each.split("/") for each in needed if not {*each.split("/")} & {*found}]
        guessed: list[tuple[str, str]] = []
        for options in missing:
            guessed.append(guesses(sorted(left), options)[0])
            left.discard(guessed[-1][1])
        rank = len(missing), sum(column == "NAME" for _, column in guessed)
        if len(missing) < len(needed) and (best is None or rank < best[0]):
            best = rank, name, guessed
    return best and best[1:]
