"""The record of a real job from any of the formats that are known, chosen by content."""

from __future__ import annotations

from pathlib import Path

from simstrag.documents.file_io import path_of, require_path
from simstrag.errors import InputError
from simstrag.records.log_table import is_json, read_bytes
from simstrag.records.record import Record

PARQUET = b"PAR1"
KNOWN = (
    "a parquet file of operations, a CSV of rank, step and seconds, a log of Megatron-LM, a run "
    "directory, or a folder of simstrag.ddp.record, of PyTorch profiles or of flight recorder dumps"
)


def read_record(path: str | Path) -> Record:
    """The record in a file or folder.

    Raises `InputError` where it is none, and for what a format does not allow.
    """
    path = require_path(path_of(path, "the record of a job"))
    if path.is_dir():
        return _read_folder(path)
    try:
        with path.open("rb") as file:
            begin = file.read(len(PARQUET))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if begin == PARQUET:
        from simstrag.records.operations import read_operations

        return read_operations(path)
    if not begin:
        raise InputError(f"{path}: is empty; give {KNOWN}")
    if is_json(path):
        raise InputError(f"{path}: is JSON; give the folder that has the files of all ranks")
    from simstrag.records.megatron import is_training_log, read_training_log

    if is_training_log(read_bytes(path)):
        return read_training_log(path)
    from simstrag.records.rank_seconds import read_seconds

    return read_seconds(path)


def _read_folder(folder: Path) -> Record:
    from simstrag.records.flight_recorder import dump_files, read_dumps
    from simstrag.records.rank_seconds import rank_files, read_recorded

    run = [path for path in (folder / "run.json",) if path.exists()]
    ranks, dumps = rank_files(folder), dump_files(folder)
    first, *others = [files[0].name for files in (run, ranks, dumps) if files] or [""]
    if others:
        raise InputError(
            f"{folder}: holds two records, of which {first} and {others[0]} are parts; move one "
            "into a folder of its own"
        )
    if ranks:
        return read_recorded(folder)
    if dumps:
        return read_dumps(folder)
    if run:
        from simstrag.records.runs import read_run

        return read_run(folder)
    from simstrag.records.profiles import profile_files, read_profiles

    if profile_files(folder):
        return read_profiles(folder)
    raise InputError(f"{folder}: no record of a job in this folder; give {KNOWN}")
