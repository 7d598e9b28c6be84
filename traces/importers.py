"""The formats that can be imported, by name, and which of them a file is in."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.records.log_formats import LOADED, choose, format_of, nearest_format
from simstrag.records.log_table import LogTable, is_json, read_json
from simstrag.trace.trace import COLUMNS
from simstrag.traces import import_bytedance, import_pai, import_steps
from simstrag.traces.import_bytedance import bytedance_straggler
from simstrag.traces.import_episodes import episodes
from simstrag.traces.import_kineto import kineto
from simstrag.traces.import_pai import alibaba_pai_minibatch
from simstrag.traces.import_prometheus import UNKNOWN, is_grafana, is_matrix, prometheus, read_table
from simstrag.traces.import_steps import steps
from simstrag.traces.import_utilisation import utilisation
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


LOAD = ("columns", "fraction", "own", "response")
FORMATS = {
    "alibaba-pai-minibatch": Format(
        alibaba_pai_minibatch, "job_k_norm.csv of Alibaba PAI", ("clean",)
    ),
    "bytedance-straggler": Format(bytedance_straggler, "trace-*.parquet of ByteDance"),
    "episodes": Format(
        episodes, "CSV of start, end, host and factor", ("columns", "resource", "hosts")
    ),
    "kineto": Format(kineto, "Chrome traces of torch.profiler, a file per rank", many=True),
    "prometheus": Format(prometheus, "range query of Prometheus (JSON), or Grafana's CSV", LOAD),
    "steps": Format(steps, "step times of each rank, CSV or JSON", ("columns", "resource"), True),
    "tensorboard": Format(
        functools.partial(steps, name="tensorboard"), "step times as scalars, a file per rank",
        ("columns", "resource"), True,
    ),
    "utilisation": Format(utilisation, "CSV of node, time and load", LOAD),
    "wandb": Format(
        functools.partial(steps, name="wandb"), "step times as history of runs, CSV or JSON",
        ("columns", "resource"), True,
    ),
}  # fmt: skip


def import_trace(name: str, paths: Sequence[str | Path], **options: Any) -> Labelled:
    """Import files of a format.

    options: options of the importer; None stands for its default.
    Raises `InputError` for an unknown format or option, and the importer's errors.

    >>> import_trace("kinto", ["rank0.json"])
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no format 'kinto'. Did you mean 'kineto'?; known:
    alibaba-pai-minibatch, bytedance-straggler, episodes, kineto, prometheus, steps, tensorboard,
    utilisation, wandb
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
            init = shlex.join(["simstrag", "init", str(path)])
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
    if Path(path).suffix == ".parquet" or is_json(path):
        return ()
    return tuple(sorted(LogTable.read(path).commas))


def recognise(path: str | Path) -> tuple[str, tuple[str, ...]] | None:
    """The format of a file, and the options that its import needs; None for a trace.

    Raises `InputError` for a file that is neither.
    """
    near = None
    if Path(path).suffix == ".parquet":
        found = _of_parquet(path)
    elif is_json(path):
        found = _of_json(path)
    else:
        table = LogTable.read(path)
        found = _of_csv(table, path)
        near = nearest_format([*table.columns])
    if found is None:
        raise InputError(
            f"{path}: is no trace ({', '.join(COLUMNS)}) and no log that is known by its columns; "
            f"{_way_out(Path(path), near)}"
        )
    return found if found[0] else None


def _way_out(path: Path, near: tuple[str, list[tuple[str, str]]] | None) -> str:
    """How to import a file that is not recognised.

    near: as of `nearest_format`.
    """
    if near is None:
        return (
            f"name its format, simstrag trace import FORMAT {shlex.quote(str(path))} --out TRACE, "
            f"with FORMAT one of {', '.join(FORMATS)}"
        )
    options = [word for pair in near[1] for word in ("--column", "=".join(pair))]
    words = ["simstrag", "trace", "import", near[0], str(path), *options, "--out", "TRACE"]
    return f"the nearest format is {near[0]}, by {shlex.join(words)}"


def import_command(path: str | Path) -> tuple[str, str] | None:
    """The name of a log's format, and the command that makes a trace of it; None for a trace.

    Raises `InputError` for a file that is neither.
    """
    found = recognise(path)
    if found is None:
        return None
    name, options = found
    path = Path(path)
    files = _of_other_ranks(path) if name in PER_RANK else [path]
    stem = path.name.partition(".")[0]
    if len(files) > 1:
        stem = NUMBER.sub("", stem)
    out = free_name(path.with_name(f"{stem}-trace.csv"), ".csv", ".md")
    scenario = free_name(path.with_name(f"{stem}.yaml"), ".yaml")
    written = ("--out", str(out), "--scenario", str(scenario))
    return name, shlex.join(
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


NUMBER = re.compile(r"\d+")
PER_RANK = ("kineto", "tensorboard")
"""Formats with a file per rank."""
Found = tuple[str, tuple[str, ...]]
TRACE: Found = ("", ())
ASSUMED = ("--response", "fair-share")


def _parquet_columns(path: str | Path) -> set[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        return set(pyarrow.parquet.read_schema(path).names)
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as parquet: {reason:.80}") from None


def _of_parquet(path: str | Path) -> Found | None:
    names = _parquet_columns(path)
    if set(COLUMNS) <= names:
        return TRACE
    return (import_bytedance.NAME, ()) if set(import_bytedance.COLUMNS) <= names else None


def _of_json(path: str | Path) -> Found | None:
    document = read_json(path, "a log")
    if isinstance(document, dict) and isinstance(document.get("traceEvents"), list):
        return "kineto", ()
    if is_matrix(document):
        return "prometheus", _of_load(read_table(path))
    table = import_steps.read_table(path)
    return _of_steps(table)


def _of_csv(table: LogTable, path: str | Path) -> Found | None:
    names = set(table.columns)
    if set(COLUMNS) <= names:
        return TRACE
    if {"worker", "time", import_pai.VALUE} <= names:
        return import_pai.NAME, ()
    known = format_of(table.columns)
    if known == "episodes":
        return known, ()
    if {"resource", "kind"} <= names:
        return TRACE
    if known == "utilisation":
        return known, ASSUMED
    found = _of_steps(import_steps.read_table(path))
    if found is None and is_grafana(table):
        return "prometheus", _of_load(read_table(path))
    return found


def _of_load(table: LogTable) -> tuple[str, ...]:
    """The options for a range query; a load without a name is taken as the GPU's."""
    is_known = any(choose(table.columns, LOADED))
    return (*(() if is_known else ("--column", f"gpu={UNKNOWN}")), *ASSUMED)


def _of_steps(table: LogTable) -> Found | None:
    if not import_steps.is_log(table):
        return None
    if list(table.columns)[:2] == ["Wall time", "Step"]:
        return "tensorboard", ()
    is_run = {"_timestamp", "_step", "run name"} & set(table.columns)
    return "wandb" if is_run else "steps", ()
