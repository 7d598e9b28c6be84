"""The record of a real job from any files that are known, chosen by content and joined."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.documents.file_io import path_of, require_path
from simstrag.documents.printable import shell_command
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.records import step_tables, steps
from simstrag.records.columns import nearest_format
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_table import LogTable, shorten
from simstrag.records.record import NodeEpisode, NodeSeries, Record

MODULES = (
    "operations", "profiles", "flight_recorder", "summaries", "megatron", "training_logs",
    "prometheus", "slurm", "nvidia_smi", "gpu_metrics", "episodes", "utilisation", "steps",
)  # fmt: skip
"""Modules with readers, the strictest first: what a file is by its words before what it may be by
the names of its columns."""
SKIPPED = (".md", ".txt~", ".py", ".yaml", ".yml", ".html", ".svg", ".png", ".ipynb", ".lock")
"""Files of a folder that are beside a record by their names, and not looked into."""


@functools.cache
def readers() -> tuple[Reader, ...]:
    """The readers of all formats, in the order in which they are asked."""
    modules = (importlib.import_module(f"simstrag.records.{name}") for name in MODULES)
    return tuple(reader for module in modules for reader in module.READERS)


def reader_of(file: LogFile) -> Reader:
    """The reader of a file. Raises `InputError` that says what the file looks like."""
    found = next((reader for reader in readers() if reader.recognise(file)), None)
    if found is None:
        raise InputError(f"{file.path}: {_looks(file)}")
    return found


def read_record(
    *paths: str | Path, columns: Mapping[str, str] | None = None, form: str | None = None
) -> Record:
    """The record in files and folders of one job.

    columns: names of columns by what they mean, where no known name tells.
    form: name of the format, in place of the one by content.
    Raises `InputError` where a file is no record, and for two records of the same steps.
    """
    if columns is not None and not _are_names(columns):
        raise InputError(f'columns {columns!r}: give names by meaning, such as {{"rank": "gpu"}}')
    if not paths:
        raise InputError("give a file or a folder of a job")
    asked = [require_path(path_of(path, "the record of a job")) for path in paths]
    hosts = _hosts(asked) if form is None else []
    found = _of_files(hosts, columns, step_tables.RECORDED) if hosts else []
    folders = [p for p in asked if p.is_dir() and not hosts]
    found += [each for p in folders for each in _of_folder(p, columns, form)]
    found += _of_files([LogFile.open(p) for p in asked if not p.is_dir()], columns, form)
    return functools.reduce(join, found)


def _are_names(columns: Any) -> bool:
    """Whether columns are given as names by meaning."""
    return isinstance(columns, Mapping) and all(
        isinstance(text, str) for pair in columns.items() for text in pair
    )


def _hosts(asked: Sequence[Path]) -> list[LogFile]:
    """The files of a record's ranks, where each host of the job has a folder of its own."""
    folders = [path for path in asked if path.is_dir()]
    own = [steps.rank_files(folder) for folder in folders]
    if len(folders) < 2 or not all(own) or not all(map(_is_record_alone, folders)):
        return []
    return [LogFile.open(path) for paths in own for path in paths]


def _is_record_alone(folder: Path) -> bool:
    """Whether a folder has a record of ranks, and beside it nothing that is read."""
    return all(
        path.name.startswith("rank-") or path.name.endswith(SKIPPED) for path in folder.iterdir()
    )


def _of_folder(folder: Path, columns: Mapping[str, str] | None, form: str | None) -> list[Record]:
    """The records in a folder: of a run, or of any files."""
    from simstrag.records import runs

    ranks = {path.name for path in steps.rank_files(folder)}
    if runs.recognise_folder(folder):
        if ranks:
            raise InputError(
                f"{folder}: holds two records, of which run.json and {min(ranks)} are parts; move "
                "one into a folder of its own"
            )
        return [runs.read_folder(folder)]
    paths = [p for p in sorted(folder.iterdir()) if p.is_file() and not p.name.endswith(SKIPPED)]
    files = list(map(LogFile.open, paths))
    known = [
        file for file in files
        if form is not None or file.path.name in ranks
        or any(reader.recognise(file) for reader in readers())
    ]  # fmt: skip
    for file in files:
        if not file.data and any(file.path.suffix == each.path.suffix for each in known):
            raise InputError(f"{file.path}: is empty; record the rank again, or remove the file")
    if not known:
        raise InputError(f"{folder}: no record of a job in this folder; {KNOWN}")
    recorded = [file for file in known if file.path.name in ranks]
    rest = [file for file in known if file.path.name not in ranks]
    own = _of_files(recorded, columns, form or step_tables.RECORDED) if recorded else []
    refused: list[InputError] = []
    for group in _groups(rest, form):
        try:
            own += _of_files(group, columns, form)
        except InputError as error:  # a folder may hold a file that says nothing
            refused.append(error)
    if not own:
        raise refused[0]
    left_out = tuple(f"left out: {error}" for error in refused)
    return [replace(own[0], missing=(*own[0].missing, *left_out)), *own[1:]]


def _of_files(
    files: Sequence[LogFile], columns: Mapping[str, str] | None, form: str | None
) -> list[Record]:
    """The records of files, several at once where a format has several of a job."""
    return [
        (reader_of(group[0]) if form is None else reader_named(form)).read(group, columns)
        for group in _groups(files, form)
    ]


def _groups(files: Sequence[LogFile], form: str | None) -> list[list[LogFile]]:
    """The files that are read together."""
    groups: dict[Reader, list[LogFile]] = {}
    for file in files:
        reader = reader_of(file) if form is None else reader_named(form)
        groups.setdefault(reader, []).append(file)
    return [
        each
        for reader, group in groups.items()
        for each in ([group] if reader.many else [[file] for file in group])
    ]


def reader_named(name: str) -> Reader:
    """The reader of a format, or of a kind of table; raises `InputError` with the nearest name."""
    known = {reader.name: reader for reader in readers()}
    known["steps"] = known["step times"]
    if name not in tuple(known):
        listed = ", ".join(known)
        raise InputError(f"there is no format '{name}'{nearest(name, known)}; known: {listed}")
    return known[name]


def join(first: Record, second: Record) -> Record:
    """The record of one job from two of its files, on one clock.

    Raises `InputError` where both have steps of ranks.
    """
    if len(first) and len(second):
        raise InputError(
            f"{second.source}: has steps of ranks, like {first.source}; which are meant? Give one "
            "of them, beside metrics of nodes"
        )
    steps, other = (second, first) if len(second) else (first, second)
    begins = [each.began for each in (steps, other) if each.began]
    notes: list[str] = []
    shift = {id(steps): 0.0, id(other): 0.0}
    began = min(begins, key=_moment, default="")
    if len(begins) == 2:
        shift = {id(each): _moment(each.began) - _moment(began) for each in (steps, other)}
        hours = _zone(steps, other, shift[id(other)] - shift[id(steps)])
        if hours:
            notes.append(
                f"Assumed: times of {other.source} are {abs(hours)} h "
                f"{'behind' if hours > 0 else 'ahead of'} those of {steps.source}, in another zone."
            )
            shift[id(other)] += 3600 * hours
    elif other.series or other.episodes:
        notes.append(f"Assumed: {steps.source} and {other.source} begin at the same moment.")
    names = tuple(dict.fromkeys([*steps.nodes, *other.nodes]))
    models = {
        name: model
        for each in (other, steps)
        for name, model in zip(each.nodes, each.models, strict=False)
    }
    moved = [_moved(each, shift[id(each)], names) for each in (steps, other)]
    time = None if steps.time is None else steps.time + shift[id(steps)]
    shown = steps.source if steps.source == other.source else f"{steps.source} and {other.source}"
    return replace(
        steps,
        source=shown,
        form=f"{steps.form}, {other.form}",
        time=time,
        began=began,
        nodes=names,
        models=tuple(models.get(name, "") for name in names) if models else (),
        hosts={**other.hosts, **steps.hosts},
        series=_merged([each for series, _ in moved for each in series]),
        episodes=tuple(each for _, episodes in moved for each in episodes),
        bounds=steps.bounds + other.bounds,
        missing=(*dict.fromkeys([*steps.missing, *other.missing]),),
        notes=(*dict.fromkeys([*steps.notes, *other.notes, *notes]),),
        unseen=steps.unseen if len(steps) else steps.unseen + other.unseen,
        hang=steps.hang or other.hang,
    )


def _moved(
    record: Record, seconds: float, names: Sequence[str]
) -> tuple[list[NodeSeries], list[NodeEpisode]]:
    """Series and episodes on another clock, their nodes among these names."""
    place = np.array([names.index(name) for name in record.nodes], np.int64)
    series = [
        replace(each, node=place[each.node], time=each.time + seconds) for each in record.series
    ]
    episodes = [
        each._replace(
            node=int(place[each.node]), start=each.start + seconds, end=each.end + seconds
        )
        for each in record.episodes
    ]
    return series, episodes


def _merged(series: Sequence[NodeSeries]) -> tuple[NodeSeries, ...]:
    """One series of each quantity."""
    found = []
    for quantity in dict.fromkeys(each.quantity for each in series):
        own = [each for each in series if each.quantity == quantity]
        node, time, value = (
            np.concatenate([getattr(each, name) for each in own])
            for name in ("node", "time", "value")
        )
        order = np.lexsort((time, node))
        found.append(NodeSeries(quantity, node[order], time[order], value[order]))
    return tuple(found)


def _moment(began: str) -> float:
    """Seconds since 1970; a time without a zone counts as UTC."""
    moment = datetime.fromisoformat(began)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _span(record: Record) -> tuple[float, float]:
    times = [each.time for each in record.series] + (
        [] if record.time is None else [record.time[np.isfinite(record.time)]]
    )
    times = [each for each in times if len(each)]
    return (
        min((float(each.min()) for each in times), default=0.0),
        max((float(each.max()) for each in times), default=0.0),
    )


def _zone(first: Record, second: Record, apart: float) -> int:
    """Hours by which the second's clock is moved, so that the two overlap; 0 if they do."""
    (begin, end), (start, stop) = _span(first), _span(second)

    def overlap(hours: int) -> float:
        return min(end, stop + apart + 3600 * hours) - max(begin, start + apart + 3600 * hours)

    if overlap(0) > 0:
        return 0
    best = max(range(-ZONES, ZONES + 1), key=overlap)
    return best if overlap(best) > 0 else 0


HEADER = re.compile(r"[A-Za-z_][\w .()/%-]*([,;\t] ?[A-Za-z_][\w .()/%-]*)+")
"""The header of a CSV file: names, separated."""


def _looks(file: LogFile) -> str:
    """What a file that no reader knows looks like, and the nearest format."""
    if not file.data:
        return f"is empty; {KNOWN}"
    for begin, what in MAGIC.items():
        if file.data.startswith(begin):
            return f"is {what}"
    if "\0" in file.head:
        return f"is no text; {KNOWN}"
    if re.search(r"GPU-[0-9a-f]{8}-|\d MHz|0x0{8}", file.head.partition("\n")[0]):
        return "looks like nvidia-smi's CSV without its header; log it again without noheader"
    document = file.document
    if document is not None:
        sample = document[0] if isinstance(document, list) and document else document
        keys = ", ".join(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
        return f"is JSON of {shorten(keys)}, which no reader knows; {KNOWN}"
    if file.table is not None and len(file.table.columns) > 1:
        header, near = file.table.header, nearest_format([*file.table.columns])
        if near is None:
            return f"is CSV with columns {header}, which no reader knows; {KNOWN}"
        options = [word for pair in near[1] for word in ("--column", "=".join(pair))]
        words = ["simstrag", "diagnose", str(file.path), "--format", near[0], *options]
        return (
            f"is CSV with columns {header}, which no reader knows; the nearest format is "
            f"{near[0]}, by {shell_command(words)}"
        )
    line = next((line for line in file.head.splitlines() if line.strip()), "")
    if file.text.strip() == line.strip() and re.search("[,;\t]", line):
        return f"has no rows below its header {shorten(line)}"
    if HEADER.fullmatch(line):
        try:
            LogTable.of(file.text, str(file.path))
        except InputError as error:
            return str(error).removeprefix(f"{file.path}, ")
    return f"is text that begins {shorten(line)!r}, and no reader knows it; {KNOWN}"


KNOWN = (
    "give logs of steps (CSV, JSON, Megatron-LM, torchtitan, DeepSpeed, NeMo, W&B, TensorBoard), "
    "metrics (nvidia-smi, dcgmi, Prometheus), PyTorch profiles, flight recorder dumps, a parquet "
    "file of operations, Slurm's sacct -P, or a run directory"
)
MAGIC = {
    b"SQLite format 3": (
        "a database, as `nsys export` writes it; give `nsys stats --report nvtx_sum --format csv`"
    ),
    b"%PDF": "a PDF",
    b"\x89PNG": "a picture",
    b"PK\x03\x04": "a zip archive; unpack it and give the folder",
    b"\xfd7zXZ": "packed with xz; unpack it",
    b"(\xb5/\xfd": "packed with zstd; unpack it",
    b"\x1f\x9d": "packed with compress; unpack it",
    b"PAR1": "parquet without the columns of a record",
}
"""What files begin with that are none of these, and the way out."""
ZONES = 14
"""Most hours between two time zones' clocks that are tried."""
