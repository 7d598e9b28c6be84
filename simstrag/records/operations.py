"""The record of a pipeline job from ByteDance's parquet: a row per operation.

Source of the format: ByteDance-Seed/StragglerAnalysis @8efcd7f.  `start_ts` and `duration` are
seconds; `seq_id` counts the operations of a kind; `mc` and `gmc` are the model chunk on its stage
and in the model, `mb_id` the micro-batch, -1 for none.  A `meta-NAME.yaml` beside
`trace-NAME.parquet` gives the number of GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.arrays import Array, Ints, Reals
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.record import FORWARD, OPERATIONS, Record

NAME = "operations of a pipeline"
PARQUET = b"PAR1"
NEEDED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
COUNTED = ("rank", "seq_id")
OPTIONAL = (*COUNTED, "mc", "gmc", "mb_id")
LARGEST = 2**31 - 1
"""The largest number of a step, a rank or an operation, ASSUMED."""


def recognise(file: LogFile) -> bool:
    """Whether a file is parquet, as no other format is."""
    return file.data.startswith(PARQUET)


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record in a parquet file. Raises `InputError` for any other file."""
    import pyarrow

    return read_operations(files[0].path, pyarrow.BufferReader(files[0].data))


READERS = (Reader(NAME, "parquet with a row per operation", recognise, read),)


def read_operations(path: str | Path, content: Any = None) -> Record:
    """The record in a parquet file, of which the content may be known already.

    Raises `InputError` for any other file.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path if content is None else content) as file:
            names = file.schema_arrow.names
            for name in NEEDED:
                if name not in names:
                    raise InputError(
                        f"{path}: no column '{name}'; a record of operations has "
                        f"{', '.join(NEEDED)}, this file {', '.join(names)}"
                    )
            table = file.read([*NEEDED, *(name for name in OPTIONAL if name in names)])
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition(". ")[0].rpartition("': ")[2]
        raise InputError(f"{path}: cannot be read as parquet: {reason}") from None
    if not table.num_rows:
        raise InputError(f"{path}: has no rows")
    for name in table.column_names:
        if table[name].null_count:
            raise InputError(f"{path}: column '{name}' has empty cells")
    kind, kinds = _kinds(table["optype"], path)
    start, duration = (_seconds(table, n, path) for n in NEEDED[-2:])
    integers = {
        name: _integers(table, name, path) for name in table.column_names if name not in NEEDED[-3:]
    }
    wrong = ~(np.isfinite(start) & (duration >= 0) & (duration < np.inf))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{path}, row {row + 1}: start_ts {start[row]:g} and duration {duration[row]:g} are no "
            "times in seconds"
        )
    return _assemble(path, integers, kind, kinds, start, duration)


def _assemble(
    path: str | Path, integers: dict[str, Ints], kind: Ints, kinds: tuple[str, ...],
    start: Reals, duration: Reals,
) -> Record:  # fmt: skip
    """The record, with what optional columns would say derived, and the notes that say so."""
    step, replica, stage = (integers[name] for name in ("step", "dp_rank", "stage"))
    stages = len(np.unique(stage))
    if stage.max() >= stages:
        absent = int(np.setdiff1d(np.arange(stages), stage)[0])
        raise InputError(
            f"{path}: no row is of stage {absent}; the record needs all stages, from 0"
        )
    notes, computing = [], [k for k, name in enumerate(kinds) if name.endswith("-compute")]
    for name, derive, note in (
        ("rank", lambda: replica * stages + stage,
         "Assumed: no column rank; each stage of a replica is one rank."),
        ("seq_id", lambda: _count(step, replica, stage, kind, start),
         "Derived: no seq_id; operations are counted in order of their start."),
        ("mc", lambda: np.where(np.isin(kind, computing), 0, -1),
         "Assumed: no column mc; each stage has one model chunk."),
        ("gmc", lambda: np.where(integers["mc"] < 0, -1, integers["mc"] * stages + stage),
         "Assumed: no column gmc; chunk i of stage p is chunk i x stages + p."),
        ("mb_id", lambda: np.full(len(step), -1), ""),
    ):  # fmt: skip
        if name not in integers:
            integers[name] = derive()
            notes += [note] if note else []
    gpus = _gpus(path)
    if gpus is None:
        notes.append(
            "Assumed: nothing says how many GPUs a rank has; "
            f"{len(np.unique(integers['rank']))} ranks count as one GPU each."
        )
    return Record(
        step=step, replica=replica, stage=stage, rank=integers["rank"], kind=kind,
        number=integers["seq_id"], chunk=integers["mc"], model_chunk=integers["gmc"],
        micro_batch=integers["mb_id"], start=start, duration=duration, kinds=kinds,
        source=str(path), form=NAME, gpus=gpus, notes=tuple(notes),
    )  # fmt: skip


def _kinds(column: Any, path: str | Path) -> tuple[Ints, tuple[str, ...]]:
    import pyarrow

    if not pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    encoded = _whole(column.unify_dictionaries())
    code = np.from_dlpack(encoded.indices).astype(np.int64)
    names = [str(name) for name in encoded.dictionary.to_pylist()]
    used = np.unique(code).tolist()
    for name in (names[k] for k in used):
        if name not in OPERATIONS:
            near = nearest(name, OPERATIONS) or f"; known are {', '.join(OPERATIONS)}"
            raise InputError(f"{path}: unknown operation '{name}'{near}")
    if FORWARD not in (names[k] for k in used):
        raise InputError(f"{path}: no operation is {FORWARD}; backward alone cannot be replayed")
    place = np.zeros(len(names), np.int64)
    place[used] = np.arange(len(used))
    return place[code], tuple(names[k] for k in used)


def _whole(column: Any) -> Any:
    """A column as one array; numpy takes it by `from_dlpack`, because `to_numpy` loads pandas."""
    import pyarrow

    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pyarrow.ChunkedArray) else array


def _column(table: Any, name: str, path: str | Path) -> Array:
    import pyarrow

    found = table[name].type
    if not (pyarrow.types.is_integer(found) or pyarrow.types.is_floating(found)):
        raise InputError(f"{path}: column '{name}' is of {found}, not numbers")
    return np.asarray(np.from_dlpack(_whole(table[name])))


def _integers(table: Any, name: str, path: str | Path) -> Ints:
    """A column of whole numbers from 0; chunks and micro-batches may be -1, for none."""
    values = _column(table, name, path)
    least = 0 if name in (*NEEDED, *COUNTED) else -1
    right = (values >= least) & (values <= LARGEST) & (values == np.floor(values))
    if not right.all():
        row = int(np.argmin(right))
        raise InputError(
            f"{path}, row {row + 1}: {name} is {values[row]:g}, and no whole number from {least} on"
        )
    return values.astype(np.int64)


def _seconds(table: Any, name: str, path: str | Path) -> Reals:
    """A column of seconds in the precision of the file: 32 bits are not made to look like more."""
    single = str(table[name].type) == "float"
    return _column(table, name, path).astype(np.float32 if single else np.float64)


def _count(*columns: Array) -> Ints:
    """The place of each row among those that agree in all columns but the last, sorted by it."""
    order = np.lexsort(columns[::-1])
    keys = np.stack([column[order] for column in columns[:-1]])
    first = np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0))
    at = np.arange(len(order))
    number = np.empty(len(order), np.int64)
    number[order] = at - np.maximum.accumulate(np.where(first, at, 0))
    return number


def _gpus(path: str | Path) -> int | None:
    """`world_size` of the meta file beside a trace; None without one."""
    path = Path(path)
    meta = path.with_name(path.stem.replace("trace", "meta", 1) + ".yaml")
    try:
        text = meta.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    size = re.search(r"(?m)^world_size: *([1-9]\d*)\s*$", text)
    return None if size is None else int(size.group(1))
