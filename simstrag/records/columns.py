"""Which column of a log is what, by its name and unit; and hosts, times and numbers in its cells.

Sources of the known names: `DCGM_FI_DEV_GPU_UTIL` of NVIDIA's dcgm-exporter, `utilization.gpu [%]`
of `nvidia-smi --query-gpu=timestamp,utilization.gpu --format=csv`, `_timestamp` and `_step` of
Weights & Biases, `Wall time`, `Step` and `Value` of TensorBoard, and what training loops print.
Case and punctuation do not matter; a time may end in its unit, such as `step_time_ms`.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.records.log_table import NO_UNITS, LogTable

LOADED = ("gpu", "host", "net")
MEANINGS: dict[str, tuple[str, ...]] = {
    "episodes": ("start", "end", "rank", "node", "factor", "note"),
    "utilisation": ("time", *LOADED, "node", "card"),
    "steps": (
        "compute",
        "communication",
        "seconds",
        "rate",
        "step",
        "rank",
        "node",
        "card",
        "time",
        "stage",
        "tokens",
    ),
}
"""What a column of each format may be; where a name fits several, the first counts."""
NEEDED = {
    "episodes": ("start", "end", "node/rank"),
    "utilisation": ("node", "time", "/".join(LOADED)),
    "steps": ("compute/seconds/rate", "step/time", "step/rank/node"),
}
"""The columns by which a format is recognised; with slashes, one of several."""
ALIASES: dict[str, tuple[str, ...]] = {
    "node": (
        "node", "hostname", "nodename", "host", "machine", "server", "instance", "worker",
        "workername", "runname", "knoten", "rechner",
    ),
    "rank": ("rank", "globalrank", "dprank", "workerrank", "rankid", "rang", "localrank"),
    "card": ("card", "gpuid", "gpuindex", "index", "device", "minornumber", "gpu"),
    "time": (
        "time", "timestamp", "walltime", "date", "datetime", "start", "starttime", "begin", "ts",
        "when", "seconds", "relativetime", "relativetimeprocess", "relativetimewall", "zeit",
        "zeitpunkt", "zeitstempel", "datum",
    ),
    "start": ("start", "starttime", "startedat", "startsat", "begin", "from", "beginn", "von"),
    "end": ("end", "endtime", "endedat", "endsat", "stop", "finish", "until", "to", "ende", "bis"),
    "step": ("step", "globalstep", "iteration", "iter", "stepnumber", "batchidx", "schritt"),
    "compute": (
        "compute", "computetime", "localtime", "forwardbackward", "fwdbwd", "fwdbwdtime",
        "forwardbackwardtime",
    ),
    "seconds": (
        "steptime", "stepduration", "iterationtime", "itertime", "batchtime", "duration",
        "seconds", "secs", "elapsed", "dauer", "sekunden", "schrittdauer", "stepseconds", "sit",
        "sperit", "secondsperstep", "secondsperiteration", "timeperstep", "timeperiteration",
    ),
    "communication": (
        "communication", "comm", "commtime", "communicationtime", "allreduce", "allreducetime",
        "sync", "synctime", "gradsync",
    ),
    "forward": ("forward", "fwd", "forwardtime", "fwdtime"),
    "backward": ("backward", "bwd", "backwardtime", "bwdtime"),
    "optimizer": ("optimizer", "optim", "opt", "optimizertime", "opttime", "optimizerstep"),
    "input": (
        "data", "dataloader", "dataloading", "dataload", "datatime", "input", "inputtime",
        "datawait", "loadtime", "dataloadertime", "dataloadingtime",
    ),
    "stage": ("stage", "part", "phase", "section", "teil"),
    "tokens": ("tokens", "numtokens", "ntokens"),
    "rate": (
        *map("".join, itertools.product(
            ("samples", "tokens", "images", "steps", "iterations", "sequences", "examples", "it",
             "tok", "imgs", "img", "iters", "batches", "batch", "sample", "step"),
            ("persecond", "persec", "pers"),
        )), "throughput", "tps", "wps",
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
STEPS_PER_SECOND = ("step", "it", "batch")
"""Beginnings of the names of rates whose inverse is the time of a step."""
AREA = re.compile(
    r"(?:.*/)?(?:train|trainer|training|perf|performance|time|timing|timers|step|metrics|throughput|"
    r"stats)/(?=[^/]+$)|(?:train|training|perf)_", re.I,
)  # fmt: skip
"""What may stand before the name of a metric, such as `perf/step_time`."""
LONGEST = 40
"""Most letters of a column that a message proposes."""
NEAR = 0.75
"""Least similarity of a name that is taken to be misspelt, from 0 to 1."""
TIMED = frozenset({
    "time", "start", "end", "compute", "seconds", "communication", "forward", "backward",
    "optimizer", "input",
})  # fmt: skip
ZONE = re.compile(r":\d\d(\.\d+)?\s*(Z|[+-]\d\d(:?\d\d)?)$", re.IGNORECASE)
"""The end of a time of day with its zone."""
EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""From which number on a time is nanoseconds, microseconds or milliseconds since 1970; seconds
reach 1e11 in the year 5138."""
LATEST = 1e20
"""Largest number of a time: nanoseconds since 1970 for 3,000 years."""
EPOCH = 1e8
"""From here on seconds are taken to be since 1970."""


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
                left = [name for name in table.columns if name not in names.values()]
                ways = ", ".join(map("=".join, guesses(left, options)))
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
        units = {1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}
        comma = "decimal commas" if self.names[meaning] in self.table.commas else ""
        said = ", ".join(filter(None, [units.get(found[1], "") if found else "", comma]))
        return f" ({said})" if said else ""

    def cells(self, meaning: str) -> list[str]:
        """The cells of a meaning as text."""
        return self.table.column(self.names[meaning])

    def numbers(self, meaning: str, gaps: bool = False) -> Floats:
        """The cells of a meaning as numbers, times in seconds; see `LogTable.numbers`."""
        found = match(self.names[meaning], meaning)
        units = UNITS if meaning in TIMED else NO_UNITS
        return self.table.numbers(self.names[meaning], gaps, found[1] if found else 1.0, units)

    def mistake(self, k: int, meaning: str, why: str) -> InputError:
        """An error about the k-th cell of a meaning."""
        return self.table.mistake(k, self.names[meaning], why)

    def nodes(self) -> tuple[list[int], dict[int, str]]:
        """The node of each row as a number, and the names of nodes.

        Ranks and whole numbers stay as they are; names are numbered in their order. A rank whose
        host is not known is called by its number, and a host with several ranks or cards has a node
        for each, with the number after its name.
        """
        if "rank" in self:
            rank = self.cells("rank")
            wrong = next((k for k, cell in enumerate(rank) if not _is_whole(cell)), None)
            if wrong is not None:
                raise self.mistake(wrong, "rank", "is no whole number, 0 or more")
            ranks = [int(float(cell)) for cell in rank]
            if "node" not in self:
                return ranks, {rank: rank_name(rank) for rank in sorted(set(ranks))}
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

    def times(self, *meanings: str) -> tuple[list[Floats], str, str]:
        """Seconds from the earliest cell of these meanings, that cell, and its `wall_clock`."""
        found = [self.moments(meaning) for meaning in meanings]
        earliest = int(np.argmin([seconds.min() for seconds in found]))
        cell = self.cells(meanings[earliest])[int(found[earliest].argmin())]
        first = float(found[earliest].min())
        seconds = [since(each, first) for each in found]
        return seconds, describe_moment(cell), wall_clock(cell, first)

    def moments(self, meaning: str) -> Floats:
        """Seconds, from any zero or from 1970.

        Cells are seconds, seconds or smaller units since 1970, or dates, in ISO 8601 or as
        31.01.2026 10:00; dates without a zone are taken as UTC, if all are.
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


def rank_name(rank: int | str) -> str:
    """The name of a node where a log speaks of ranks."""
    return f"rank {rank}"


def number(labels: Sequence[str]) -> tuple[list[int], dict[int, str]]:
    """Numbers for labels, and the labels of numbers; whole numbers and ranks stay as they are.

    >>> number(["gpu-b", "gpu-a", "gpu-b"]), number(["7", "3"])
    (([0, 1, 0], {0: 'gpu-b', 1: 'gpu-a'}), ([7, 3], {}))
    >>> number([rank_name(2), rank_name(1)])
    ([2, 1], {1: 'rank 1', 2: 'rank 2'})
    """
    bare = [label.removeprefix(rank_name("")) for label in labels]
    if all(map(_is_whole, bare)):
        known = [int(float(label)) for label in bare]
        named = sorted(set(zip(known, labels, strict=True)) - set(zip(known, bare, strict=True)))
        return known, dict(named)
    numbers = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels], {k: label for label, k in numbers.items()}


def since(moments: Floats, first: float) -> Floats:
    """Seconds since the first moment; of moments since 1970 in whole microseconds."""
    seconds = moments - first
    return np.round(seconds, 6) if first >= EPOCH else seconds


def describe_moment(cell: str) -> str:
    """A cell of a time with its unit, if it is a number."""
    return cell if re.search(r"[^\d.eE+-]|\d-", cell) else f"{cell} s"


def wall_clock(cell: str, first: float) -> str:
    """The first moment of a log in ISO 8601, in the zone of its cell; empty from any other zero.

    first: the cell in seconds.

    >>> wall_clock("2026/01/31 10:00:00+01:00", 1769850000.0), wall_clock("12.5", 12.5)
    ('2026-01-31T10:00:00+01:00', '')
    >>> wall_clock("02.01.2026 10:00", 1767348000.0)
    '2026-01-02T10:00:00'
    >>> wall_clock("1769850000", 1769850000.0)
    '2026-01-31T09:00:00+00:00'
    """
    import pandas as pd

    if first < EPOCH:
        return ""
    try:
        float(cell)
    except ValueError:
        return pd.Timestamp(_iso([cell])[0]).isoformat(timespec="seconds")
    return pd.Timestamp(first, unit="s", tz="UTC").isoformat(timespec="seconds")


def _dates(cells: Sequence[str]) -> Floats:
    """Seconds since 1970 of dates; NaN for any other cell."""
    import pandas as pd

    written = _iso(cells)
    written = written.where(written.str.match(r"(19|20|21)\d\d(\D|\d{4})"))  # no overflow
    dates = pd.to_datetime(written, format="ISO8601", utc=True, errors="coerce")
    return np.asarray((dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), np.float64)


def _iso(cells: Sequence[str]) -> Any:
    """Dates as ISO 8601 writes them: 2026/01/31 and 31.01.2026 are 2026-01-31."""
    import pandas as pd

    written = pd.Series(cells).str.replace("/", "-", regex=False)
    return written.str.replace(r"^(\d\d)\.(\d\d)\.(\d{4})", r"\3-\2-\1", regex=True)


def _is_whole(cell: str) -> bool:
    """Whether a cell is a number of a node; exporters write 3 as 3.0, too."""
    return re.fullmatch(r"\d{1,15}(\.0)?", cell, re.ASCII) is not None


def _several(pairs: Iterable[tuple[str, str]]) -> set[str]:
    """The first elements that occur in several pairs."""
    return {first for first, count in Counter(first for first, _ in pairs).items() if count > 1}


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
    if meaning == "rate":
        letters = plain(name.replace("/", "per"))
    if letters in known:
        return known.index(letters), UNITS.get(letters, 1.0) if meaning in TIMED else 1.0
    for unit, seconds in UNITS.items() if meaning in TIMED else ():
        stem = letters.removesuffix(unit)
        if stem != letters and stem in known:
            return known.index(stem), seconds
        is_step = stem != letters and unit != "s" and stem in ALIASES["step"]  # step_ms
        if meaning == "seconds" and is_step:
            return len(known), seconds
    area = AREA.match(name)
    found = match(name[area.end() :], meaning) if area else None
    return (found[0] + len(known), found[1]) if found else None


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
