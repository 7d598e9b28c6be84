"""The formats that can be imported, by name, and which of them a file is in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simstrag.documents.printable import shell_command
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.records import (
    episodes,
    megatron,
    operations,
    profiles,
    slurm,
    step_tables,
    steps,
    summaries,
    training_logs,
)
from simstrag.records.columns import LOADED, choose
from simstrag.records.log_file import LogFile
from simstrag.records.log_table import LogTable
from simstrag.records.prometheus import UNKNOWN, metrics_of, read_table
from simstrag.records.read import reader_of, readers
from simstrag.records.record import SM_CLOCK, Record
from simstrag.trace.trace import COLUMNS
from simstrag.traces import of_pai
from simstrag.traces.of_episodes import trace_of_episodes
from simstrag.traces.of_loads import prometheus, utilisation
from simstrag.traces.of_operations import BYTEDANCE, KINETO, bytedance_straggler, kineto
from simstrag.traces.of_pai import alibaba_pai_minibatch
from simstrag.traces.of_record import trace_of
from simstrag.traces.of_steps import trace_of_steps
from simstrag.traces.provenance import Labelled


class Format(NamedTuple):
    """An importer.

    what: a few words on the files that it reads.
    options: names of its options.
    many: whether it takes several files.
    """

    read: Callable[..., Labelled]
    what: str
    options: tuple[str, ...] = ()
    many: bool = False


def _by_record(
    read: Callable[[Sequence[LogFile], Mapping[str, str] | None], Record],
    trace_of: Callable[..., Labelled],
    name: str,
) -> Callable[..., Labelled]:
    """An importer of the files that a reader of records knows."""

    def importer(
        *paths: str | Path, columns: Mapping[str, str] | None = None, **options: Any
    ) -> Labelled:
        record = read([LogFile.open(path) for path in paths], columns)
        return trace_of(record, name=name, paths=paths, **options)

    return importer


def _of_steps(name: str, what: str) -> Format:
    importer = _by_record(steps.read_all, trace_of_steps, name)
    return Format(importer, what, ("columns", "resource"), many=True)


LOAD = ("columns", "fraction", "own", "response")
NAMES = {
    step_tables.TENSORBOARD: "tensorboard", step_tables.WANDB: "wandb",
    step_tables.RECORDED: "steps", step_tables.LIGHTNING: "steps", step_tables.STEPS: "steps",
    profiles.NAME: KINETO,
    operations.NAME: BYTEDANCE,
}  # fmt: skip
"""The format of an import where its reader has another name."""
FORMATS = {
    "alibaba-pai-minibatch": Format(
        alibaba_pai_minibatch, "job_k_norm.csv of Alibaba PAI", ("clean",)
    ),
    "bytedance-straggler": Format(bytedance_straggler, "trace-*.parquet of ByteDance"),
    "episodes": Format(
        _by_record(episodes.read, trace_of_episodes, "episodes"),
        "CSV of start, end, host and factor", ("columns", "resource", "hosts"),
    ),
    "kineto": Format(kineto, "Chrome traces of torch.profiler, a file per rank", many=True),
    "prometheus": Format(prometheus, "range query of Prometheus (JSON), or Grafana's CSV", LOAD),
    "sacct": Format(
        _by_record(slurm.read, trace_of_episodes, "sacct"),
        "jobs of Slurm that shared nodes, by sacct -P", ("columns", "resource"),
    ),
    "steps": _of_steps("steps", "step times or throughput of each rank, CSV or JSON"),
    "tensorboard": _of_steps("tensorboard", "step times as scalars, a file per rank"),
    "utilisation": Format(utilisation, "CSV of node, time and load", LOAD),
    "wandb": _of_steps("wandb", "step times as history of runs, CSV or JSON"),
}  # fmt: skip
FORMATS |= {
    each.name: Format(
        _by_record(each.read, trace_of, each.name), each.what, ("columns",), each.many
    )
    for each in readers()
    if NAMES.get(each.name, each.name) not in FORMATS
}


def import_trace(name: str, paths: Sequence[str | Path], **options: Any) -> Labelled:
    """Import files of a format.

    options: options of the importer; None stands for its default.
    Raises `InputError` for an unknown format or option, and the importer's errors.

    >>> import_trace("kinto", ["rank0.json"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no format 'kinto'. Did you mean 'kineto'?; ...
    """
    importer = require_format(name)
    stated = {option: value for option, value in options.items() if value is not None}
    for option in stated.keys() - set(importer.options):
        having = [other for other, f in FORMATS.items() if option in f.options]
        raise InputError(f"{option} is no option of {name}, but of {' and '.join(having)}")
    if len(paths) > 1 and not importer.many:
        raise InputError(f"{paths[1]}: {name} takes one file; import them one by one")
    for path in map(Path, paths):
        if has_columns_of_trace(path):
            init = shell_command(["simstrag", "init", str(path)])
            raise InputError(f"{path}: is a trace already; {init} writes a first scenario for it")
    return importer.read(*paths, **stated)


def require_format(name: str) -> Format:
    """The importer of a format. Raises `InputError` that names the nearest format."""
    if name not in FORMATS:
        raise InputError(
            f"there is no format '{name}'{nearest(name, FORMATS)}; known: {', '.join(FORMATS)}"
        )
    return FORMATS[name]


def has_columns_of_trace(path: Path) -> bool:
    """Whether a file has the columns of a trace; not so where it cannot be read."""
    try:
        if path.suffix == ".parquet":
            return set(COLUMNS) <= _parquet_columns(path)
        with path.open("rb") as file:  # a log may be large
            header = file.readline(4096).decode(errors="replace")
    except (OSError, InputError):
        return False
    return set(COLUMNS) <= {name.strip('\ufeff" \r\n') for name in header.split(",")}


def decimal_commas(path: str | Path) -> tuple[str, ...]:
    """The columns of a log in CSV whose numbers have decimal commas."""
    table = LogFile.open(path).table
    return () if table is None else tuple(sorted(table.commas))


def recognise(path: str | Path) -> tuple[str, tuple[str, ...]] | None:
    """The format of a file, and the options that its import needs; None for a trace.

    Raises `InputError` for a file that is neither.
    """
    if has_columns_of_trace(Path(path)):
        return None
    file = LogFile.open(path)
    names = {*file.table.columns} if file.table else set[str]()
    if {"resource", "kind"} <= names and not episodes.recognise(file):
        return None
    if {"worker", "time", of_pai.VALUE} <= names:
        return of_pai.NAME, ()
    name = reader_of(file).name
    options: tuple[str, ...] = ()
    if name == "prometheus":
        options = _of_load(read_table(file))
    elif name == "utilisation":
        options = ASSUMED
    return NAMES.get(name, name), options


def import_command(path: str | Path) -> tuple[str, str] | None:
    """The name of a log's format, and the command that makes a trace of it; None for a trace.

    Raises `InputError` for a file that is neither.
    """
    found = recognise(path)
    if found is None:
        return None
    name, options = found
    path = Path(path)
    if name in OF_ONE_RANK:
        folder = Path("reports") / path.name.partition(".")[0]
        return name, shell_command(["simstrag", "diagnose", str(path), "--out", str(folder)])
    files = _of_other_ranks(path) if name in PER_RANK else [path]
    stem = path.name.partition(".")[0]
    if len(files) > 1:
        stem = NUMBER.sub("", stem)
    out = free_name(path.with_name(f"{stem}-trace.csv"), ".csv", ".md")
    scenario = free_name(path.with_name(f"{stem}.yaml"), ".yaml")
    written = ("--out", str(out), "--scenario", str(scenario))
    return name, shell_command(
        ["simstrag", "trace", "import", name, *map(str, files), *options, *written]
    )


def _of_other_ranks(path: Path) -> list[Path]:
    """The files beside it whose names differ in numbers only, in the order of these."""
    beside = [
        p for p in path.parent.iterdir() if NUMBER.sub("", p.name) == NUMBER.sub("", path.name)
    ]
    return sorted(beside, key=lambda p: [int(digits) for digits in NUMBER.findall(p.name)])


def free_name(path: Path, *suffixes: str) -> Path:
    """A path like this one of which no file with one of the suffixes exists."""
    numbered = (path, *(path.with_stem(f"{path.stem}-{k}") for k in range(2, 1000)))
    return next(p for p in numbered if not any(p.with_suffix(s).exists() for s in suffixes))


OF_ONE_RANK = frozenset(
    each.name for each in (*megatron.READERS, *training_logs.READERS, *summaries.READERS)
)
"""Formats whose logs are often of one rank, or of means, of which no trace can be made."""
NUMBER = re.compile(r"\d+")
PER_RANK = ("kineto", "tensorboard")
"""Formats with a file per rank."""
ASSUMED = ("--response", "fair-share")


def _parquet_columns(path: str | Path) -> set[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        return set(pyarrow.parquet.read_schema(path).names)
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as parquet: {reason:.80}") from None


def _of_load(table: LogTable) -> tuple[str, ...]:
    """The options for a range query; a load without a name is taken as the GPU's.

    Clocks need none: they make a trace of slowdowns.
    """
    if SM_CLOCK in metrics_of(table):
        return ()
    is_known = any(choose(table.columns, LOADED))
    return (*(() if is_known else ("--column", f"gpu={UNKNOWN}")), *ASSUMED)
