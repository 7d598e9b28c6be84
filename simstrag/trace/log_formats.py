"""The formats of logs by the names of their columns, and what each column is.

Sources of the known names: `DCGM_FI_DEV_GPU_UTIL` of NVIDIA's dcgm-exporter, `utilization.gpu [%]`
of `nvidia-smi --query-gpu=timestamp,utilization.gpu --format=csv`, `_timestamp` and `_step` of
Weights & Biases, `Wall time`, `Step` and `Value` of TensorBoard, and what training loops print.
Case and punctuation do not matter; a time may end in its unit, such as `step_time_ms`.
"""

from __future__ import annotations

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
        "workername", "runname",
    ),
    "rank": ("rank", "globalrank", "dprank", "workerrank", "rankid"),
    "card": ("card", "gpuid", "gpuindex", "index", "device", "minornumber", "gpu"),
    "time": (
        "time", "timestamp", "walltime", "date", "datetime", "start", "starttime", "begin", "ts",
        "seconds",
    ),
    "start": ("start", "starttime", "startedat", "startsat", "begin", "from"),
    "end": ("end", "endtime", "endedat", "endsat", "stop", "finish", "until", "to"),
    "step": ("step", "globalstep", "iteration", "iter", "stepnumber", "batchidx"),
    "compute": ("compute", "computetime", "localtime", "forwardbackward", "fwdbwd"),
    "seconds": (
        "steptime", "stepduration", "iterationtime", "itertime", "batchtime", "duration",
        "seconds", "secs", "elapsed",
    ),
    "communication": (
        "communication", "comm", "commtime", "communicationtime", "allreduce", "allreducetime",
        "sync", "synctime", "gradsync",
    ),
    "factor": ("factor", "slowdown", "severity", "timesslower", "multiplier"),
    "note": ("note", "notes", "comment", "description", "summary", "reason", "message"),
    "gpu": (
        "gpuutil", "gpuutilization", "utilizationgpu", "dcgmfidevgpuutil",
        "dcgmfiprofgrengineactive", "gpu",
    ),
    "host": ("cpuutil", "cpuutilization", "cpuusage", "cpupercent", "cpubusy", "cpu"),
    "net": ("netutil", "networkutilization", "nicutil", "network", "net", "nic"),
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
TIMED = frozenset({"time", "start", "end", "compute", "seconds", "communication"})


def plain(name: str) -> str:
    """A name in small letters and digits only.

    >>> plain("utilization.gpu [%]")
    'utilizationgpu'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


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


def import_hint(names: Iterable[str], file: str, write: str = "") -> str:
    """What to append to an error about a log in place of a trace; empty for other columns.

    file: the log, which `write` writes first.
    """
    name = format_of(names)
    command = f"`simstrag trace describe {file}` names the command that makes a trace of it"
    return f"; by its columns it is a log in format {name}: {write}{command}" if name else ""
