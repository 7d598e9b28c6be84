"""Reads a recording: steps as arrays, schedules as measured, stamps of the communication."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Recording", "Series", "Span", "read_recording"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a series, seconds; an episode's: first burner's start to last one's stop.

    burner_seconds: CPU time that all its burners took.
    """

    start: float
    stop: float
    kind: str
    burner_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """The steps of one series, one number per step in each array.

    seconds: local time.  settled: False for the first step after a change of precision.
    block: number of the run of steps of one precision that the step belongs to.
    others_busy, stolen: seconds, counted from the first step on.
    """

    number: int
    length: float
    spans: tuple[Span, ...]
    start: Floats
    seconds: Floats
    cpu_seconds: Floats
    amp: npt.NDArray[np.bool_]
    settled: npt.NDArray[np.bool_]
    block: npt.NDArray[np.int64]
    others_busy: Floats
    stolen: Floats

    @property
    def clean_stretches(self) -> tuple[Span, ...]:
        """What lies before, between and after the episodes."""
        starts = [0.0, *(span.stop for span in self.spans)]
        stops = [*(span.start for span in self.spans), self.length]
        return tuple(Span(a, b, "clean") for a, b in zip(starts, stops, strict=True))


@dataclass(frozen=True, slots=True)
class Recording:
    """All of one folder: what was recorded, how, and the digest of each file (folder/name).

    allreduce: bytes to seconds of each repetition.  server: columns push, service, pull, seconds.
    """

    described: dict[str, Any]
    communication: dict[str, Any]
    series: tuple[Series, ...]
    allreduce: dict[int, Floats]
    server: Floats
    files: dict[str, str]


def read_recording(folder: Path) -> Recording:
    """Read what `record` and `communication` wrote into `folder`."""
    described = json.loads((folder / "recording.json").read_text())
    names = [f"series-{entry['series']}.csv.gz" for entry in described["series"]]
    series = [
        read_series(_table(folder / name), entry)
        for name, entry in zip(names, described["series"], strict=True)
    ]
    names += ["recording.json", "communication.json", "allreduce.csv.gz", "server.csv.gz"]
    return Recording(
        described,
        json.loads((folder / "communication.json").read_text()),
        tuple(series),
        allreduce_seconds(_table(folder / "allreduce.csv.gz")),
        server_seconds(_table(folder / "server.csv.gz")),
        {
            f"{folder.name}/{name}": hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in sorted(names)
        },
    )


def read_series(table: dict[str, list[str]], entry: dict[str, Any]) -> Series:
    """One series from the columns of its file and its entry in `recording.json`."""
    tick = float(entry["tick_seconds"])
    amp = np.array([name == "amp" for name in table["precision"]])
    first = np.array([int(position) == 0 for position in table["block_position"]])
    busy, stolen = (np.array(table[name], dtype=np.float64) for name in ("others_busy", "stolen"))
    return Series(
        number=entry["series"],
        length=float(entry["seconds"]),
        spans=tuple(measured_span(episode) for episode in entry["episodes"]),
        start=np.array(table["start"], dtype=np.float64),
        seconds=np.array(table["seconds"], dtype=np.float64),
        cpu_seconds=np.array(table["cpu_seconds"], dtype=np.float64),
        amp=amp,
        settled=~first,
        block=np.cumsum(first),
        others_busy=(busy - busy[0]) * tick,
        stolen=(stolen - stolen[0]) * tick,
    )


def measured_span(episode: dict[str, Any]) -> Span:
    """From the burners' own stamps, not from the plan."""
    burners = episode["burners"]
    return Span(
        start=min(burner["started"] for burner in burners),
        stop=max(burner["stopped"] for burner in burners),
        kind=episode["kind"]["name"],
        burner_seconds=sum(burner["cpu_seconds"] for burner in burners),
    )


def allreduce_seconds(table: dict[str, list[str]]) -> dict[int, Floats]:
    """Bytes to seconds: from the later start to the later end of the two ranks."""
    size = np.array(table["bytes"], dtype=np.int64)
    begun = np.maximum(_floats(table["start_0"]), _floats(table["start_1"]))
    ended = np.maximum(_floats(table["end_0"]), _floats(table["end_1"]))
    return {int(each): (ended - begun)[size == each] for each in np.unique(size)}


def server_seconds(table: dict[str, list[str]]) -> Floats:
    """Columns push, service, pull; the first tenth, when buffers grow, is left out."""
    t0, s0, s1, t1 = (_floats(table[name]) for name in ("t0", "s0", "s1", "t1"))
    rows: Floats = np.stack([s0 - t0, s1 - s0, t1 - s1], axis=1)
    return rows[len(rows) // 10 :]


def _floats(column: list[str]) -> Floats:
    return np.array(column, dtype=np.float64)


def _table(path: Path) -> dict[str, list[str]]:
    text = io.StringIO(gzip.decompress(path.read_bytes()).decode())
    columns = text.readline().strip().split(",")
    rows = [line.rstrip("\n").split(",") for line in text]
    return {name: [row[k] for row in rows] for k, name in enumerate(columns)}
