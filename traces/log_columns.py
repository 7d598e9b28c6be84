"""Which column of a log is what: known names, their units, and hosts, times and numbers in them.

Sources of the known names: `DCGM_FI_DEV_GPU_UTIL` of NVIDIA's dcgm-exporter, `utilization.gpu [%]`
of `nvidia-smi --query-gpu=timestamp,utilization.gpu --format=csv`, `_timestamp` and `_step` of
Weights & Biases, `Wall time`, `Step` and `Value` of TensorBoard, and what training loops print.
Case and punctuation do not matter; a time may end in its unit, such as `step_time_ms`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.traces.log_table import LogTable

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
ZONE = re.compile(r":\d\d(\.\d+)?\s*(Z|[+-]\d\d(:?\d\d)?)$", re.IGNORECASE)
"""The end of a time of day with its zone."""
EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""From which number on a time is nanoseconds, microseconds or milliseconds since 1970; seconds
reach 1e11 in the year 5138."""
LATEST = 1e20
"""Largest number of a time: nanoseconds since 1970 for 3,000 years."""
EPOCH = 1e8
"""From here on seconds are taken to be since 1970."""
Floats = npt.NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class LogColumns:
    """A log and the column of each meaning that it has."""

    table: LogTable
    names: dict[str, str]

    @classmethod
    def of(
        cls,
        table: LogTable,
        meanings: Sequence[str],
        stated: Mapping[str, str] | None = None,
        needed: Sequence[str] = (),
    ) -> LogColumns:
        """The columns as stated, else by a known name.

        meanings: the allowed ones; where a name fits several, the first counts.
        needed: those without which there is an error; with a slash, one of several.
        Raises `InputError` that says how to state a column.
        """
        names = dict(stated or {})
        for meaning, name in names.items():
            if meaning not in meanings:
                raise InputError(
                    f"--column {meaning}={name}: there is no '{meaning}'"
                    f"{nearest(meaning, meanings)}; allowed: {', '.join(meanings)}"
                )
            table.column(name)
        rest = [name for name in table.columns if name not in names.values()]
        for meaning, found in choose(rest, [m for m in meanings if m not in names]).items():
            if len(found) > 1:
                raise InputError(
                    f"{table.source}: columns '{found[0]}' and '{found[1]}' may both be the "
                    f"{meaning}; say which: --column {meaning}={found[0]}"
                )
            names[meaning] = found[0]
        for meaning in needed:
            options = meaning.split("/")
            if not set(options) & set(names):
                ways = ", ".join(f"{option}=NAME" for option in options)
                raise InputError(
                    f"{table.source}: no column is known to be the {' or '.join(options)}; say "
                    f"which: --column {ways}; it has {table.header}"
                )
        return cls(table, names)

    def __contains__(self, meaning: str) -> bool:
        return meaning in self.names

    def taken(self, *meanings: str) -> str:
        """Which columns were taken as what, of these meanings or of all."""
        chosen = meanings or tuple(self.names)
        stated = [
            f"{meaning} from column '{self.names[meaning]}'{self._unit(meaning)}"
            for meaning in chosen
            if meaning in self
        ]
        return ", ".join(stated)

    def _unit(self, meaning: str) -> str:
        found = match(self.names[meaning], meaning)
        units = {1e-3: " (milliseconds)", 1e-6: " (microseconds)", 1e-9: " (nanoseconds)"}
        return units.get(found[1], "") if found else ""

    def cells(self, meaning: str) -> list[str]:
        """The cells of a meaning as text."""
        return self.table.column(self.names[meaning])

    def numbers(self, meaning: str, gaps: bool = False) -> Floats:
        """The cells of a meaning as numbers, times in seconds; see `LogTable.numbers`."""
        found = match(self.names[meaning], meaning)
        return self.table.numbers(self.names[meaning], gaps) * (found[1] if found else 1.0)

    def mistake(self, k: int, meaning: str, why: str) -> InputError:
        """An error about the k-th cell of a meaning."""
        return self.table.mistake(k, self.names[meaning], why)

    def nodes(self) -> tuple[list[int], dict[int, str]]:
        """The node of each row as a number, and the names of nodes.

        Ranks and whole numbers stay as they are; names are numbered in their order. A host with
        several ranks or cards has a node for each, with the number after its name.
        """
        if "rank" in self:
            rank = self.cells("rank")
            wrong = next((k for k, cell in enumerate(rank) if not _is_whole(cell)), None)
            if wrong is not None:
                raise self.mistake(wrong, "rank", "is no whole number, 0 or more")
            ranks = [int(float(cell)) for cell in rank]
            if "node" not in self:
                return ranks, {}
        hosts = self.cells("node")
        if "" in hosts:
            raise self.mistake(hosts.index(""), "node", "is empty; every row needs its node")
        if "rank" in self:
            pairs = {r: (host, str(r)) for r, host in sorted(zip(ranks, hosts, strict=True))}
            many = _several(pairs.values())
            return ranks, {r: f"{h}/{k}" if h in many else h for r, (h, k) in pairs.items()}
        called = hosts
        if "card" in self:
            cards = self.cells("card")
            many = _several(set(zip(hosts, cards, strict=True)))
            called = [f"{h}/{c}" if h in many else h for h, c in zip(hosts, cards, strict=True)]
        return number(called)

    def times(self, *meanings: str) -> tuple[list[Floats], str]:
        """Seconds from the earliest cell of these meanings, and that cell; see `moments`."""
        found = [self.moments(meaning) for meaning in meanings]
        earliest = int(np.argmin([seconds.min() for seconds in found]))
        cell = self.cells(meanings[earliest])[int(found[earliest].argmin())]
        first = float(found[earliest].min())
        return [since(seconds, first) for seconds in found], describe_moment(cell)

    def moments(self, meaning: str) -> Floats:
        """Seconds, from any zero or from 1970.

        Cells are seconds, seconds or smaller units since 1970, or dates in ISO 8601; dates without
        a zone are taken as UTC, if all are.
        """
        cells = self.cells(meaning)
        try:
            float(cells[0])
        except ValueError:
            seconds = _dates(cells)
            bad = np.isnan(seconds)
            if bad.any():
                why = "is neither seconds nor a date such as 2026-01-31T10:00:00"
                raise self.mistake(int(bad.argmax()), meaning, why) from None
            zoned = np.array([ZONE.search(cell) is not None for cell in cells])
            if zoned.any() and not zoned.all():
                why = "has no zone, unlike others: write one, such as +01:00, in every row"
                raise self.mistake(int(zoned.argmin()), meaning, why) from None
            return seconds
        seconds = self.numbers(meaning)
        if (far := np.abs(seconds) > LATEST).any():
            raise self.mistake(int(far.argmax()), meaning, "is no time")
        scale = next((unit for least, unit in EPOCHS if seconds.max() >= least), 1.0)
        return seconds * scale


def number(labels: Sequence[str]) -> tuple[list[int], dict[int, str]]:
    """Numbers for labels, and the labels of numbers; whole numbers stay as they are.

    >>> number(["gpu-b", "gpu-a", "gpu-b"]), number(["7", "3"])
    (([0, 1, 0], {0: 'gpu-b', 1: 'gpu-a'}), ([7, 3], {}))
    """
    if all(map(_is_whole, labels)):
        return [int(float(label)) for label in labels], {}
    numbers = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels], {k: label for label, k in numbers.items()}


def since(moments: Floats, first: float) -> Floats:
    """Seconds since the first moment; of moments since 1970 in whole microseconds."""
    seconds = moments - first
    return np.round(seconds, 6) if first >= EPOCH else seconds


def describe_moment(cell: str) -> str:
    """A cell of a time with its unit, if it is a number."""
    return cell if re.search(r"[^\d.eE+-]|\d-", cell) else f"{cell} s"


def _dates(cells: Sequence[str]) -> Floats:
    """Seconds since 1970 of dates in ISO 8601; NaN for any other cell."""
    import pandas as pd

    written = pd.Series(cells).str.replace("/", "-", regex=False)
    written = written.where(written.str.match(r"(19|20|21)\d\d(\D|\d{4})"))  # no overflow
    dates = pd.to_datetime(written, format="ISO8601", utc=True, errors="coerce")
    return np.asarray((dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), np.float64)


def _is_whole(cell: str) -> bool:
    """Whether a cell is a number of a node; exporters write 3 as 3.0, too."""
    return re.fullmatch(r"\d{1,15}(\.0)?", cell, re.ASCII) is not None


def _several(pairs: Iterable[tuple[str, str]]) -> set[str]:
    """The first elements that occur in several pairs."""
    return {first for first, count in Counter(first for first, _ in pairs).items() if count > 1}
